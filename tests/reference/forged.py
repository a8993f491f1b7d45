"""Documents of which one place is another than it was, and files whose bytes are."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import Any

__all__ = ["FORGED", "damaged", "forged"]

FORGED: tuple[Any, ...] = (
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
"""Values that no file of the library has at most places."""

_NOTHING = object()


def forged(document: Any, every: int = 1) -> Iterator[Any]:
    """Copies of nested lists and tables: at each place each value, nothing, and one key or item more.

    With `every` above 1 only each so-manieth of them; a number without common factor with that of the values takes
    other values at each place.
    """
    places = list(_places(document))
    changes: list[tuple[tuple[Any, ...], Any]] = [(place, value) for place in places for value in (*FORGED, _NOTHING)]
    for place in [(), *places]:
        inner = _at(document, place)
        if isinstance(inner, dict):
            changes.append(((*place, "unheard of"), 1))
        elif isinstance(inner, list) and inner:
            changes.append((place, inner * 2))
    for place, value in changes[::every]:
        yield _without(document, place) if value is _NOTHING else _with(document, place, value)


def damaged(content: bytes, cuts: int, flips: int) -> Iterator[bytes]:
    """The content cut at so many places, or at all of them if there are no more, and with single bits flipped."""
    for cut in range(0, len(content), max(1, len(content) // cuts)):
        yield content[:cut]
    random = Random(0)
    for _ in range(flips):
        changed = bytearray(content)
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        yield bytes(changed)


def _places(document: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
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
