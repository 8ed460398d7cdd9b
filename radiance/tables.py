"""Launch tables of the user's own GPU: `radiance tune` writes one, tuning.py reads it. One JSON file a device.

A table may only choose among the launches that this version ships and tests (tuning.py's candidates), so a wrong one
costs time, never a result. One that is torn, of another device or version, or names a launch we do not have is ignored
as a whole, with a logged reason.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from radiance import cache
from radiance.errors import UnsupportedHead

log = logging.getLogger("vllm.radiance")

SCHEMA = 1


@dataclass(frozen=True)
class Shape:
    """What was measured for heads of n x k. `coarse`, `triton`: fields of the chosen tuning.Coarse / tuning.Triton by the
    most draft rows they serve, ascending; empty: the built-in table. `crossover`: draft rows above which stock wins."""

    n: int
    k: int
    coarse: tuple[Mapping[str, Any], ...] = ()
    triton: tuple[Mapping[str, Any], ...] = ()
    crossover: int | None = None


@dataclass(frozen=True)
class Table:
    """The shapes of one device, and where they come from (shown, not used)."""

    device: str
    capability: tuple[int, int]
    processors: int
    shapes: tuple[Shape, ...]
    radiance: str = ""
    torch: str = ""
    triton: str = ""
    command: str = ""


def path_for(device: str, folder: Path | None = None) -> Path:
    """The file of a device by its name, as torch gives it."""
    name = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "unnamed"
    return (cache.folder("tables") if folder is None else folder) / f"{name}.json"


def write(table: Table, folder: Path | None = None) -> Path:
    """Replace the device's file. Raises OSError, or UnsupportedHead("cache_folder") if the folder is not private."""
    path = path_for(table.device, folder)
    if cache.checked(path.parent) is None:
        raise OSError(
            f"{path.parent} cannot be made: give this user a home it can write, or make the folder (tables.py)"
        )
    cache.publish(path, (json.dumps({"schema": SCHEMA, **asdict(table)}, indent=1) + "\n").encode())
    return path


def read(device: str, capability: tuple[int, int], processors: int, folder: Path | None = None) -> Table | None:
    """The device's table; None if there is none or it cannot be used (logged, with the reason)."""
    path = path_for(device, folder)
    try:
        if not path.exists():
            return None
        cache.checked(path.parent)
        table = parse(json.loads(path.read_text()))
        found = (table.device, table.capability, table.processors)
        if found != (device, capability, processors):
            raise ValueError(f"made on {found}, this is {(device, capability, processors)}")
    except (OSError, ValueError, TypeError, KeyError, UnsupportedHead) as error:
        ignored(path, str(error) or repr(error))
        return None
    return table


def ignored(path: Path, reason: str) -> None:
    log.warning(
        "Radiance launch table %s ignored: %s; the built-in one is used (make it again: radiance tune)", path, reason
    )


def parse(raw: Any) -> Table:
    """Raises ValueError, TypeError or KeyError at whatever is not a table of this version."""
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise ValueError(f"not a launch table of schema {SCHEMA}")
    fields = {name: value for name, value in raw.items() if name != "schema"}
    major, minor = (_whole(v) for v in fields.pop("capability"))
    shapes = tuple(_shape(one) for one in fields.pop("shapes"))
    _whole(fields["processors"])
    return Table(**fields, capability=(major, minor), shapes=shapes)


def _shape(raw: Mapping[str, Any]) -> Shape:
    launches = {kind: tuple(dict(entry) for entry in raw.get(kind, ())) for kind in ("coarse", "triton")}
    crossover = raw.get("crossover")
    return Shape(
        _whole(raw["n"]), _whole(raw["k"]), crossover=None if crossover is None else _whole(crossover), **launches
    )


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a whole number")
    return value
