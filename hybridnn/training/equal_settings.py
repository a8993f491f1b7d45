"""Comparison of the settings of all ranks, which must train the same network in the same way."""

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
from hybridnn.nn.learning_rates import Constant, Cosine, Step, WarmupLinear
from hybridnn.training.device import DeviceOptions

REPORTED = 3
"""Settings that a message names where more differ."""

NAMED_RATES = 2**12
"""First learning rates of an epoch among which one that differs is named."""

SHORT_DIGEST = 12
"""Hexadecimal digits of a digest that is shown to people."""


def require_same_settings(group: Group, settings: Callable[[], Mapping[str, str]]) -> None:
    """Refuse settings that are not the same on all ranks; collective.

    Parameters
    ----------
    group : Group
    settings : callable
        Makes their values by name, as `described` does; not called on one rank alone.

    Raises
    ------
    UnequalSettingError
        On every rank: names those that differ, with ranks and values.
    """
    found = unequal_values(group, settings)
    if found:
        left_out = len(found) - REPORTED
        more = f"; {left_out} more settings differ" if left_out > 0 else ""
        raise UnequalSettingError(found[0].name, "; ".join(one.text for one in found[:REPORTED]) + more)


def require_same_rates(group: Group, steps: Sequence[int], rates: Sequence[float]) -> None:
    """Refuse learning rates that are not the same on all ranks; collective.

    Parameters
    ----------
    group : Group
    steps : sequence of int
        Updates done before each of an epoch.
    rates : sequence of float
        Of each of these updates, which is all that is compared of a schedule that a script brings along.

    Raises
    ------
    UnequalSettingError
        On every rank: names the first that differs, with ranks and values.
    """

    def digest() -> dict[str, str]:
        return {"learning rates": hashlib.sha256(np.array(rates, np.float64).data).hexdigest()[:SHORT_DIGEST]}

    def named() -> dict[str, str]:
        pairs = list(zip(steps, rates, strict=True))[:NAMED_RATES]
        return {f"learning rate of update {step + 1}": repr(float(rate)) for step, rate in pairs}

    found = unequal_values(group, digest, named)
    if found:
        raise UnequalSettingError(found[0].name, found[0].text)


def described(name: str, value: object) -> dict[str, str]:
    """Values by dotted name of a setting and of all that it consists of.

    Parameters
    ----------
    name : str
        Empty for a mapping of settings by name.
    value : object
        Numbers, texts, and sequences of them are written out, numbers alike whatever their type. A mapping is described
        by its items, a dataclass by its type and fields, except those that its ``repr`` leaves out, any other object
        by its type and by those of its attributes that can be written out and whose names do not begin with an
        underscore: neither its ``repr``, which may be an address, nor what it computes.

    Examples
    --------
    >>> from hybridnn import SGD
    >>> described("optimizer", SGD(lr=0.01))["optimizer.lr"]
    '0.01'
    """
    text = _written_out(value)
    if text is not None:
        return {name: text}
    if isinstance(value, Mapping):
        start = f"{name}." if name else ""
        return {key: text for item in value for key, text in described(f"{start}{item}", value[item]).items()}
    found = {name: type(value).__qualname__}
    if is_dataclass(value):
        for field in fields(value):
            if field.repr:
                found |= described(f"{name}.{field.name}", getattr(value, field.name))
        return found
    attributes = {key: _written_out(one) for key, one in getattr(value, "__dict__", {}).items() if key[0] != "_"}
    return found | {f"{name}.{key}": text for key, text in attributes.items() if text is not None}


def software(node: Group) -> dict[str, str]:
    """Versions of what decides on the training: this package, a digest of its source files, and NumPy; collective.

    NumPy draws the order of the samples and the initial weights, as it may do otherwise in another version. The digest
    finds an installation with changed files. One rank of a node reads them once, which takes about a tenth of a second,
    for all that run the package in the same folder.

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


def _written_out(value: object) -> str | None:
    """Text of a value that has no parts of its own, or is a sequence of such; None of any other."""
    if value is None:
        return "none"
    if isinstance(value, (str, Path)):
        return repr(str(value))
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if isinstance(value, (int, Integral)):  # the first of each is the usual one, and found faster
        return str(int(value))
    if isinstance(value, (float, Real)):
        number = float(value)
        return str(int(number)) if number.is_integer() else repr(number)
    if isinstance(value, np.dtype):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        texts = [_written_out(item) for item in value]
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
"""What a parameter of `Trainer`, or of its `fit`, is called in the settings of a run, where that is another name."""

COMPARED_SCHEDULES = Constant, Cosine, Step, WarmupLinear
"""Learning-rate schedules that are the same where their attributes are; others are compared by their rates alone."""


def trainer_facts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Values of settings by dotted name, to compare them between ranks; equal settings have equal texts.

    Parameters
    ----------
    settings : mapping
        Parameters of `Trainer` and of its `fit` by name, allowed or not.
    """
    facts: dict[str, str] = {}
    for key, value in settings.items():
        name = SETTING_OF.get(key, key)
        if key == "schedule" and not isinstance(value, COMPARED_SCHEDULES):
            facts[name] = type(value).__qualname__
        elif key == "dtype":
            facts[name] = _dtype_name(value)
        else:
            facts |= described(name, DeviceOptions(value) if key == "device" and isinstance(value, str) else value)
        if key == "optimizer":
            facts |= described("optimizer.lr", value.lr)
    return facts


def _dtype_name(dtype: DTypeLike) -> str:
    try:
        return np.dtype(dtype).name
    except TypeError:  # refused later, on all ranks alike
        return repr(dtype)
