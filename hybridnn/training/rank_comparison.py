"""Comparison of ranks: settings, learning rates, samples and weights must be equal everywhere.

A digest of all data would take more than 1 % of an epoch. By default, the digest of the inputs covers evenly spaced
rows including the first and the last, and that of the targets covers more of them. Elements are compared in the
precision of the training and without the sign of zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn._version import __version__
from hybridnn.comm.agreement import broadcast_text, unequal_values
from hybridnn.comm.group import Group
from hybridnn.data import ArrayRows, Rows, SyntheticRows
from hybridnn.data.rows import dense, is_sparse
from hybridnn.errors import DataError, UnequalSettingError
from hybridnn.nn.learning_rates import SCHEDULES
from hybridnn.training.config import SETTING_NAMES, DeviceOptions

PACKAGE = Path(__file__).parents[1]
REPORTED = 3  # largest number of differing settings in a message
NAMED_RATES = 2**12  # learning rates of an epoch that are compared one by one, after their digests differ
SHORT_DIGEST = 12  # hexadecimal digits of a digest of settings in a message
SAMPLED_ROWS = 64  # rows of the inputs, or of an array of weights, in a digest
SAMPLED_TARGETS = 2**16  # samples whose targets enter a digest
NAMED_TARGETS = 2**12  # samples whose targets are compared one by one, after the digests differ

BLOCK_ROWS = 4096
SHOWN_DIGITS = 16  # hexadecimal digits of a digest of data in a message


def require_same_settings(group: Group, settings: Callable[[], Mapping[str, str]]) -> None:
    """Check that settings, texts by name as of `describe_value`, are equal on all ranks; collective.

    Raises `UnequalSettingError` on every rank; it names the settings that differ, with ranks and values.
    """
    found = unequal_values(group, settings)
    if found:
        left_out = len(found) - REPORTED
        more = f"; {left_out} more settings differ" if left_out > 0 else ""
        raise UnequalSettingError(found[0].name, "; ".join(item.text for item in found[:REPORTED]) + more)


def require_same_rates(group: Group, steps: Sequence[int], rates: Sequence[float]) -> None:
    """Check that learning rates are equal on all ranks, the only comparison of schedules of users; collective.

    Raises `UnequalSettingError` on every rank; it names the first rate that differs, with ranks and values.
    """

    def named() -> dict[str, str]:
        pairs = list(zip(steps, rates, strict=True))[:NAMED_RATES]
        return {f"learning rate of update {step + 1}": repr(float(rate)) for step, rate in pairs}

    digest = digest_of(np.array(rates, np.float64)).hex()
    found = unequal_values(group, lambda: {"learning rates": digest[:SHORT_DIGEST]}, named)
    if found:
        raise UnequalSettingError(found[0].name, found[0].text)


def describe_value(name: str, value: object) -> dict[str, str]:
    """Texts of a setting and of its nested values, by dotted name; `name` is empty for a mapping of settings.

    Equal numbers have equal texts whatever their type. A dataclass is described by its type and fields, except those
    with ``repr=False``; another object by its type and its public attributes that can be formatted, but not by its
    ``repr``, which may contain an address, nor by its behavior.
    """
    text = _format_value(value)
    if text is not None:
        return {name: text}
    if isinstance(value, Mapping):
        start = f"{name}." if name else ""
        return {key: text for item in value for key, text in describe_value(f"{start}{item}", value[item]).items()}
    found = {name: type(value).__qualname__}
    if is_dataclass(value):
        for field in fields(value):
            if field.repr:
                found |= describe_value(f"{name}.{field.name}", getattr(value, field.name))
        return found
    attributes = {key: _format_value(item) for key, item in getattr(value, "__dict__", {}).items() if key[0] != "_"}
    return found | {f"{name}.{key}": text for key, text in attributes.items() if text is not None}


def software(node: Group) -> dict[str, str]:
    """Versions of this package, with a digest of its source files, and of NumPy; collective.

    NumPy draws the order of the samples and the initial weights, which may change between its versions. The digest
    detects an installation with changed files. One rank of a node computes it, which takes about 0.1 s, for all ranks
    that run the package in the same folder.
    """
    folder = hashlib.sha256(str(PACKAGE).encode()).hexdigest()
    read = broadcast_text(node, source_digest() + folder if node.rank == 0 else "", 0)
    digest = read[:SHORT_DIGEST] if read[SHORT_DIGEST:] == folder else source_digest()
    return {"hybridnn": f"{__version__} with source files {digest}", "numpy": np.__version__}


@cache
def source_digest() -> str:
    """Digest of the source files of this package."""
    sources = hashlib.sha256()
    for path in sorted(found for ending in ("py", "cu") for found in PACKAGE.rglob(f"*.{ending}")):
        sources.update(f"{path.relative_to(PACKAGE)} ".encode() + path.read_bytes())
    return sources.hexdigest()[:SHORT_DIGEST]


def _format_value(value: object) -> str | None:
    """Text of a scalar, a string, or a sequence of such values; None for other values."""
    if value is None:
        return "none"
    if isinstance(value, (str, Path)):
        return repr(str(value))
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if isinstance(value, (int, Integral)):  # int and float are the usual types, and faster to check
        return str(int(value))
    if isinstance(value, (float, Real)):
        number = float(value)
        return str(int(number)) if number.is_integer() else repr(number)
    if isinstance(value, np.dtype):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        texts = [_format_value(item) for item in value]
        return None if None in texts else f"[{', '.join(filter(None, texts))}]"
    return None


def trainer_facts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Texts of settings by dotted name, for the comparison between ranks; equal settings have equal texts."""
    facts: dict[str, str] = {}
    for key, value in settings.items():
        name = SETTING_NAMES.get(key, "training.epochs" if key == "epochs" else key)
        if key == "schedule" and not isinstance(value, SCHEDULES):  # of unknown behavior: only its rates are compared
            facts[name] = type(value).__qualname__
        elif key == "dtype":
            facts[name] = _dtype_name(value)
        elif key == "device" and isinstance(value, str):
            facts |= describe_value(name, DeviceOptions()) | describe_value("device.name", value)
        else:
            facts |= describe_value(name, value)
        if key == "optimizer":
            facts |= describe_value("optimizer.lr", value.lr)
    return facts


