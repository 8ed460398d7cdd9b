"""Post-import hooks: call a function once, right after a named module has been executed; and how a method is wrapped."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

log = logging.getLogger("vllm.radiance")


class AfterImport(MetaPathFinder):
    """`pending`: module name -> what to call with the module. Costs a dict lookup for every other import."""

    def __init__(self, pending: dict[str, Callable[[ModuleType], None]]) -> None:
        self.pending = pending

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        patch = self.pending.pop(fullname, None)
        if patch is None:
            return None
        try:
            spec = find_spec(fullname)  # for a moment this finder does not know the name, so the ordinary ones answer
        finally:
            self.pending[fullname] = patch  # finding is not importing: only an executed module is done with
        if spec is None or spec.loader is None:
            return None
        spec.loader = _PatchingLoader(spec.loader, self.pending)
        return spec


class _PatchingLoader(Loader):
    def __init__(self, inner: Loader, pending: dict[str, Callable[[ModuleType], None]]) -> None:
        self.inner = inner
        self.pending = pending

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        patch = self.pending.pop(module.__name__, None)
        if patch is not None:
            apply(patch, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def apply(patch: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Patch a module; an import of vLLM must never fail because of us."""
    try:
        patch(module)
    except Exception:
        log.exception("Radiance could not patch %s; the stock draft head is used", module.__name__)


def wrap(owner: type, name: str, make: Callable[[Any], Any], *, optional: bool = False) -> bool:
    """Replace method `name` of a class once. False, with a WARNING unless `optional`, if this vLLM does not have it."""
    original = owner.__dict__.get(name)
    if original is None:
        if not optional:
            log.warning(
                "Radiance: %s.%s is not there in this vLLM; see the seam table in radiance/hook", owner.__name__, name
            )
        return False
    if not hasattr(original, "__radiance__"):
        wrapped = functools.wraps(original)(make(original))
        wrapped.__radiance__ = True  # type: ignore[attr-defined]
        setattr(owner, name, wrapped)
    return True
