"""Answers of a solution to a case: its outputs or its failure, and its communication; and their comparison."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from reprlib import Repr
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SHOWN = 200  # characters of a value in a message
CUT = "..."
SHORT = Repr()  # values come from submissions: their whole text may take minutes
SHORT.maxlist = SHORT.maxtuple = SHORT.maxdict = 40
SHORT.maxstring = SHORT.maxother = SHORT.maxlong = 2 * SHOWN

Values = Mapping[str, Any]
"""Arrays, numbers, texts, booleans, None, and lists and dictionaries of them."""

GRAIN = 1.2345678e-7
"""Unit to which numbers are rounded: such that those of exercises are not half-way between two of its multiples."""

UNWRITTEN = -7.53125
"""What is in arrays that the function has to fill: exact in every type of floats, and no result of an exercise."""

LARGE = 1e15  # more multiples of it are as good as infinite
MEASURED = "measured"
"""Name of an output with measured amounts, by name: the budget bounds them, and outputs are compared without it."""


class Call(NamedTuple):
    """A message or collective of a rank; moments are numbers of communication calls of all ranks."""

    rank: int
    name: str
    peer: int
    nbytes: int
    begun: int
    waited: int
    ended: int


@dataclass(frozen=True)
class Failure:
    """How a call of the student's function ended without outputs.

    Attributes
    ----------
    kind : str
        A word or two that equal failures have in common, for example ``"raised ValueError"``.
    text : str
    """

    kind: str
    text: str


NOT_WRITTEN = "not written"
DEADLOCK = "deadlock"


@dataclass(frozen=True)
class Answer:
    """Outputs of all ranks, or the failure.

    Attributes
    ----------
    calls : tuple of Call
        In the order in which they ended.
    clock : float
        Seconds on the virtual clock of the last rank.
    returned_none : bool, optional
        Whether all calls of the student's function returned None; None where that is not known.
    """

    outputs: tuple[Values, ...] = ()
    failure: Failure | None = None
    calls: tuple[Call, ...] = ()
    clock: float = 0.0
    returned_none: bool | None = None

    def sent(self, rank: int) -> list[Call]:
        """Messages that a rank sent."""
        return [call for call in self.calls if call.rank == rank and call.name == "send"]

    def carried_bytes(self, rank: int) -> int:
        """Bytes that a rank sent and received; of an all-reduce, its array in both directions."""
        return sum(call.nbytes * (1 + (call.name == "allreduce")) for call in self.calls if call.rank == rank)


@dataclass(frozen=True)
class Difference:
    """The first difference between outputs and expected outputs.

    Attributes
    ----------
    index : tuple of int, optional
        That of an element of an array.
    is_unwritten : bool
        Whether the wrong element is still `UNWRITTEN`.
    """

    rank: int
    where: str
    text: str
    index: tuple[int, ...] | None = None
    is_unwritten: bool = False

    def is_left_as_given(self, own: Any, given: Any) -> bool:
        """Whether the wrong element is that from before the call, in an array of the caller or an argument `given`."""
        if self.is_unwritten:
            return True
        if self.index is None or not isinstance(own, np.ndarray) or not isinstance(given, np.ndarray):
            return False
        return given.shape == own.shape and bool(own[self.index].tobytes() == given[self.index].tobytes())


def first_difference(outputs: Sequence[Values], expected: Sequence[Values], tolerance: float) -> Difference | None:
    """The first difference, None where outputs are equal up to the relative tolerance."""
    for rank, (own, right) in enumerate(zip(outputs, expected, strict=True)):
        if own.keys() != right.keys():
            return Difference(rank, "", f"outputs {_short(sorted(own))}, expected {sorted(right)}")
        for name, value in right.items():
            place = None if name == MEASURED else _first_place(own[name], value, tolerance)
            if place is not None:
                described = _described(own[name], value, place, tolerance)
                return Difference(rank, name, *described, is_unwritten=_is_unwritten(place, tolerance))
    return None


def answer_digest(answer: Answer, expected: Answer, salt: bytes, *, with_traffic: bool = False) -> str:
    """What two answers to one case have in common that agree in outputs, or in the way in which they failed.

    Numbers are rounded to `GRAIN`, relative to those of `expected`, so that rounding errors do not change the digest;
    without `salt`, nobody can tell what it stands for.

    Parameters
    ----------
    with_traffic : bool
        Whether the communication has to be the same, too.
    """
    content: list[object] = []
    if answer.failure is not None:
        kind, first = answer.failure.kind, answer.failure.text.partition("\n")[0].strip()
        # The kind alone would stand for any exception, and for a deadlock after any number of calls.
        content += [kind, first if kind.startswith(("raised ", DEADLOCK)) else ""]
    else:
        for rank, outputs in enumerate(answer.outputs):
            right = expected.outputs[rank] if rank < len(expected.outputs) else {}
            names = sorted(outputs.keys() - {MEASURED})
            content.append([(name, _rounded(outputs[name], GRAIN * _largest(right.get(name)))) for name in names])
        content += [traffic_of(answer)] if with_traffic else []
    return hashlib.sha256(salt + json.dumps(content).encode()).hexdigest()[:16]


def _largest(value: Any) -> float:
    """The largest finite number of a value, at least 1."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return max(map(_largest, value), default=1.0)
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return float(np.max(np.abs(value), initial=1.0, where=np.isfinite(value)))
    return max(1.0, abs(value)) if isinstance(value, float) and math.isfinite(value) else 1.0


