"""Digests of samples and weights, to compare the data of the ranks.

A digest of all data would take more than 1 % of an epoch. By default, the digest of the inputs covers evenly spaced
rows including the first and the last, and that of the targets covers more of them. Elements are compared in the
precision of the training and without the sign of zero.
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
"""Rows of the inputs, or of an array of weights, in a digest."""

SAMPLED_TARGETS = 2**16
"""Samples whose targets enter a digest."""

NAMED_TARGETS = 2**12
"""Samples whose targets are compared one by one, after the digests differ."""

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
    """Inputs and targets of the samples `indices`, in blocks; the next block overwrites the arrays.

    Parameters
    ----------
    dtype : dtype
        Of the inputs and of regression targets; labels are int64.
    """
    length = min(BLOCK_ROWS, len(indices))
    x = np.empty((length, rows.features), dtype)
    y = np.empty((length, *rows.targets_shape), dtype if rows.targets_shape else np.int64)
    for start in range(0, len(indices), BLOCK_ROWS):
        block = indices[start : start + BLOCK_ROWS]
        rows.take(block, x[: len(block)], y[: len(block)])
        yield x[: len(block)], y[: len(block)]


def rows_facts(rows: Rows, dtype: Any, *, complete: bool) -> dict[str, str]:
    """Sizes and digests of samples by name, equal for equal samples.

    Parameters
    ----------
    rows : Rows
        Generated samples are described by their specification instead of digests.
    dtype : dtype
        Of the training.
    complete : bool
        Compute the digests of all samples instead of evenly spaced ones.
    """
    if isinstance(rows, SyntheticRows):
        return _sizes(rows) | {"generated data": f"{rows.spec} from sample {rows.start}"}
    indices = np.arange(rows.samples) if complete else _evenly_spaced(rows.samples, SAMPLED_ROWS)
    inputs, targets = hashlib.sha256(), hashlib.sha256()
    for x, y in sample_blocks(rows, indices, dtype):
        inputs.update(_without_sign_of_zero(x).data)
        targets.update(_without_sign_of_zero(y).data)
    if isinstance(rows, ArrayRows) and not complete:  # targets in memory are cheap: add more of them
        targets.update(_targets(rows, dtype, _evenly_spaced(rows.samples, SAMPLED_TARGETS)).data)
    return _sizes(rows) | {
        "digest of inputs": inputs.hexdigest()[:SHOWN_DIGITS],
        "digest of targets": targets.hexdigest()[:SHOWN_DIGITS],
    }


def row_details(rows: Rows, dtype: Any) -> dict[str, str]:
    """Sizes, then inputs and targets of the samples in the default digests one by one, to name the first difference."""
    details = _sizes(rows)
    if isinstance(rows, SyntheticRows):
        return details
    indices = _evenly_spaced(rows.samples, SAMPLED_ROWS)
    for x, y in sample_blocks(rows, indices, dtype):
        arrays = (indices, _without_sign_of_zero(x), _without_sign_of_zero(y))
        for number, inputs, target in zip(*arrays, strict=True):
            details[f"inputs of sample {number}"] = _format_array(inputs)
            details[f"target of sample {number}"] = str(target)
    if isinstance(rows, ArrayRows):
        indices = _evenly_spaced(rows.samples, NAMED_TARGETS)
        for number, target in zip(indices, _targets(rows, dtype, indices), strict=True):
            details[f"target of sample {number}"] = str(target)
    return details


def array_facts(arrays: Mapping[str, NDArray[Any]], dtype: Any, *, complete: bool) -> dict[str, str]:
    """Shapes and digests of arrays by name, in precision `dtype`; of all rows (`complete`), or evenly spaced ones."""
    facts = {}
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        rows = array if complete or array.ndim == 0 else array[_evenly_spaced(len(array), SAMPLED_ROWS)]
        elements = _without_sign_of_zero(np.array(rows, dtype, order="C"))
        facts[name] = f"shape {array.shape} with digest {digest_of(elements).hex()[:SHOWN_DIGITS]}"
    return facts


def require_same_data(
    group: Group,
    what: str,
    facts: Callable[[], Mapping[str, str]],
    details: Callable[[], Mapping[str, str]] = dict,
    advice: str = "",
) -> None:
    """Check that data are equal on all ranks; collective.

    Parameters
    ----------
    what : str
        Name of the data in the message.
    facts, details : callable
        As for `unequal_values`.
    advice : str
        End of the message.

    Raises
    ------
    DataError
        On every rank: names the first difference, with ranks and values.
    """
    found = unequal_values(group, facts, details)
    if found:
        raise DataError(f"{what}: {found[0].text}; it must be the same on every rank{advice}")


def _sizes(rows: Rows) -> dict[str, str]:
    target = f"{rows.targets_shape[0]} numbers" if rows.targets_shape else "a label"
    return {"number of samples": f"{rows.samples}", "features": f"{rows.features}", "target of a sample": target}


def _evenly_spaced(count: int, limit: int) -> NDArray[np.int64]:
    """At most `limit` evenly spaced indices below `count`, including the first and the last."""
    if count <= limit:
        return np.arange(count)
    return np.arange(limit) * (count - 1) // (limit - 1)


def _targets(rows: ArrayRows, dtype: Any, indices: NDArray[np.int64]) -> NDArray[Any]:
    return _without_sign_of_zero(rows.y[indices].astype(dtype if rows.targets_shape else np.int64, copy=False))


def _without_sign_of_zero(array: NDArray[Any]) -> NDArray[Any]:
    """Replace -0.0 by 0.0 in place."""
    array += 0
    return array


def _format_array(array: NDArray[Any]) -> str:
    """The first and last elements of an array, and its digest."""
    formats: Any = {"float_kind": "{:g}".format}
    ends = np.array2string(
        array.ravel(), threshold=4, edgeitems=2, max_line_width=1000, separator=", ", formatter=formats
    )
    return f"{ends} with digest {digest_of(array).hex()[:SHOWN_DIGITS]}"
