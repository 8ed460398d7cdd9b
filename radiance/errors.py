"""Every error Radiance raises on purpose. A leaf: imports nothing of ours.

    RadianceError
      SettingsError      a RADIANCE_* variable is unknown or has a bad value
      UnsupportedHead    this head cannot be replaced; `reason` is the metric label
      StatusError        a status file is torn, of another schema, or unreadable

Inside vLLM none of them may end the server: the hook turns each into state DECLINED(reason). The launcher turns
SettingsError into exit code 78 before anything starts.
"""

from __future__ import annotations


class RadianceError(Exception):
    """Base of all; the message states the rule, both values, the fix and the place."""


class SettingsError(RadianceError):
    """A RADIANCE_* variable is unknown or has a bad value."""


class UnsupportedHead(RadianceError):
    """A head that keeps its stock path. `reason` is short, stable and safe as a metric label."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class StatusError(RadianceError):
    """A status file that cannot be read as a Snapshot."""