def _rounded(value: Any, grain: float) -> object:
    """A value as JSON, with numbers as multiples of `grain`, and arrays as digests."""
    if isinstance(value, np.ndarray):
        whole = _multiples(value.astype(np.float64), grain) if value.dtype.kind == "f" else np.ascontiguousarray(value)
        return [value.dtype.name, value.shape, hashlib.sha256(whole.tobytes()).hexdigest()]
    if isinstance(value, Mapping):
        return {str(key): _rounded(item, grain) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item, grain) for item in value]
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, (bool, str)) or value is None:
        return value
    if isinstance(value, (int, float)):
        with contextlib.suppress(OverflowError):  # an integer beyond all floats
            return int(_multiples(np.array(float(value)), grain))
    return type(value).__name__


def _multiples(values: NDArray[np.float64], grain: float) -> NDArray[np.int64]:
    with np.errstate(all="ignore"):
        found = np.clip(np.rint(values / grain), -LARGE, LARGE)
    return np.where(np.isnan(values), 2 * LARGE, found).astype(np.int64)


def traffic_of(answer: Answer) -> tuple[object, ...]:
    """The communication of an answer, without the order in which ranks ran, and its measured amounts."""
    measured = [repr(outputs.get(MEASURED)) for outputs in answer.outputs]  # of any type, from a submission
    return (sorted(call[:4] for call in answer.calls), f"{answer.clock:.9e}", measured)


Place = tuple[tuple[object, ...], Any, Any]
"""Keys that lead to a value in lists and dictionaries, this value, and the expected one."""


def _first_place(own: Any, right: Any, tolerance: float, path: tuple[object, ...] = ()) -> Place | None:
    """Where two values first differ, None where they do not."""
    pairs: Iterable[tuple[object, Any]] = ()
    if isinstance(right, np.ndarray):
        is_same = _has_same_type(own, right) and not _wrong_elements(own, right, tolerance).any()
    elif isinstance(right, Mapping):
        is_same = isinstance(own, Mapping) and own.keys() == right.keys()
        pairs = right.items()
    elif isinstance(right, (list, tuple)):
        is_same = isinstance(own, (list, tuple)) and len(own) == len(right)
        pairs = enumerate(right)
    elif isinstance(right, float) and not isinstance(own, bool) and isinstance(own, (int, float)):
        is_same = _is_close(own, right, tolerance)
    else:
        is_same = type(own) is type(right) and bool(own == right)
    if not is_same:
        return path, own, right
    return next(filter(None, (_first_place(own[key], value, tolerance, (*path, key)) for key, value in pairs)), None)


def _has_same_type(own: Any, right: NDArray[Any]) -> bool:
    return isinstance(own, np.ndarray) and own.shape == right.shape and own.dtype == right.dtype


def _is_close(own: float, right: float, tolerance: float) -> bool:
    try:
        return math.isclose(own, right, rel_tol=tolerance, abs_tol=tolerance) or (own != own and right != right)
    except OverflowError:  # an integer beyond all floats
        return False


def _wrong_elements(own: NDArray[Any], right: NDArray[Any], tolerance: float) -> NDArray[np.bool_]:
    wrong: NDArray[np.bool_]
    if right.dtype.kind != "f":
        wrong = own != right
    else:
        # NaN and infinities are equal to themselves: mistakes have them, and have to be recognized.
        limit = tolerance * max(1.0, float(np.max(np.abs(right), initial=0.0, where=np.isfinite(right))))
        with np.errstate(invalid="ignore"):
            wrong = ~((np.abs(own - right) <= limit) | (own == right) | (np.isnan(own) & np.isnan(right)))
    return wrong


def _is_unwritten(place: Place, tolerance: float) -> bool:
    _, own, right = place
    if not isinstance(right, np.ndarray) or not _has_same_type(own, right):
        return False
    return bool(own[_wrong_elements(own, right, tolerance)][0] == UNWRITTEN)


def _described(own: Any, right: Any, place: Place, tolerance: float) -> tuple[str, tuple[int, ...] | None]:
    """The values as text where they are short, else the first place where they differ; of an array also its index."""
    path, own_part, right_part = place
    if path and len(texts := f"yours {_short(own)}, expected {_short(right)}") <= SHOWN and CUT not in texts:
        return texts, None
    index = None
    if isinstance(right_part, np.ndarray):
        text, index = _array_difference(own_part, right_part, tolerance)
    else:
        text = f"yours {_short(own_part)}, expected {_short(right_part)}"
    keys = "".join(f"[{key!r}]" for key in path)
    return (f"{keys}: {text}" if keys else text), index if not path else None


def _short(value: Any) -> str:
    text = SHORT.repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + f" {CUT}"


def _array_difference(own: Any, right: NDArray[Any], tolerance: float) -> tuple[str, tuple[int, ...] | None]:
    if not isinstance(own, np.ndarray):
        return f"yours is of type {type(own).__name__}, expected an array of shape {right.shape}", None
    if own.shape != right.shape:
        return f"yours has the shape {own.shape}, expected {right.shape}", None
    if own.dtype != right.dtype:
        return f"yours is of {own.dtype}, expected {right.dtype}", None
    wrong = _wrong_elements(own, right, tolerance)
    index = tuple(int(axis[0]) for axis in np.nonzero(wrong))
    place = f"[{', '.join(map(str, index))}]"
    count = f"; {int(wrong.sum())} of {wrong.size} elements differ" if wrong.size > 1 else ""
    return f"element {place}: yours {own[index]:.10g}, expected {right[index]:.10g}{count}", index
