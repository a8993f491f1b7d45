"""Digests of samples and weights, by which ranks find out whether they hold the same.

A digest of everything would take longer than 1 % of an epoch. So all targets are looked at, but of the inputs evenly
spaced rows alone, the first and the last among them, unless everything is asked for. Numbers are compared as they are
trained on: in the precision of the training, and without the sign of zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.agreement import unequal_values
from hybridnn.comm.group import Group
from hybridnn.datasets import ArrayRows, Rows, SyntheticRows
from hybridnn.errors import DataError

SAMPLED_ROWS = 64
"""Rows of inputs, or of an array of weights, that are looked at."""

SAMPLED_TARGETS = 2**16
"""Samples whose targets are looked at."""

NAMED_TARGETS = 2**12
"""Samples among which the first with another target is named."""

BLOCK_ROWS = 4096

SHOWN_DIGITS = 16
"""Hexadecimal digits of a digest."""


def digest_of(*arrays: NDArray[Any]) -> bytes:
    """SHA-256 of the dtypes, shapes and contents of contiguous arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape} ".encode())
        digest.update(array.data)
    return digest.digest()


def sample_blocks(rows: Rows, indices: NDArray[np.int64], dtype: Any) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Inputs and targets of some samples, in blocks whose memory is used again.

    Parameters
    ----------
    rows : Rows
    indices : ndarray of int64
    dtype : dtype
        Of inputs, and of targets that are numbers; labels are int64.
    """
    most = min(BLOCK_ROWS, len(indices))
    x = np.empty((most, rows.features), dtype)
    y = np.empty((most, *rows.targets_shape), dtype if rows.targets_shape else np.int64)
    for start in range(0, len(indices), BLOCK_ROWS):
        block = indices[start : start + BLOCK_ROWS]
        rows.take(block, x[: len(block)], y[: len(block)])
        yield x[: len(block)], y[: len(block)]


def rows_facts(rows: Rows, dtype: Any, *, whole: bool) -> dict[str, str]:
    """What is the same for equal samples: their sizes, and digests of what they hold.

    Parameters
    ----------
    rows : Rows
        Generated samples are described by what they are generated from.
    dtype : dtype
        Of the training.
    whole : bool
        Look at everything.
    """
    if isinstance(rows, SyntheticRows):
        return _sizes(rows) | {"generated data": f"{rows.spec} from sample {rows.start}"}
    looked_at = np.arange(rows.samples) if whole else _spaced(rows.samples, SAMPLED_ROWS)
    inputs, targets = hashlib.sha256(), hashlib.sha256()
    for x, y in sample_blocks(rows, looked_at, dtype):
        inputs.update(_without_sign_of_zero(x).data)
        targets.update(_without_sign_of_zero(y).data)
    if isinstance(rows, ArrayRows) and not whole:  # nothing has to be computed for more of them
        targets.update(_targets(rows, dtype, _spaced(rows.samples, SAMPLED_TARGETS)).data)
    return _sizes(rows) | {
        "digest of inputs": inputs.hexdigest()[:SHOWN_DIGITS],
        "digest of targets": targets.hexdigest()[:SHOWN_DIGITS],
    }


def row_details(rows: Rows, dtype: Any) -> dict[str, str]:
    """What each of the samples holds that are always looked at, behind their sizes, to name the first that differs."""
    details = _sizes(rows)
    if isinstance(rows, SyntheticRows):
        return details
    looked_at = _spaced(rows.samples, SAMPLED_ROWS)
    for x, y in sample_blocks(rows, looked_at, dtype):
        arrays = (looked_at, _without_sign_of_zero(x), _without_sign_of_zero(y))
        for number, one_x, one_y in zip(*arrays, strict=True):
            details[f"inputs of sample {number}"] = _shown(one_x)
            details[f"target of sample {number}"] = str(one_y)
    if isinstance(rows, ArrayRows):
        looked_at = _spaced(rows.samples, NAMED_TARGETS)
        for number, target in zip(looked_at, _targets(rows, dtype, looked_at), strict=True):
            details[f"target of sample {number}"] = str(target)
    return details


def array_facts(arrays: Mapping[str, NDArray[Any]], dtype: Any, *, whole: bool) -> dict[str, str]:
    """Digests of arrays that are taken in the precision `dtype`, by name; of some rows, or `whole`."""
    facts = {}
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        rows = array if whole or array.ndim == 0 else array[_spaced(len(array), SAMPLED_ROWS)]
        taken = _without_sign_of_zero(np.array(rows, dtype, order="C"))
        facts[name] = f"shape {array.shape} with digest {digest_of(taken).hex()[:SHOWN_DIGITS]}"
    return facts


def require_same_data(
    group: Group,
    what: str,
    facts: Callable[[], Mapping[str, str]],
    details: Callable[[], Mapping[str, str]] = dict,
    advice: str = "",
) -> None:
    """Refuse data that are not the same on all ranks; collective.

    Parameters
    ----------
    group : Group
    what : str
        Named in the message.
    facts, details : callable
        As for `unequal_values`.
    advice : str
        End of the message.

    Raises
    ------
    DataError
        On every rank: names what differs first, with ranks and values.
    """
    found = unequal_values(group, facts, details)
    if found:
        raise DataError(f"{what}: {found[0].text}; it must be the same on every rank{advice}")


def _sizes(rows: Rows) -> dict[str, str]:
    target = f"{rows.targets_shape[0]} numbers" if rows.targets_shape else "a label"
    return {"number of samples": f"{rows.samples}", "features": f"{rows.features}", "target of a sample": target}


def _spaced(count: int, most: int) -> NDArray[np.int64]:
    """Numbers below `count`: all of them, or `most` at equal distances, the first and the last among them."""
    if count <= most:
        return np.arange(count)
    return np.arange(most) * (count - 1) // (most - 1)


def _targets(rows: ArrayRows, dtype: Any, indices: NDArray[np.int64]) -> NDArray[Any]:
    return _without_sign_of_zero(rows.y[indices].astype(dtype if rows.targets_shape else np.int64, copy=False))


def _without_sign_of_zero(array: NDArray[Any]) -> NDArray[Any]:
    """The array, in place, with 0.0 for -0.0."""
    array += 0
    return array


def _shown(array: NDArray[Any]) -> str:
    """The numbers at both ends of an array, and its digest."""
    formats: Any = {"float_kind": "{:g}".format}
    ends = np.array2string(
        array.ravel(), threshold=4, edgeitems=2, max_line_width=1000, separator=", ", formatter=formats
    )
    return f"{ends} with digest {digest_of(array).hex()[:SHOWN_DIGITS]}"