def _dtype_name(dtype: DTypeLike) -> str:
    try:
        return np.dtype(dtype).name
    except TypeError:  # refused later, on all ranks
        return repr(dtype)


# -- samples and weights -----------------------------------------------------------------------------------------------


def digest_of(*arrays: NDArray[Any]) -> bytes:
    """SHA-256 of the dtypes, shapes and contents of contiguous arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape} ".encode())
        digest.update(array.data)
    return digest.digest()


def sample_blocks(rows: Rows, indices: NDArray[np.int64], dtype: Any) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Inputs and targets of samples in blocks; the next overwrites the arrays. `dtype` is not that of labels."""
    length = min(BLOCK_ROWS, len(indices))
    x = np.empty((length, rows.features), dtype)
    y = np.empty((length, *rows.targets_shape), dtype if rows.targets_shape else np.int64)
    for start in range(0, len(indices), BLOCK_ROWS):
        block = indices[start : start + BLOCK_ROWS]
        rows.take(block, x[: len(block)], y[: len(block)])
        yield x[: len(block)], y[: len(block)]


def rows_facts(rows: Rows, dtype: Any, *, complete: bool) -> dict[str, str]:
    """Sizes and digests of samples by name; of generated samples their specification."""
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


def array_facts(arrays: Mapping[str, NDArray[Any]], dtype: Any) -> dict[str, str]:
    """Shapes, and digests of evenly spaced rows, of arrays by name, in precision `dtype`."""
    facts = {}
    for name in sorted(arrays):
        array = arrays[name] if is_sparse(arrays[name]) else np.asarray(arrays[name])
        rows = array if array.ndim == 0 else array[_evenly_spaced(array.shape[0], SAMPLED_ROWS)]
        elements = _without_sign_of_zero(np.array(dense(rows), dtype, order="C"))
        facts[name] = f"shape {array.shape} with digest {digest_of(elements).hex()[:SHOWN_DIGITS]}"
    return facts


def require_same_data(
    group: Group,
    what: str,
    facts: Callable[[], Mapping[str, str]],
    details: Callable[[], Mapping[str, str]] = dict,
    advice: str = "",
) -> None:
    """Check that data are equal on all ranks, by `facts` and `details` as of `unequal_values`; collective.

    Raises `DataError` on every rank; it names the first difference, with ranks and values.
    """
    found = unequal_values(group, facts, details)
    if found:
        raise DataError(f"{what}: {found[0].text}; it must be the same on every rank{advice}")


def require_same_rows(
    group: Group,
    what: str,
    rows: Rows,
    dtype: Any,
    *,
    complete: bool,
    about: Mapping[str, str] = MappingProxyType({}),
    advice: str = "",
) -> None:
    """As `require_same_data`, for samples, all of them if `complete`, and for facts `about` them."""
    facts = partial(rows_facts, rows, dtype, complete=complete)
    require_same_data(group, what, lambda: {**about, **facts()}, partial(row_details, rows, dtype), advice)


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
