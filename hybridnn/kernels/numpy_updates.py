"""Optimizer updates on flat NumPy arrays, in blocks that stay in the processor's cache.

A plain ``v *= m; v += g; w -= lr * v`` reads and writes whole arrays four times, each time from main memory. In blocks
of some ten thousand elements all but the first access of every block hit the cache, and BLAS adds a multiple in one
pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.kernels.backend import UPDATE_BLOCK, AdamSettings, SGDSettings, StepScalars
from hybridnn.kernels.numpy_kernels import add_scaled

Array = NDArray[Any]


def sgd_update(
    weights: Array,
    gradient: Array,
    velocity: Array | None,
    out: Array,
    scratch: Array,
    settings: SGDSettings,
    scalars: StepScalars,
) -> None:
    """One step of SGD, PyTorch's update with the velocity starting at zero.

    ``g += weight_decay * w; v = momentum * v + (1 - dampening) * g; w -= lr * (g + momentum * v if nesterov else v)``

    Parameters
    ----------
    weights, gradient : ndarray, shape (n,)
        Not changed, unless `out` is `weights`.
    velocity : ndarray, shape (n,), or None
        None if the momentum is 0.
    out : ndarray, shape (n,)
        Receives the new weights; may be `weights`.
    scratch : ndarray, shape (at least min(UPDATE_BLOCK, n),)
        Overwritten.
    scalars : (float,)
        The learning rate.
    """
    lr, momentum, weight_decay = scalars[0], settings.momentum, settings.weight_decay
    for start in range(0, weights.size, UPDATE_BLOCK):
        w = weights[start : start + UPDATE_BLOCK]
        g = gradient[start : start + UPDATE_BLOCK]
        new = out[start : start + UPDATE_BLOCK]
        if weight_decay:
            t = scratch[: w.size]
            np.copyto(t, g)
            add_scaled(t, weight_decay, w)
            g = t
        if out is not weights:
            np.copyto(new, w)
        if velocity is None:
            add_scaled(new, -lr, g)
            continue
        v = velocity[start : start + UPDATE_BLOCK]
        np.multiply(v, momentum, out=v)
        add_scaled(v, 1.0 - settings.dampening, g)
        if settings.nesterov:
            add_scaled(new, -lr, g)
        add_scaled(new, -lr * momentum if settings.nesterov else -lr, v)


def adam_update(
    weights: Array,
    gradient: Array,
    first: Array,
    second: Array,
    out: Array,
    scratch: Array,
    settings: AdamSettings,
    scalars: StepScalars,
) -> None:
    """One step of Adam (Kingma and Ba 2015, Algorithm 1), or of AdamW if the weight decay is decoupled.

    Parameters
    ----------
    weights, gradient, first, second : ndarray, shape (n,)
        The first two are not changed, unless `out` is `weights`; `first` and `second` are the running moments.
    out : ndarray, shape (n,)
        Receives the new weights; may be `weights`.
    scratch : ndarray, shape (2 * min(UPDATE_BLOCK, n),)
        Overwritten.
    scalars : (float, float, float)
        Step size, with the first moment's bias correction; root of the second moment's bias correction; and the factor
        on the weights by decoupled weight decay.
    """
    beta1, beta2 = settings.betas
    step_size, root_correction, keep = scalars
    weight_decay, eps = settings.weight_decay, settings.eps
    half = scratch.size // 2
    for start in range(0, weights.size, UPDATE_BLOCK):
        w = weights[start : start + UPDATE_BLOCK]
        g = gradient[start : start + UPDATE_BLOCK]
        m = first[start : start + UPDATE_BLOCK]
        v = second[start : start + UPDATE_BLOCK]
        t = scratch[: w.size]
        if weight_decay and settings.decoupled:
            w = np.multiply(w, keep, out=out[start : start + UPDATE_BLOCK])
        elif weight_decay:
            decayed = scratch[half : half + w.size]
            np.multiply(w, weight_decay, out=decayed)
            np.add(decayed, g, out=decayed)
            g = decayed
        np.multiply(m, beta1, out=m)
        np.multiply(g, 1.0 - beta1, out=t)
        np.add(m, t, out=m)
        np.multiply(v, beta2, out=v)
        np.multiply(g, g, out=t)
        np.multiply(t, 1.0 - beta2, out=t)
        np.add(v, t, out=v)
        np.sqrt(v, out=t)
        np.divide(t, root_correction, out=t)
        np.add(t, eps, out=t)
        np.divide(m, t, out=t)
        np.multiply(t, step_size, out=t)
        np.subtract(w, t, out=out[start : start + UPDATE_BLOCK])


def sgd_prediction(weights: Array, velocity: Array, out: Array, distance: float) -> None:
    """Weights extrapolated along the velocity, ``out = w - distance * v``.

    Parameters
    ----------
    weights, velocity, out : ndarray, shape (n,)
    distance : float
        Number of steps times the learning rate.
    """
    for start in range(0, weights.size, UPDATE_BLOCK):
        t = out[start : start + UPDATE_BLOCK]
        np.multiply(velocity[start : start + UPDATE_BLOCK], distance, out=t)
        np.subtract(weights[start : start + UPDATE_BLOCK], t, out=t)


def adam_prediction(
    weights: Array, first: Array, second: Array, out: Array, eps: float, corrections: tuple[float, float]
) -> None:
    """Weights extrapolated along Adam's direction of the last update, without weight decay.

    Parameters
    ----------
    weights, first, second, out : ndarray, shape (n,)
        `first` and `second` are the running moments.
    corrections : (float, float)
        The first two scalars of `adam_update`, with the learning rate times the number of steps.
    """
    step_size, root_correction = corrections
    for start in range(0, weights.size, UPDATE_BLOCK):
        t = out[start : start + UPDATE_BLOCK]
        np.sqrt(second[start : start + UPDATE_BLOCK], out=t)
        np.divide(t, root_correction, out=t)
        np.add(t, eps, out=t)
        np.divide(first[start : start + UPDATE_BLOCK], t, out=t)
        np.multiply(t, step_size, out=t)
        np.subtract(weights[start : start + UPDATE_BLOCK], t, out=t)
