"""Optimizer updates on flat NumPy arrays, in blocks that stay in the processor's cache.

A plain ``v *= m; v += g; w -= lr * v`` walks over the arrays four times and each walk goes to memory. In blocks of some
ten thousand numbers all but the first touch of every block hit the cache, and BLAS adds a multiple in one walk.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.kernels.numpy_kernels import add_scaled

Array = NDArray[Any]

BLOCK = 1 << 16
"""Numbers per block: measured fastest between 2^12 and whole arrays on a core with 512 KiB of second-level cache."""


def sgd_update(
    weights: Array,
    gradient: Array,
    velocity: Array | None,
    scratch: Array,
    *,
    lr: float,
    momentum: float,
    dampening: float,
    nesterov: bool,
    weight_decay: float,
    out: Array,
) -> None:
    """One step of SGD, PyTorch's update with the velocity starting at zero.

    ``g += weight_decay * w; v = momentum * v + (1 - dampening) * g; w -= lr * (g + momentum * v if nesterov else v)``

    Parameters
    ----------
    weights, gradient : ndarray, shape (n,)
        Not changed, unless `out` is `weights`.
    out : ndarray, shape (n,)
        Takes the new weights; may be `weights`.
    velocity : ndarray, shape (n,), or None
        None where momentum is 0.
    scratch : ndarray, shape (at least min(BLOCK, n),)
        Overwritten.
    """
    for start in range(0, weights.size, BLOCK):
        w = weights[start : start + BLOCK]
        g = gradient[start : start + BLOCK]
        new = out[start : start + BLOCK]
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
        v = velocity[start : start + BLOCK]
        np.multiply(v, momentum, out=v)
        add_scaled(v, 1.0 - dampening, g)
        if nesterov:
            add_scaled(new, -lr, g)
        add_scaled(new, -lr * momentum if nesterov else -lr, v)


def adam_update(
    weights: Array,
    gradient: Array,
    first: Array,
    second: Array,
    scratch: Array,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
    out: Array,
) -> None:
    """One step of Adam (Kingma and Ba 2015, Algorithm 1), or of AdamW where the decay is decoupled.

    Parameters
    ----------
    weights, gradient, first, second : ndarray, shape (n,)
        The first two are not changed, unless `out` is `weights`; `first` and `second` are the running moments.
    out : ndarray, shape (n,)
        Takes the new weights; may be `weights`.
    scratch : ndarray, shape (2 * min(BLOCK, n),)
        Overwritten.
    step : int
        Number of this update, from 1, for the bias correction.
    decoupled : bool
        True: AdamW, ``w *= 1 - lr * weight_decay`` before the step; False: the decay joins the gradient.
    """
    beta1, beta2 = betas
    step_size = lr / (1.0 - beta1**step)
    root_correction = sqrt(1.0 - beta2**step)
    half = scratch.size // 2
    for start in range(0, weights.size, BLOCK):
        w = weights[start : start + BLOCK]
        g = gradient[start : start + BLOCK]
        m = first[start : start + BLOCK]
        v = second[start : start + BLOCK]
        t = scratch[: w.size]
        if weight_decay and decoupled:
            w = np.multiply(w, 1.0 - lr * weight_decay, out=out[start : start + BLOCK])
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
        np.subtract(w, t, out=out[start : start + BLOCK])


def sgd_prediction(weights: Array, velocity: Array, out: Array, *, distance: float) -> None:
    """Weights after steps along the velocity, ``out = w - distance * v``.

    Parameters
    ----------
    weights, velocity, out : ndarray, shape (n,)
    distance : float
        Number of steps times the learning rate.
    """
    for start in range(0, weights.size, BLOCK):
        t = out[start : start + BLOCK]
        np.multiply(velocity[start : start + BLOCK], distance, out=t)
        np.subtract(weights[start : start + BLOCK], t, out=t)


def adam_prediction(
    weights: Array,
    first: Array,
    second: Array,
    out: Array,
    *,
    step: int,
    distance: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Weights after steps along Adam's direction of the last update, without weight decay.

    Parameters
    ----------
    weights, first, second, out : ndarray, shape (n,)
        `first` and `second` are the running moments.
    step : int
        Updates done, from 1, for the bias correction.
    distance : float
        Number of steps times the learning rate.
    """
    beta1, beta2 = betas
    step_size = distance / (1.0 - beta1**step)
    root_correction = sqrt(1.0 - beta2**step)
    for start in range(0, weights.size, BLOCK):
        t = out[start : start + BLOCK]
        np.sqrt(second[start : start + BLOCK], out=t)
        np.divide(t, root_correction, out=t)
        np.add(t, eps, out=t)
        np.divide(first[start : start + BLOCK], t, out=t)
        np.multiply(t, step_size, out=t)
        np.subtract(weights[start : start + BLOCK], t, out=t)
