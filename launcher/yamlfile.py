"""One YAML file -> plain data, and the line of every key, so that an error can name the place.

Three differences from PyYAML's safe loader, each against a silent misreading: a key given twice is an error, not
"the last one wins"; `yes`, `no`, `on` and `off` are the words they look like (YAML 1.2), so `verified: no` stays text; and
dates stay text too. `true` and `false` are the only booleans.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from launcher.errors import ProfileError

#: where a key stands: ("model", "id") -> 7
Lines = dict[tuple[str | int, ...], int]


class _Loader(yaml.SafeLoader):
    pass


_DROPPED = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _DROPPED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|True|false|False)$"), list("tTfF"))


def load(path: Path) -> tuple[Any, Lines]:
    """Parse `path`. Raises ProfileError with file, line and key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read: {error}") from error
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise ProfileError(f"{path}: the file is empty; a profile is a mapping that starts with schema_version")
        lines: Lines = {}
        _walk(path, node, (), lines)
        return loader.construct_document(node), lines  # type: ignore[no-untyped-call]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ProfileError(f"{place}: not valid YAML: {getattr(error, 'problem', None) or error}") from error
    finally:
        loader.dispose()  # type: ignore[no-untyped-call]


def value(text: str) -> Any:
    """One value as it would be read in a file: 8 is a number, [a, b] a list, null nothing. Raises ValueError."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(getattr(error, "problem", None) or error)) from error


def _walk(path: Path, node: yaml.Node, key: tuple[str | int, ...], lines: Lines) -> None:
    lines.setdefault(key, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            here = (*key, str(name.value))
            line = name.start_mark.line + 1
            if here in lines:
                dotted = ".".join(map(str, here))
                raise ProfileError(
                    f"{path}:{line}: key {dotted!r} is given twice (first on line {lines[here]}); remove one"
                )
            lines[here] = line
            _walk(path, value, here, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _walk(path, value, (*key, index), lines)
