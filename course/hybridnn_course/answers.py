"""Answers of a solution to a case: its outputs or its failure, and its communication; and their comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = Mapping[str, Any]
"""Arrays, numbers, texts, booleans, None, and lists and dictionaries of them."""

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
FORBIDDEN = "forbidden"


@dataclass(frozen=True)
class Answer:
    """Outputs of all ranks, or the failure.

    Attributes
    ----------
    calls : tuple of Call
        In the order in which they ended.
    clock : float
        Seconds on the virtual clock of the last rank.
    """

    outputs: tuple[Values, ...] = ()
    failure: Failure | None = None
    calls: tuple[Call, ...] = ()
    clock: float = 0.0

    def sent(self, rank: int) -> list[Call]:
        """Messages that a rank sent."""
        return [call for call in self.calls if call.rank == rank and call.name == "send"]

    def carried_bytes(self, rank: int) -> int:
        """Bytes that a rank sent and received; of an all-reduce, its array in both directions."""
        return sum(call.nbytes * (1 + (call.name == "allreduce")) for call in self.calls if call.rank == rank)


@dataclass(frozen=True)
class Difference:
    """The first difference between outputs and expected outputs."""

    rank: int
    where: str
    text: str


def first_difference(outputs: Sequence[Values], expected: Sequence[Values], tolerance: float) -> Difference | None:
    """The first difference, None where outputs are equal up to the relative tolerance."""
    for rank, (own, right) in enumerate(zip(outputs, expected, strict=True)):
        if own.keys() != right.keys():
            return Difference(rank, "", f"outputs {sorted(own)}, expected {sorted(right)}")
        for name, value in right.items():
            text = None if name == MEASURED else _difference(own[name], value, tolerance)
            if text is not None:
                return Difference(rank, name, text)
    return None


def same_answer(one: Answer, other: Answer, tolerance: float, *, with_traffic: bool = False) -> bool:
    """Whether two answers agree in outputs or in the kind of failure, and if asked in their communication."""
    if one.failure is not None or other.failure is not None:
        return one.failure is not None and other.failure is not None and _same_failure(one.failure, other.failure)
    if len(one.outputs) != len(other.outputs) or first_difference(one.outputs, other.outputs, tolerance) is not None:
        return False
    return not with_traffic or traffic_of(one) == traffic_of(other)


def _same_failure(one: Failure, other: Failure) -> bool:
    """Whether kinds agree, and of exceptions also the messages: the kind alone would blame a known mistake for any."""
    if one.kind != other.kind or not one.kind.startswith("raised "):
        return one.kind == other.kind
    return (
        one.text.partition("\n")[0].strip() == other.text.partition("\n")[0].strip()
    )  # some of NumPy's end in a space


def traffic_of(answer: Answer) -> tuple[object, ...]:
    """The communication of an answer, without the order in which ranks ran, and its measured amounts."""
    measured = [repr(outputs.get(MEASURED)) for outputs in answer.outputs]  # of any type, from a submission
    return (sorted(call[:4] for call in answer.calls), f"{answer.clock:.9e}", measured)


def _difference(own: Any, right: Any, tolerance: float) -> str | None:
    if isinstance(right, np.ndarray):
        return _array_difference(own, right, tolerance)
    if isinstance(right, Mapping):
        if not isinstance(own, Mapping) or own.keys() != right.keys():
            return _plain(own, right)
        pairs = [(own[key], value) for key, value in right.items()]
    elif isinstance(right, (list, tuple)):
        if not isinstance(own, (list, tuple)) or len(own) != len(right):
            return _plain(own, right)
        pairs = list(zip(own, right, strict=True))
    elif isinstance(right, float) and not isinstance(own, bool) and isinstance(own, (int, float)):
        return None if _is_close(own, right, tolerance) else _plain(own, right)
    else:
        return None if type(own) is type(right) and own == right else _plain(own, right)
    if all(_difference(a, b, tolerance) is None for a, b in pairs):
        return None
    return _plain(own, right)


def _is_close(own: float, right: float, tolerance: float) -> bool:
    try:
        return math.isclose(own, right, rel_tol=tolerance, abs_tol=tolerance) or (own != own and right != right)
    except OverflowError:  # an integer beyond all floats
        return False


def _plain(own: Any, right: Any) -> str:
    return f"yours {_short(own)}, expected {_short(right)}"


def _short(value: Any, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + " …"


def _array_difference(own: Any, right: NDArray[Any], tolerance: float) -> str | None:
    if not isinstance(own, np.ndarray):
        return f"yours is of type {type(own).__name__}, expected an array of shape {right.shape}"
    if own.shape != right.shape:
        return f"yours has the shape {own.shape}, expected {right.shape}"
    if own.dtype != right.dtype:
        return f"yours is of {own.dtype}, expected {right.dtype}"
    if right.dtype.kind != "f":
        wrong = own != right
    else:
        # NaN and infinities are equal to themselves: mistakes have them, and have to be recognized.
        limit = tolerance * max(1.0, float(np.max(np.abs(right), initial=0.0, where=np.isfinite(right))))
        with np.errstate(invalid="ignore"):
            wrong = ~((np.abs(own - right) <= limit) | (own == right) | (np.isnan(own) & np.isnan(right)))
    if not wrong.any():
        return None
    index = tuple(int(axis[0]) for axis in np.nonzero(wrong))
    place = f"[{', '.join(map(str, index))}]"
    count = f"; {int(wrong.sum())} of {wrong.size} elements differ" if wrong.size > 1 else ""
    return f"element {place}: yours {own[index]:.10g}, expected {right[index]:.10g}{count}"
