"""Damaged input files: documents with wrong values, corrupted bytes, and paths that cannot be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

__all__ = ["UNREADABLE", "WRONG_VALUES", "corruptions", "mutations", "replace_by_unreadable"]

WRONG_VALUES: tuple[Any, ...] = (
    None,
    True,
    [],
    {},
    "",
    -1,
    0,
    0.5,
    10**400,
    2**63 - 1,
    1e308,
    float("nan"),
    float("inf"),
    "x" * 5_000,
    "\0\n\x1b",
    "../../x",
    [[[[[[[[[[0]]]]]]]]]],
    [1, "x"],
    {"x": {"x": None}},
)
"""Values that are invalid at most places of every file of the library."""

_NOTHING = object()


def mutations(document: Any, every: int = 1) -> Iterator[Any]:
    """Copies of nested lists and tables with one change each: a wrong value, a missing entry, or an additional one.

    Only every `every`-th of them is returned. If `every` and the number of wrong values have no common factor, the
    values differ from place to place.
    """
    places = list(_places(document))
    changes: list[tuple[tuple[Any, ...], Any]] = [
        (place, value) for place in places for value in (*WRONG_VALUES, _NOTHING)
    ]
    for place in [(), *places]:
        inner = _at(document, place)
        if isinstance(inner, dict):
            changes.append(((*place, "unknown"), 1))
        elif isinstance(inner, list) and inner:
            changes.append((place, inner * 2))
    for place, value in changes[::every]:
        yield _without(document, place) if value is _NOTHING else _with(document, place, value)


def corruptions(content: bytes, cuts: int, flips: int) -> Iterator[bytes]:
    """The content truncated at about `cuts` places, and copies with one flipped bit each."""
    for cut in range(0, len(content), max(1, len(content) // cuts)):
        yield content[:cut]
    random = Random(0)
    for _ in range(flips):
        changed = bytearray(content)
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        yield bytes(changed)


def _places(document: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(document, dict):
        items = list(document.items())
    else:
        items = list(enumerate(document)) if isinstance(document, list) else []
    for key, value in items:
        yield (*before, key)
        yield from _places(value, (*before, key))


def _at(document: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        document = document[key]
    return document


def _with(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    changed = deepcopy(document)
    if not place:
        return value
    _at(changed, place[:-1])[place[-1]] = value
    return changed


def _without(document: Any, place: tuple[Any, ...]) -> Any:
    changed = deepcopy(document)
    del _at(changed, place[:-1])[place[-1]]
    return changed


def _missing(path: Path) -> None:
    return


def _touch(path: Path) -> Path:
    path.touch()
    return path


def _endless(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)  # sparse: occupies no disk space


_KINDS: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "missing": (_missing, "No such file or directory"),
    "folder": (lambda path: path.mkdir(), "Is a directory"),
    "pipe": (os.mkfifo, "not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "terminal": (lambda path: path.symlink_to("/dev/ptmx"), "not a regular file"),
    "link to itself": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "link to nothing": (lambda path: path.symlink_to("nowhere"), "No such file or directory"),
    "endless": (_endless, "larger than"),
}


def replace_by_unreadable(kind: str, path: Path) -> str:
    """Replace a file by something unreadable; return the reason in the error message."""
    make, reason = _KINDS[kind]
    path.unlink(missing_ok=True)
    make(path)
    return reason


def _in_folder(kind: str) -> Callable[[Path], tuple[Path, str]]:
    return lambda folder: (folder / "file", replace_by_unreadable(kind, folder / "file"))


UNREADABLE: Mapping[str, Callable[[Path], tuple[Path, str]]] = {
    **{kind: _in_folder(kind) for kind in _KINDS if kind != "link to nothing"},
    "inside a file": lambda folder: (_touch(folder / "parent") / "file", "Not a directory"),
    "name too long": lambda folder: (folder / ("n" * 300), "File name too long"),
    "path too long": lambda folder: (folder / "/".join(["n" * 200] * 30), "File name too long"),
    "NUL in the name": lambda folder: (folder / "a\0b", "embedded null"),
    "newline in the name": lambda folder: (folder / "a\nb", "No such file"),
}
"""By name, a function that makes it in a folder and returns its path and the reason in the error message."""
