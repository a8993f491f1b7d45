"""What a trainer refuses before it begins."""

from __future__ import annotations

from typing import Any

from numpy.typing import DTypeLike

from hybridnn.checks import require_choice, require_number, require_whole
from hybridnn.comm.agreement import same_text_on_all
from hybridnn.comm.grid import ProcessGrid
from hybridnn.errors import SettingError
from hybridnn.kernels.sixteen_bits import WORD_FORMATS
from hybridnn.parallel.distribution import DISTRIBUTIONS
from hybridnn.parallel.layer_split import MODEL_SPLITS

__all__ = ["WIRE_DTYPES", "check_trainer_settings", "require_same_settings"]

WIRE_DTYPES = ("same", *WORD_FORMATS)


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
    stall_seconds: float,
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
    require_number("output.stall_seconds", stall_seconds, 0, float("inf"), "a finite number, 0 or more")


def require_same_settings(grid: ProcessGrid, *settings: Any) -> None:
    """Refuse settings that are not written alike on all ranks; collective.

    Raises
    ------
    SettingError
        On every rank.
    """
    if not same_text_on_all(grid.world, repr(settings)):
        raise SettingError("settings of this rank", settings, "the same on every rank")
