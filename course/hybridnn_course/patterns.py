"""Patterns in wrong outputs: a constant ratio, a transposed or shifted array, one rank's block, another dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.utils.text import name_ranks
from hybridnn_course.answers import Difference, Values


def describe_difference(difference: Difference, outputs: Sequence[Values], expected: Sequence[Values]) -> str:
    """The first difference, and a pattern where there is one."""
    name = difference.where
    ranks = len(expected)
    place = f"rank {difference.rank}, {name}" if ranks > 1 and name else name
    text = f"{place}: {difference.text}" if place else difference.text
    pattern = _pattern(name, outputs, expected) if name else ""
    return f"{text}; {pattern}" if pattern else text


def _pattern(name: str, outputs: Sequence[Values], expected: Sequence[Values]) -> str:
    pairs = [(own.get(name), right[name]) for own, right in zip(outputs, expected, strict=True) if name in right]
    arrays = [(own, right) for own, right in pairs if isinstance(own, np.ndarray) and isinstance(right, np.ndarray)]
    if len(arrays) < len(pairs):
        return ""
    wrong = [rank for rank, (own, right) in enumerate(arrays) if not _equal(own, right)]
    if len({own.dtype for own, _ in arrays}) > 1 or any(own.shape != right.shape for own, right in arrays):
        return _transposed(arrays)
    if any(own.dtype != right.dtype for own, right in arrays):
        return "the values are right, the type is not" if not wrong else ""
    ratio = _ratio(arrays)
    if ratio:
        return ratio
    if 0 < len(wrong) < len(arrays):
        return f"only {name_ranks(wrong)} of {len(arrays)} {'is' if len(wrong) == 1 else 'are'} wrong"
    return _shifted(arrays)


def _equal(own: NDArray[Any], right: NDArray[Any]) -> bool:
    return own.shape == right.shape and bool(np.allclose(own, right, rtol=1e-9, atol=1e-12))


def _ratio(arrays: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> str:
    own = np.concatenate([one.ravel() for one, _ in arrays]).astype(float)
    right = np.concatenate([one.ravel() for _, one in arrays]).astype(float)
    if own.size < 2 or not np.isfinite(own).all() or not (right != 0).any():
        return ""
    ratio = float(own @ right / (right @ right))
    if abs(ratio) > 1e-9 and abs(ratio - 1) > 1e-6 and np.allclose(own, ratio * right, rtol=1e-7, atol=1e-12):
        return f"every element is {ratio:.6g} times the expected one"
    return ""


def _transposed(arrays: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> str:
    if all(own.ndim == 2 and _equal(own.T, right) for own, right in arrays):
        return "it is the transpose of what is expected"
    return ""


def _shifted(arrays: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> str:
    if all(own.ndim == 1 and own.size > 2 for own, _ in arrays):
        for shift in (1, -1):
            if all(_equal(np.roll(own, shift), right) for own, right in arrays):
                return "it is right, but shifted by one element"
    return ""
