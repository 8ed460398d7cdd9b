"""Radiance: the drafter's LM head in 2 bits, its best candidates rescored exactly. vLLM finds it by its entry point.

`register()` runs in every vLLM process (API server, engine core, workers, registry inspection), so it must be cheap: it
reads the settings and, unless they say off, leaves post-import hooks. It imports neither torch nor vllm.
"""

from __future__ import annotations

import logging

__version__ = "0.1.0"

_registered = False


def register() -> None:
    """Entry point of group vllm.general_plugins. Idempotent; never raises: a bad setting becomes DECLINED(settings)."""
    global _registered
    if _registered:
        return
    _registered = True
    from radiance import settings
    from radiance.errors import SettingsError

    log = logging.getLogger("vllm.radiance")
    problem = ""
    try:
        chosen = settings.read()
    except SettingsError as error:
        problem = str(error)
        log.warning("Radiance declined: %s. The stock draft head is used.", error)
        chosen = settings.tolerant()
    if chosen.ignored:
        log.warning("Radiance ignores Kubernetes service-link variables: %s", ", ".join(chosen.ignored))
    if not chosen.enabled and not problem:
        return
    from radiance import hook

    hook.install(chosen, problem)
