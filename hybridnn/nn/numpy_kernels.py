"""Arithmetic on NumPy arrays: products and losses, optimizer updates, and `NUMPY`, which has them all.

Every function writes into arrays that it is given and allocates nothing large. float32 stays float32: Python scalars do
not promote. Updates run in blocks that stay in the processor's cache: a plain ``v *= m; v += g; w -= lr * v`` reads and
writes whole arrays four times, each time from main memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from math import isfinite, sqrt

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.nn.activations import ACTIVATIONS
from hybridnn.nn.backend import UPDATE_BLOCK, AdamSettings, HostArray, Kernels, SGDSettings, StepScalars
from hybridnn.nn.blas import daxpy, dgemm, dgemv, saxpy, sgemm, sgemv

NORM_BLOCK = 1 << 16


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> HostArray:
    """An uninitialized array of the device."""
    return np.empty(shape, dtype)


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> HostArray:
    """An array of zeros of the device."""
    return np.zeros(shape, dtype)


def matmul(a: HostArray, b: HostArray, out: HostArray) -> None:
    """``out = a @ b``."""
    np.matmul(a, b, out=out)


def matmul_transposed(a: HostArray, b: HostArray, out: HostArray, workspace: HostArray | None) -> None:
    """``out = a.T @ b``.

    Parameters
    ----------
    a : ndarray, shape (k, m)
    b : ndarray, shape (k, n)
    out : ndarray, shape (m, n)
    workspace : ndarray, shape (n, m), or None
        Overwritten. With it the product is computed as ``(b.T @ a).T``, which is faster for small n: with OpenBLAS a
        whole training step of 16-4x1024-2 and 3072-8x1024-10 in microbatches of 16 and 32 samples gains 4 to 5 %.
    """
    if workspace is None:
        np.matmul(a.T, b, out=out)
        return
    np.matmul(b.T, a, out=workspace)
    np.copyto(out, workspace.T)


def add_product(a: HostArray, b: HostArray, out: HostArray, factor: float, keep: float) -> None:
    """``out = keep * out + factor * a @ b`` by one call of BLAS ``gemm``, whose ``beta`` NumPy does not offer.

    Parameters
    ----------
    a : ndarray, shape (m, k)
    b : ndarray, shape (k, n)
    out : ndarray, shape (m, n)
        Of the dtype of `a` and `b`, float32 or float64; every row is contiguous.
    """
    gemm = sgemm if out.dtype == np.float32 else dgemm
    # BLAS expects column-major matrices: it gets the transposes, out.T = b.T @ a.T, or a flag to transpose.
    left, transpose_left = (b.T, 0) if b.flags.c_contiguous else (b, 1)
    right, transpose_right = (a.T, 0) if a.flags.c_contiguous else (a, 1)
    gemm(factor, left, right, keep, out.T, transpose_left, transpose_right, 1)


def add_row_sums(dz: HostArray, ones: HostArray, out: HostArray, factor: float, keep: float) -> None:
    """``out = keep * out + factor * dz @ ones``: the row sums of `dz`, shape (rows, n >= 1), added to `out`."""
    gemv = sgemv if out.dtype == np.float32 else dgemv
    matrix, transpose = (dz.T, 1) if dz.flags.c_contiguous else (dz, 0)
    gemv(factor, matrix, ones, keep, out, 0, 1, 0, 1, transpose, 1)


def add_scaled(y: HostArray, factor: float, x: HostArray) -> None:
    """``y += factor * x`` for contiguous arrays, in one pass where NumPy takes two."""
    if y.size:
        (saxpy if y.dtype == np.float32 else daxpy)(x.reshape(-1), y.reshape(-1), a=factor)


def add_bias(z: HostArray, bias: HostArray) -> None:
    """Add `bias`, shape (rows, 1), to every column of `z`, shape (rows, n)."""
    np.add(z, bias, out=z)


def add(a: HostArray, b: HostArray, out: HostArray) -> None:
    """``out = a + b``; `out` may be `a` or `b`."""
    np.add(a, b, out=out)


def copy(source: HostArray, out: HostArray) -> None:
    """``out = source``."""
    np.copyto(out, source)


def row_sums(dz: HostArray, ones: HostArray, out: HostArray) -> None:
    """Sum of every row of `dz`, shape (rows, n), into `out`, shape (rows,).

    A product with a vector of ones: several times faster than ``np.sum`` over the contiguous axis.
    """
    np.dot(dz, ones, out=out)


def mean_squared_error(
    outputs: HostArray, targets: HostArray, scale: float, gradient: HostArray, loss: HostArray
) -> None:
    """Squared error, averaged over the outputs of a sample and summed over samples.

    Parameters
    ----------
    outputs, targets : ndarray, shape (outputs, n)
    scale : float
        1 / samples of the global minibatch.
    gradient : ndarray, shape (outputs, n)
        Receives `scale` times the gradient of the sum of the samples' losses.
    loss : ndarray, shape (1,)
        Receives the sum of the samples' losses.
    """
    np.subtract(outputs, targets, out=gradient)
    flat = gradient.ravel(order="K")  # a view, whichever axis is contiguous
    loss[0] = np.dot(flat, flat) / outputs.shape[0]
    np.multiply(gradient, 2.0 * scale / outputs.shape[0], out=gradient)


def cross_entropy(
    logits: HostArray,
    labels: NDArray[np.int64],
    columns: NDArray[np.int64],
    scale: float,
    gradient: HostArray,
    loss: HostArray,
) -> None:
    """Cross-entropy of the softmax of `logits`, summed over samples, by log-sum-exp.

    Parameters
    ----------
    logits : ndarray, shape (classes, n)
    labels : ndarray of int, shape (n,)
    columns : ndarray of int, shape (n,)
        0 … n-1.
    scale : float
        1 / samples of the global minibatch.
    gradient : ndarray, shape (classes, n)
        Receives `scale` times the gradient of the sum of the samples' losses: softmax minus the one-hot label.
    loss : ndarray, shape (1,)
        Receives the sum of the samples' losses.
    """
    if logits.shape[1] == 0:
        loss[0] = 0
        return
    np.subtract(logits, np.maximum.reduce(logits, axis=0), out=gradient)
    label_logits = gradient[labels, columns]
    np.exp(gradient, out=gradient)
    sums = np.add.reduce(gradient, axis=0)
    np.divide(gradient, sums, out=gradient)
    gradient[labels, columns] -= 1
    np.multiply(gradient, scale, out=gradient)
    np.log(sums, out=sums)
    loss[0] = np.add.reduce(sums) - np.add.reduce(label_logits)


def squared_norm(flat: HostArray) -> float:
    """Sum of squares of a flat array; in float64 if it overflows in the array's own precision."""
    with np.errstate(over="ignore"):
        total = float(np.dot(flat, flat))
    if isfinite(total) or not np.isfinite(flat).all():
        return total
    blocks = (flat[start : start + NORM_BLOCK].astype(np.float64) for start in range(0, flat.size, NORM_BLOCK))
    return float(sum(np.dot(block, block) for block in blocks))


