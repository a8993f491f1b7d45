"""Comparison of the settings of all ranks: settings and learning rates must be equal everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

import hybridnn
import hybridnn.datasets
from hybridnn.comm.agreement import broadcast_text, unequal_values
from hybridnn.comm.group import Group
from hybridnn.errors import UnequalSettingError
from hybridnn.nn.learning_rates import SCHEDULES
from hybridnn.training.config import DeviceOptions

REPORTED = 3
"""Largest number of differing settings in a message."""

NAMED_RATES = 2**12
"""Learning rates of an epoch that are compared one by one, after their digests differ."""

SHORT_DIGEST = 12
"""Hexadecimal digits of a digest in a message."""


def require_same_settings(group: Group, settings: Callable[[], Mapping[str, str]]) -> None:
    """Check that settings are equal on all ranks; collective.

    Parameters
    ----------
    settings : callable
        Returns their values by name, as `describe_value` does; not called in a group of one rank.

    Raises
    ------
    UnequalSettingError
        On every rank: names the settings that differ, with ranks and values.
    """
    found = unequal_values(group, settings)
    if found:
        left_out = len(found) - REPORTED
        more = f"; {left_out} more settings differ" if left_out > 0 else ""
        raise UnequalSettingError(found[0].name, "; ".join(item.text for item in found[:REPORTED]) + more)


def require_same_rates(group: Group, steps: Sequence[int], rates: Sequence[float]) -> None:
    """Check that learning rates are equal on all ranks; collective.

    User-defined learning-rate schedules are compared only by their rates.

    Parameters
    ----------
    steps : sequence of int
        Number of earlier updates, for each update of an epoch.
    rates : sequence of float
        Learning rate of each of these updates.

    Raises
    ------
    UnequalSettingError
        On every rank: names the first rate that differs, with ranks and values.
    """

    def digest() -> dict[str, str]:
        return {"learning rates": hashlib.sha256(np.array(rates, np.float64).data).hexdigest()[:SHORT_DIGEST]}

    def named() -> dict[str, str]:
        pairs = list(zip(steps, rates, strict=True))[:NAMED_RATES]
        return {f"learning rate of update {step + 1}": repr(float(rate)) for step, rate in pairs}

    found = unequal_values(group, digest, named)
    if found:
        raise UnequalSettingError(found[0].name, found[0].text)


def describe_value(name: str, value: object) -> dict[str, str]:
    """Texts of a setting and of its nested values, by dotted name.

    Parameters
    ----------
    name : str
        Empty for a mapping of settings by name.
    value : object
        Numbers, strings, and sequences of them are formatted, equal numbers alike whatever their type. A mapping is
        described by its items; a dataclass by its type and fields, except those with ``repr=False``; any other object
        by its type and its public attributes that can be formatted, but not by its ``repr``, which may contain an
        address, nor by its behavior.

    Examples
    --------
    >>> from hybridnn import SGD
    >>> describe_value("optimizer", SGD(lr=0.01))["optimizer.lr"]
    '0.01'
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

    Parameters
    ----------
    node : Group
        The ranks of this node.
    """
    folder = hashlib.sha256(str(Path(hybridnn.__file__).parent).encode()).hexdigest()
    read = broadcast_text(node, source_digest() + folder if node.rank == 0 else "", 0)
    digest = read[:SHORT_DIGEST] if read[SHORT_DIGEST:] == folder else source_digest()
    return {"hybridnn": f"{hybridnn.__version__} with source files {digest}", "numpy": np.__version__}


@cache
def source_digest() -> str:
    """Digest of the source files of this package."""
    sources = hashlib.sha256()
    for package in (hybridnn, hybridnn.datasets):
        folder = Path(package.__path__[0])
        for path in sorted(found for ending in ("py", "cu") for found in folder.rglob(f"*.{ending}")):
            sources.update(f"{path.relative_to(folder)} ".encode() + path.read_bytes())
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


SETTING_OF = {
    "pipelining": "parallel",
    "model_split": "parallel.model_split",
    "overlap": "parallel.overlap",
    "shared_replicas": "parallel.shared_replicas",
    "wire_dtype": "parallel.wire_dtype",
    "distribution": "data.distribution",
    "log_every": "output.log_every",
} | {
    name: f"training.{name}"
    for name in ("batch_size", "evaluate_every", "seed", "dtype", "clip_norm", "shuffle", "epochs")
}
"""Names in a run's settings of those parameters of `Trainer` and `Trainer.fit` that have another name there."""


def trainer_facts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Texts of settings by dotted name, for the comparison between ranks; equal settings have equal texts.

    Parameters
    ----------
    settings : mapping
        Parameters of `Trainer` and `Trainer.fit` by name, not yet validated.
    """
    facts: dict[str, str] = {}
    for key, value in settings.items():
        name = SETTING_OF.get(key, key)
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
