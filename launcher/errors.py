"""Every way a launcher command can fail on purpose, and the exit code it ends with.

    LauncherError
      UnknownProfile      2   the name is not in the catalogue
      UsageProblem        2   arguments that contradict each other or the profile
      ProfileError       65   a profile file is not valid
      ModelMissing       66   the model or its revision is not where the profile says, or cannot be prepared
      EngineMissing      69   there is no vLLM to start
      AcceleratorMissing 69   the machine has no accelerator that the profile can use, or too few
      EngineDied         70   vLLM ended although nobody asked it to (whatever its own code was, 0 included)
      EngineWedged       70   vLLM stopped making progress and was ended for it
      HeadRequired       70   the profile demands an active 2-bit head and there is none
      CacheUnwritable    73   a folder that must be written cannot be
      NetworkTrouble     75   the model hub could not be reached; later it may be
      AccessDenied       77   the model hub wants a token, or this one may not read the model
      SettingsConflict   78   an environment variable is unknown, has a bad value, or fights another setting
      StartupSpent      124   vLLM was not ready within the profile's budget
      StopForced        137   vLLM had to be killed: it outlived the grace after a stop request, or a second one came

A code tells an orchestrator whether a restart can help: 2, 65, 66, 69, 73, 77 and 78 will come again; 70, 75, 124 and 137
may not. Codes 64 to 78 follow sysexits.h.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LauncherError(Exception):
    """Base of all; the message states the rule, what was found, the fix and the place."""

    exit_code = 1


class UsageProblem(LauncherError):
    exit_code = 2


class UnknownProfile(UsageProblem):
    pass


class ProfileError(LauncherError):
    exit_code = 65


class ModelMissing(LauncherError):
    exit_code = 66


class EngineMissing(LauncherError):
    exit_code = 69


class AcceleratorMissing(LauncherError):
    exit_code = 69


class EngineDied(LauncherError):
    exit_code = 70


class EngineWedged(EngineDied):
    pass


class LeaderLost(LauncherError):
    exit_code = 70


class HeadRequired(LauncherError):
    exit_code = 70


class CacheUnwritable(LauncherError):
    exit_code = 73


class NetworkTrouble(LauncherError):
    exit_code = 75


class AccessDenied(LauncherError):
    exit_code = 77


class SettingsConflict(LauncherError):
    exit_code = 78


class StartupSpent(LauncherError):
    exit_code = 124


class StopForced(LauncherError):
    exit_code = 137


def nearest(name: str, known: Iterable[str], *, limit: int = 3) -> list[str]:
    """The known names most like `name`, best first: for "did you mean"."""
    return difflib.get_close_matches(name, list(known), n=limit, cutoff=0.5)
