"""Injection: put a student's function in the place of a function of the library, everywhere it is used.

It is meant for a process of its own: the replacement stays until the context ends, in all threads.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

PACKAGE = "hybridnn"  # the kit may hold the original, as its reference


class StillUsedError(RuntimeError):
    """The library still holds the original somewhere."""


def find(target: str) -> Any:
    """The object ``"module:name"``, ``"module:Class.name"`` or ``"module:object.name"``."""
    module, _, path = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


@contextlib.contextmanager
def injected(target: str, replacement: Any, *users: str) -> Iterator[None]:
    """Replace `target` in this context.

    Parameters
    ----------
    target : str
        ``"module:name"``, ``"module:Class.name"``, or ``"module:object.name"`` of a method that is replaced for all
        objects of the class, by a function without ``self``.
    replacement : object
        Stands in the place of the original.
    users : str
        Modules that use it, which are imported first.

    Raises
    ------
    StillUsedError
        If an object of the library other than a module or a class holds the original: a table, a closure, a default.
    """
    for name in users:
        importlib.import_module(name)
    original = find(target)
    if inspect.ismethod(original):
        original, replacement = original.__func__, staticmethod(replacement)
    places = [
        (holder, name) for holder in _holders() for name, value in list(vars(holder).items()) if value is original
    ]
    for holder, name in places:
        setattr(holder, name, replacement)
    try:
        require_unused(original)
        yield
    finally:
        for holder, name in places:
            setattr(holder, name, original)


def require_unused(original: Any) -> None:
    """Raise `StillUsedError` if any object of the library holds `original`."""
    gc.collect()
    for holder in gc.get_referrers(original):
        name = _name_of(holder, original)
        if name:
            raise StillUsedError(f"{getattr(original, '__qualname__', original)} is still used by {name}")


def _holders() -> list[Any]:
    """Modules of the library, and their classes."""
    modules = [
        module for name, module in list(sys.modules.items()) if isinstance(module, ModuleType) and _is_library(name)
    ]
    classes = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and _is_library(value.__module__)
    }
    return [*modules, *classes]


def _is_library(module: str) -> bool:
    return module.split(".")[0] == PACKAGE


def _name_of(holder: Any, original: Any) -> str:
    """Name of an object of the library that holds the original, empty for what may hold it."""
    if isinstance(holder, dict):
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType) and module.__dict__ is holder:
                return name if _is_library(name) else ""
        owners = [owner for owner in gc.get_referrers(holder) if getattr(owner, "__dict__", None) is holder]
        return _name_of(owners[0], original) if owners else ""  # attributes have a dict once somebody asked for it
    if isinstance(holder, type):
        return f"class {holder.__qualname__}" if _is_library(holder.__module__) else ""
    kind = type(holder)
    if _is_library(kind.__module__) and not isinstance(original, type):
        return f"an object of class {kind.__qualname__}"
    if isinstance(holder, tuple):
        owners = [owner for owner in gc.get_referrers(holder) if callable(owner) and hasattr(owner, "__module__")]
        # A class holds itself, in its method resolution order.
        named = [owner for owner in owners if owner is not original and _is_library(str(owner.__module__))]
        return f"{named[0].__module__}.{getattr(named[0], '__qualname__', '')}" if named else ""
    return ""
