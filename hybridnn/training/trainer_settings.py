"""What a trainer refuses before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.checks import require_choice, require_number, require_whole
from hybridnn.errors import SettingError
from hybridnn.kernels.sixteen_bits import WORD_FORMATS
from hybridnn.nn.learning_rates import Constant, Cosine, Step, WarmupLinear
from hybridnn.parallel.distribution import DISTRIBUTIONS
from hybridnn.parallel.layer_split import MODEL_SPLITS
from hybridnn.training.device import DeviceOptions
from hybridnn.training.same_settings import described

__all__ = ["WIRE_DTYPES", "check_trainer_settings", "trainer_facts"]

WIRE_DTYPES = ("same", *WORD_FORMATS)

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


def check_trainer_settings(
    *,
    batch_size: int,
    log_every: int,
    evaluate_every: int,
    seed: int,
    dtype: DTypeLike,
    clip_norm: float | None,
    model_split: str,
    overlap: bool | str,
    shared_replicas: bool | str,
    wire_dtype: str,
    distribution: str,
) -> None:
    """Look at settings of a `Trainer` that can be judged alone; they mean what they do there.

    Raises
    ------
    SettingError
        For the first that is not allowed.
    """
    require_whole("training.batch_size", batch_size, 1)
    require_whole("output.log_every", log_every, 1)
    require_whole("training.evaluate_every", evaluate_every, 1)
    require_whole("training.seed", seed, 0)
    require_choice("training.dtype", getattr(dtype, "__name__", str(dtype)), ("float32", "float64"))
    if clip_norm is not None:
        require_number("training.clip_norm", clip_norm, 0, float("inf"), "a finite number above 0", open_ends="(")
    require_choice("parallel.model_split", model_split, MODEL_SPLITS)
    for name, value in (("overlap", overlap), ("shared_replicas", shared_replicas)):
        if not isinstance(value, bool) and value != "auto":
            raise SettingError(f"parallel.{name}", value, "allowed are 'auto', true and false")
    require_choice("parallel.wire_dtype", wire_dtype, WIRE_DTYPES)
    require_choice("data.distribution", distribution, DISTRIBUTIONS)


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
