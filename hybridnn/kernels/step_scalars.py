"""What updates and predictions compute once per step from the learning rate and the number of the step.

A GPU's kernels take these as arguments, or read them from memory that is written before a recorded step is replayed.
"""

from __future__ import annotations

from math import sqrt


def sgd_update(*, lr: float) -> tuple[float]:
    """The learning rate."""
    return (float(lr),)


def adam_update(
    *, step: int, lr: float, betas: tuple[float, float], weight_decay: float, decoupled: bool
) -> tuple[float, float, float]:
    """Step size, root of the second moment's bias correction, and the factor by which decoupled decay keeps a weight.

    Parameters
    ----------
    step : int
        Number of the update, from 1.
    """
    return (*_corrections(step, lr, betas), 1.0 - lr * weight_decay if decoupled else 1.0)


def sgd_prediction(*, distance: float) -> tuple[float]:
    """The distance: number of steps times the learning rate."""
    return (float(distance),)


def adam_prediction(*, step: int, distance: float, betas: tuple[float, float]) -> tuple[float, float]:
    """Step size, and root of the second moment's bias correction after `step` updates."""
    return _corrections(step, distance, betas)


def _corrections(step: int, length: float, betas: tuple[float, float]) -> tuple[float, float]:
    """Kingma and Ba 2015, section 2: the corrections taken out of the moments and into the step's length."""
    return length / (1.0 - betas[0] ** step), sqrt(1.0 - betas[1] ** step)
