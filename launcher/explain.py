"""`radiance explain`: for every value that decides a serve, who gave it and whom that beat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from launcher import arguments
from launcher.layers import Given, Key
from launcher.overlay import Settled
from launcher.plan import ServePlan
from launcher.profiles import CATALOG
from launcher.secrets import Redactor

DEFAULT = "default"


@dataclass(frozen=True)
class Row:
    """`place`: file:line, variable or option; `over`: what it beat, the nearest first, as (value, place)."""

    key: str
    value: Any
    source: str
    place: str = ""
    over: tuple[tuple[Any, str], ...] = ()


def rows(plan: ServePlan, given: Mapping[str, bool]) -> list[Row]:
    """Fields of the profile, then the variables that the launcher adds, then options. `given`: options that were typed."""
    return [*_fields(plan), *_variables(plan), *_options(plan, given)]


def _fields(plan: ServePlan) -> Iterator[Row]:
    history = plan.settled.merged.history
    typed = arguments.names(plan.options.extra)
    values = dict(_flat(plan.settled))
    for key in [*values, *(key for key in history if key not in values and history[key][-1].value is None)]:
        name = ".".join(map(str, key))
        if key[0] == "args" and len(key) > 1 and arguments.replaced(str(key[1]), typed):
            yield Row(name, "see after --", "command line", f"-- --{key[1]}", _beaten(key, history.get(key, []), 0))
        else:
            yield _row(name, key, values.get(key), history.get(key, []))


def _row(name: str, key: Key, value: Any, given: list[Given]) -> Row:
    if given and given[-1].value is not None:
        return Row(name, value, given[-1].layer.rank, given[-1].layer.place(key), _beaten(key, given, 1))
    # Taken away: the default holds, but somebody decided that.
    place = f"taken away by {given[-1].layer.place(key)}" if given else ""
    return Row(name, value, given[-1].layer.rank if given else DEFAULT, place, _beaten(key, given, 1))


def _beaten(key: Key, given: list[Given], skip: int) -> tuple[tuple[Any, str], ...]:
    return tuple((one.value, one.layer.place(key)) for one in reversed(given[: len(given) - skip]))


def _flat(settled: Settled) -> Iterator[tuple[Key, Any]]:
    """The leaves of the settled profile with their keys; an empty section is a leaf."""
    history = settled.merged.history

    def walk(key: Key, value: Any) -> Iterator[tuple[Key, Any]]:
        if isinstance(value, dict) and value and key not in history:
            for name, item in value.items():
                yield from walk((*key, name), item)
        else:
            yield key, value

    yield from walk((), settled.profile.model_dump(mode="json"))


def _variables(plan: ServePlan) -> Iterator[Row]:
    own = plan.settled.profile.env
    for name, value in plan.env.items():
        if name not in own:
            yield Row(
                f"environment.{name}", value, "launcher", "made from the fields above" if "RADIANCE" in name else ""
            )
    for name in plan.unset:
        yield Row(f"environment.{name}", None, "launcher", "taken out; the notes say why")


def _options(plan: ServePlan, given: Mapping[str, bool]) -> Iterator[Row]:
    for name, typed in given.items():
        value = getattr(plan.options, name)
        yield Row(
            f"option.{name}",
            value,
            "command line" if typed else DEFAULT,
            f"--{name.replace('_', '-')}" if typed else "",
        )
    if plan.options.extra:
        yield Row("option.after --", " ".join(map(arguments.quote, plan.options.extra)), "command line", "--")


def to_text(found: list[Row], plan: ServePlan, environ: Mapping[str, str], everything: bool) -> str:
    """One line a value; defaults only on request."""
    shown = [row for row in found if everything or row.source != DEFAULT]
    lines = []
    for row in shown:
        over = "".join(f"; over {_word(value)} ({_short(place)})" for value, place in row.over)
        where = _short(row.place) if row.place else row.source
        lines.append((row.key, _word(row.value), f"{where}{over}"))
    widths = [max((len(line[i]) for line in lines), default=0) for i in (0, 1)]
    text = "\n".join(f"{key:<{widths[0]}}  {value:<{min(widths[1], 40)}}  {rest}" for key, value, rest in lines)
    return Redactor(environ)("\n".join([text, *(f"note: {note}" for note in plan.notes)]))


def to_json(found: list[Row], plan: ServePlan, environ: Mapping[str, str]) -> str:
    value = [
        {
            "key": row.key,
            "value": row.value,
            "source": row.source,
            "place": row.place,
            "over": [{"value": old, "place": place} for old, place in row.over],
        }
        for row in found
    ]
    return Redactor(environ)(json.dumps({"values": value, "notes": list(plan.notes)}, indent=2, default=str))


def _short(place: str) -> str:
    return place.replace(f"{CATALOG}/", "built-in ")


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