def sgd_update(
    weights: HostArray,
    gradient: HostArray,
    velocity: HostArray | None,
    out: HostArray,
    scratch: HostArray,
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
    weights: HostArray,
    gradient: HostArray,
    first: HostArray,
    second: HostArray,
    out: HostArray,
    scratch: HostArray,
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


def sgd_prediction(weights: HostArray, velocity: HostArray, out: HostArray, distance: float) -> None:
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
    weights: HostArray,
    first: HostArray,
    second: HostArray,
    out: HostArray,
    eps: float,
    corrections: tuple[float, float],
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


class NumpyKernels:
    """Arithmetic on NumPy arrays; see `hybridnn.nn.backend.Kernels`."""

    on_host = True

    empty = staticmethod(empty)
    zeros = staticmethod(zeros)
    copy = staticmethod(copy)
    add = staticmethod(add)
    matmul = staticmethod(matmul)
    matmul_transposed = staticmethod(matmul_transposed)
    add_product = staticmethod(add_product)
    add_row_sums = staticmethod(add_row_sums)
    add_bias = staticmethod(add_bias)
    row_sums = staticmethod(row_sums)
    mean_squared_error = staticmethod(mean_squared_error)
    cross_entropy = staticmethod(cross_entropy)
    sgd_update = staticmethod(sgd_update)
    adam_update = staticmethod(adam_update)
    sgd_prediction = staticmethod(sgd_prediction)
    adam_prediction = staticmethod(adam_prediction)

    def compile(self, dtype: DTypeLike) -> None:
        """Does nothing: there is nothing to compile."""

    def to_device(self, array: HostArray) -> HostArray:
        """The array itself."""
        return array

    def to_host(self, array: HostArray) -> HostArray:
        """The array itself."""
        return array

    def put(self, host: HostArray, out: HostArray) -> None:
        """``out = host``, unless they are the same array."""
        if host is not out:
            np.copyto(out, host)

    def filling(self, out: HostArray) -> AbstractContextManager[HostArray]:
        """The array itself."""
        return nullcontext(out)

    def free_bytes(self) -> int:
        """0: all arrays are on the host."""
        return 0

    def gather_rows(self, source: HostArray, index: NDArray[np.int64], out: HostArray) -> None:
        """``out = source[index]``."""
        # The indices are in range; every other mode writes into a buffer first.
        np.take(source, index, axis=0, out=out, mode="clip")

    def activate(self, name: str, z: HostArray, scratch: HostArray) -> None:
        """Replace `z` by its activation."""
        ACTIVATIONS[name].apply(z, scratch)

    def gradient_of_activation(
        self, name: str, y: HostArray, dy: HostArray, out: HostArray, scratch: HostArray
    ) -> None:
        """Gradient with respect to the activation's input."""
        ACTIVATIONS[name].gradient(y, dy, out, scratch)

    def bias_activate(self, name: str, z: HostArray, bias: HostArray, scratch: HostArray) -> None:
        """Add the bias, then activate."""
        np.add(z, bias, out=z)
        ACTIVATIONS[name].apply(z, scratch)

    def gradient_and_row_sums(
        self,
        name: str,
        y: HostArray,
        dy: HostArray,
        out: HostArray,
        sums: HostArray,
        scratch: HostArray,
        ones: HostArray,
    ) -> None:
        """Gradient of the activation into `out`, and its row sums into `sums`."""
        ACTIVATIONS[name].gradient(y, dy, out, scratch)
        np.dot(out, ones, out=sums)

    def count_correct(self, logits: HostArray, labels: NDArray[np.int64], correct: NDArray[np.float64]) -> None:
        """Number of samples whose largest logit is that of the label, into `correct`, shape (1,)."""
        correct[0] = np.count_nonzero(logits.argmax(axis=0) == labels)

    def squared_norms(self, flat: HostArray, ends: Sequence[int]) -> NDArray[np.float64]:
        """Sums of squares of consecutive parts."""
        return np.array([squared_norm(flat[start:stop]) for start, stop in pairwise((0, *ends))])

    def squared_norm_into(self, flat: HostArray, norm: NDArray[np.float64]) -> None:
        """Sum of squares of `flat` into `norm`, shape (1,)."""
        norm[0] = squared_norm(flat)

    def clip_to_norm(self, flat: HostArray, squared_norm: NDArray[np.float64], limit: float) -> None:
        """Scale `flat` if the norm is above the limit."""
        norm = sqrt(squared_norm[0])
        if norm > limit:
            np.multiply(flat, limit / norm, out=flat)

    def begin_step(
        self,
        step: NDArray[np.int64],
        order: NDArray[np.int64],
        batch_size: int,
        indices: NDArray[np.int64],
        table: NDArray[np.float64],
        scalars: NDArray[np.float64],
    ) -> None:
        """Copy a step's indices and scalars."""
        first = step.item() * batch_size
        np.copyto(indices, order[first : first + indices.size])
        np.copyto(scalars, table[step.item()])

    def end_step(self, step: NDArray[np.int64], loss: HostArray, losses: NDArray[np.float64]) -> None:
        """Store a step's loss, and go to the next step."""
        losses[step.item()] = loss.item()
        step += 1


NUMPY: Kernels = NumpyKernels()  # the host's arithmetic; it has no state
