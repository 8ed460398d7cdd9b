"""Layers of settings -> one set of values, and for each value who gave it.

    built-in profile < user file < environment < command line

A later layer wins, key by key: mappings are merged, everything else (lists too) is replaced whole, and `null` takes a value
away, so that the default holds again. Two exceptions, where half of the old and half of the new would make no sense: a
model, drafter or tokenizer from another source replaces the old one with its revision, and of two keys that exclude each
other the later layer's stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.yamlfile import Lines

Key = tuple[str | int, ...]
SOURCES = {"id", "path", "embedded", "same_as_model"}
EXCLUSIVE = ({"gpu_memory_utilization", "kv_cache_memory_bytes"},)
_GONE = object()


@dataclass(frozen=True)
class Layer:
    """`rank`: built-in, user file, environment or command line; `origin`: the file, or again the rank."""

    rank: str
    origin: str
    values: Mapping[str, Any]
    lines: Lines = field(default_factory=dict)
    #: what gave a key, where that is no line of a file: a variable, an option
    names: Mapping[Key, str] = field(default_factory=dict)

    def place(self, key: Key) -> str:
        """Where the key, or the nearest section around it, was given."""
        for length in range(len(key), 0, -1):
            if name := self.names.get(key[:length]):
                return name
            if line := self.lines.get(key[:length]):
                return f"{self.origin}:{line}"
        return f"{self.origin}:{self.lines[()]}" if () in self.lines else self.origin


@dataclass(frozen=True)
class Given:
    """One layer's word on one key; `value` None: it took the value away."""

    layer: Layer
    value: Any


@dataclass
class Merged:
    values: dict[str, Any] = field(default_factory=dict)
    #: for each key with a value of its own: who spoke, the winner last
    history: dict[Key, list[Given]] = field(default_factory=dict)

    def giver(self, key: Key) -> Layer | None:
        """Who gave the value at `key`, or the section around it, or (of a section) something in it."""
        while key:
            if found := self.history.get(key):
                return found[-1].layer
            inside = [given[-1].layer for known, given in self.history.items() if known[: len(key)] == key]
            if inside:
                return inside[-1]
            key = key[:-1]
        return None


def merge(layers: Iterable[Layer]) -> Merged:
    """All layers, the weakest first."""
    merged = Merged()
    for layer in layers:
        for group in EXCLUSIVE:
            chosen = {name for name in group if layer.values.get(name) is not None}
            if len(chosen) == 1:
                for name in (group - chosen) & set(merged.values):
                    _take_away(merged, merged.values, (name,), layer)
        _lay(merged, merged.values, (), layer.values, layer)
    return merged


def _lay(merged: Merged, into: dict[str, Any], prefix: Key, values: Mapping[str, Any], layer: Layer) -> None:
    for name, value in values.items():
        key = (*prefix, str(name))
        if value is None:
            _take_away(merged, into, key, layer)
        elif isinstance(value, Mapping):
            new_source = prefix == () and SOURCES & {k for k, v in value.items() if v is not None}
            if not isinstance(into.get(name), dict) or new_source:
                _take_away(merged, into, key, layer)
                into[name] = {}
            if not value:
                merged.history.setdefault(key, []).append(Given(layer, {}))
            _lay(merged, into[name], key, value, layer)
        else:
            if isinstance(into.get(name), dict):
                _take_away(merged, into, key, layer)
            into[name] = value
            merged.history.setdefault(key, []).append(Given(layer, value))


def _take_away(merged: Merged, into: dict[str, Any], key: Key, layer: Layer) -> None:
    if into.pop(str(key[-1]), _GONE) is _GONE:
        return
    for known, given in merged.history.items():
        if known[: len(key)] == key and given[-1].value is not None:
            given.append(Given(layer, None))
