"""Arithmetic on NumPy arrays.

Every function writes into arrays that it is given and allocates nothing large. float32 stays float32: Python scalars do
not promote.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.linalg.blas import daxpy, dgemm, dgemv, saxpy, sgemm, sgemv

Array = NDArray[Any]

NORM_BLOCK = 1 << 16


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """An uninitialized array of the device."""
    return np.empty(shape, dtype)


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """An array of zeros of the device."""
    return np.zeros(shape, dtype)


def matmul(a: Array, b: Array, out: Array) -> None:
    """``out = a @ b``."""
    np.matmul(a, b, out=out)


def matmul_transposed(a: Array, b: Array, out: Array, workspace: Array | None) -> None:
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


def add_product(a: Array, b: Array, out: Array, factor: float, keep: float) -> None:
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


def add_row_sums(dz: Array, ones: Array, out: Array, factor: float, keep: float) -> None:
    """``out = keep * out + factor * dz @ ones``: the row sums of `dz`, shape (rows, n >= 1), added to `out`."""
    gemv = sgemv if out.dtype == np.float32 else dgemv
    matrix, transpose = (dz.T, 1) if dz.flags.c_contiguous else (dz, 0)
    gemv(factor, matrix, ones, keep, out, 0, 1, 0, 1, transpose, 1)


def add_scaled(y: Array, factor: float, x: Array) -> None:
    """``y += factor * x`` for contiguous arrays, in one pass where NumPy takes two."""
    if y.size:
        (saxpy if y.dtype == np.float32 else daxpy)(x.reshape(-1), y.reshape(-1), a=factor)


def add_bias(z: Array, bias: Array) -> None:
    """Add `bias`, shape (rows, 1), to every column of `z`, shape (rows, n)."""
    np.add(z, bias, out=z)


def add(a: Array, b: Array, out: Array) -> None:
    """``out = a + b``; `out` may be `a` or `b`."""
    np.add(a, b, out=out)


def copy(source: Array, out: Array) -> None:
    """``out = source``."""
    np.copyto(out, source)


def row_sums(dz: Array, ones: Array, out: Array) -> None:
    """Sum of every row of `dz`, shape (rows, n), into `out`, shape (rows,).

    A product with a vector of ones: several times faster than ``np.sum`` over the contiguous axis.
    """
    np.dot(dz, ones, out=out)


def mean_squared_error(outputs: Array, targets: Array, scale: float, gradient: Array, loss: Array) -> None:
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
    logits: Array, labels: NDArray[np.int64], columns: NDArray[np.int64], scale: float, gradient: Array, loss: Array
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


def squared_norm(flat: Array) -> float:
    """Sum of squares of a flat array; in float64 if it overflows in the array's own precision."""
    with np.errstate(over="ignore"):
        total = float(np.dot(flat, flat))
    if isfinite(total) or not np.isfinite(flat).all():
        return total
    blocks = (flat[start : start + NORM_BLOCK].astype(np.float64) for start in range(0, flat.size, NORM_BLOCK))
    return float(sum(np.dot(block, block) for block in blocks))
