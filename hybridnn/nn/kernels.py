"""Kernels: the arithmetic of a device on its arrays. These are NumPy's, on the host; a GPU overrides them.

Every function writes into arrays that it is given and allocates nothing large. float32 stays float32: Python scalars do
not promote. Updates run in blocks that stay in the processor's cache: a plain ``v *= m; v += g; w -= lr * v`` reads and
writes whole arrays four times, each time from main memory.

On a GPU calls are asynchronous: they enqueue work on the current stream. Only `Kernels.to_host` and
`Kernels.squared_norms` wait for the device. Arrays are C-contiguous unless a function accepts any strides.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.machinery import ExtensionFileLoader, PathFinder
from importlib.util import find_spec, module_from_spec
from itertools import pairwise
from math import isfinite, sqrt
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.nn.activations import ACTIVATIONS

if TYPE_CHECKING:
    from hybridnn.nn.optimizers import SGD, Adam

Array = Any  # an array of the device

HostArray = NDArray[Any]

UPDATE_BLOCK = 1 << 16
"""Elements that an update reads and writes before the next ones, so that they stay in the processor's cache.

Measured fastest between 2^12 and whole arrays on a core with 512 KiB of second-level cache.
"""

DEVICE_UPDATE_BLOCK = 1 << 22
"""The same on a GPU, whose launches cost more than its caches save, and whose memory for scratch is limited."""

SLICE_UNIT = 64
"""Slices of a buffer that begin at multiples of so many elements are updated to the bits of an update of all of it.

OpenBLAS's ``saxpy`` for AVX2 rounds once per element in blocks of 32 elements, and twice in the elements after the last
block: they must be the same ones. Several threads of BLAS divide long vectors anywhere.
"""

BLAS_PACKAGE = "scipy.linalg"


def load_blas() -> ModuleType:
    """The module with ``saxpy`` and ``daxpy``, which NumPy does not offer: SciPy's extension, or `scipy.linalg.blas`.

    The package takes a fifth of a second to import, its extension a tenth of that; SciPy documents only the package.
    """
    if BLAS_PACKAGE not in sys.modules:
        try:
            return _blas_extension()
        except (ImportError, AttributeError):  # another layout, or libraries that only the package's import finds
            pass
    from scipy.linalg import blas

    public: ModuleType = blas
    return public


def _blas_extension() -> ModuleType:
    """Load the extension; raises `ImportError` or `AttributeError` if it is not what is expected."""
    name, scipy = f"{BLAS_PACKAGE}._fblas", find_spec("scipy")  # does not import it
    folders = [] if scipy is None else scipy.submodule_search_locations or []
    found = PathFinder.find_spec(name, [str(Path(folder, "linalg")) for folder in folders])
    if found is None or not isinstance(found.loader, ExtensionFileLoader):
        raise ImportError(f"{name} is not an extension module in a folder of SciPy")
    module = module_from_spec(found)
    found.loader.exec_module(module)
    # Such a module enters itself. A later import of the package then has to find it anew, to become its attribute.
    sys.modules.pop(name, None)
    _ = module.saxpy, module.daxpy
    return module


_BLAS = load_blas()


def add_scaled(y: HostArray, factor: float, x: HostArray) -> None:
    """``y += factor * x`` for contiguous arrays, in one pass where NumPy takes two."""
    if y.size:
        (_BLAS.saxpy if y.dtype == np.float32 else _BLAS.daxpy)(x.reshape(-1), y.reshape(-1), a=factor)


def squared_norm(flat: HostArray) -> float:
    """Sum of squares of a flat array; in float64 if it overflows in the array's own precision."""
    with np.errstate(over="ignore"):
        total = float(np.dot(flat, flat))
    if isfinite(total) or not np.isfinite(flat).all():
        return total
    parts = (flat[block].astype(np.float64) for block in blocks(flat.size))
    return float(sum(np.dot(part, part) for part in parts))


def blocks(size: int, length: int = UPDATE_BLOCK) -> Iterator[slice]:
    """Slices of arrays of `size` elements that stay in the processor's cache."""
    return (slice(start, min(start + length, size)) for start in range(0, size, length))


class Kernels:
    """Arithmetic of one device. A GPU does not use the arguments `scratch`, `workspace`, `ones` and `columns`.

    Attributes
    ----------
    on_host : bool
        Whether arrays are in host memory and calls are synchronous.
    """

    on_host = True

    def compile(self, dtype: DTypeLike) -> None:
        """Compile all kernels for a dtype now, not in the first step, nor while a CUDA graph is captured."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An uninitialized array of the device."""
        return np.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array of zeros of the device."""
        return np.zeros(shape, dtype)

    def to_device(self, array: HostArray) -> Array:
        """Copy a host array to the device; on the host, the array itself."""
        return array

    def to_host(self, array: Array) -> HostArray:
        """Copy an array to the host, after all work enqueued before; on the host, the array itself."""
        host: HostArray = array
        return host

    def put(self, host: HostArray, out: Array) -> None:
        """``out = host``, of the same shape and dtype; `host` may be overwritten when the call returns.

        On the host nothing is copied if both are the same array, as after `to_host`.
        """
        if host is not out:
            np.copyto(out, host)

    def filling(self, out: Array) -> AbstractContextManager[HostArray]:
        """Context manager of host memory to be filled with the elements of `out`, of the same shape and dtype.

        At the end of the context the copy to `out` is enqueued; the host waits only if it is several copies ahead of
        the device. On the host the memory is `out` itself.
        """
        return nullcontext(out)

    def free_bytes(self) -> int:
        """Free bytes of the device; 0 on the host, where nothing has to be copied to a device."""
        return 0

    def copy(self, source: Array, out: Array) -> None:
        """``out = source``, of any strides; float32 becomes float64 if `out` is."""
        np.copyto(out, source)

    def add(self, a: Array, b: Array, out: Array) -> None:
        """``out = a + b``, of any strides; `out` may be `a` or `b`."""
        np.add(a, b, out=out)

    def gather_rows(self, source: Array, index: Array, out: Array) -> None:
        """``out = source[index]``: the samples of a minibatch.

        Parameters
        ----------
        source : array, shape (samples, features) or (samples,)
            Elements of four or eight bytes.
        index : array of int64, shape (n,)
            Each at least 0 and below `samples`; the caller must ensure it. A GPU cannot raise: it fills the row of an
            index out of range with NaN, or with the label -1.
        out : array, shape (n, features) or (n,)
        """
        # The indices are in range; every other mode writes into a buffer first.
        np.take(source, index, axis=0, out=out, mode="clip")

    def matmul(self, a: Array, b: Array, out: Array) -> None:
        """``out = a @ b``, of matrices that are contiguous along one of their axes."""
        np.matmul(a, b, out=out)

    def matmul_transposed(self, a: Array, b: Array, out: Array, workspace: Array | None) -> None:
        """``out = a.T @ b``.

        Parameters
        ----------
        a : ndarray, shape (k, m)
        b : ndarray, shape (k, n)
        out : ndarray, shape (m, n)
        workspace : ndarray, shape (n, m), or None
            Overwritten. With it the product is computed as ``(b.T @ a).T``, which is faster for small n: with OpenBLAS
            a whole training step of 16-4x1024-2 and 3072-8x1024-10 in microbatches of 16 and 32 samples gains 4 to 5 %.
        """
        if workspace is None:
            np.matmul(a.T, b, out=out)
            return
        np.matmul(b.T, a, out=workspace)
        np.copyto(out, workspace.T)

    def add_bias(self, z: Array, bias: Array) -> None:
        """Add `bias`, shape (rows, 1), to every column of `z`, shape (rows, n)."""
        np.add(z, bias, out=z)

    def activate(self, name: str, z: Array, scratch: Array) -> None:
        """Replace `z` by its activation."""
        ACTIVATIONS[name].apply(z, scratch)

    def bias_activate(self, name: str, z: Array, bias: Array, scratch: Array) -> None:
        """`add_bias`, then `activate`; one pass on a GPU."""
        np.add(z, bias, out=z)
        ACTIVATIONS[name].apply(z, scratch)

    def gradient_of_activation(self, name: str, y: Array, dy: Array, out: Array, scratch: Array) -> None:
        """Gradient with respect to the activation's input; `out` may be `dy`."""
        ACTIVATIONS[name].gradient(y, dy, out, scratch)

    def row_sums(self, dz: Array, ones: Array, out: Array) -> None:
        """Sum of every row of `dz`, shape (rows, n), into `out`, shape (rows,).

        A product with a vector of ones: several times faster than ``np.sum`` over the contiguous axis.
        """
        np.dot(dz, ones, out=out)

    def gradient_and_row_sums(
        self,
        name: str,
        y: Array,
        dy: Array,
        out: Array,
        sums: Array,
        scratch: Array,
        ones: Array,
    ) -> None:
        """`gradient_of_activation` into `out`, then `row_sums` of it into `sums`; one pass on a GPU."""
        ACTIVATIONS[name].gradient(y, dy, out, scratch)
        np.dot(out, ones, out=sums)

    def mean_squared_error(self, outputs: Array, targets: Array, scale: float, gradient: Array, loss: Array) -> None:
        """Squared error, averaged over the outputs of a sample and summed over samples.

        Parameters
        ----------
        outputs, targets : ndarray, shape (outputs, n)
            The targets may have any strides.
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
        self, logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array
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

    def count_correct(self, logits: Array, labels: Array, correct: Array) -> None:
        """Count samples whose largest logit is that of the label; asynchronous on a device.

        `correct`, float64, shape (1,), receives the number; `logits` and `labels` as in `cross_entropy`.
        """
        correct[0] = np.count_nonzero(logits.argmax(axis=0) == labels)

    def squared_norms(self, flat: Array, ends: Sequence[int]) -> NDArray[np.float64]:
        """Sums of squares of consecutive parts of `flat`, shape (len(ends),), on the host; waits for the device.

        Part i is ``flat[ends[i - 1]:ends[i]]``, with 0 as the first start.
        """
        return np.array([squared_norm(flat[start:stop]) for start, stop in pairwise((0, *ends))])

    def squared_norm_into(self, flat: Array, norm: Array) -> None:
        """Sum of squares of `flat` into `norm`, an array of float64 and shape (1,), without waiting for the device."""
        norm[0] = squared_norm(flat)

    def clip_to_norm(self, flat: Array, squared_norm: Array, limit: float) -> None:
        """Scale `flat` by limit / norm if the norm is above `limit`.

        `squared_norm`, float64, shape (1,), is that of all parameters, of which `flat` may be a part.
        """
        norm = sqrt(squared_norm[0])
        if norm > limit:
            np.multiply(flat, limit / norm, out=flat)

    def sgd_update(
        self,
        weights: Array,
        gradient: Array,
        velocity: Array | None,
        out: Array,
        scratch: Array,
        settings: SGD,
        scalars: Sequence[float],
    ) -> None:
        """One step of SGD, PyTorch's update with the velocity starting at zero.

        ``g += weight_decay * w; v = momentum * v + (1 - dampening) * g``, and
        ``w -= lr * (g + momentum * v if nesterov else v)``. Arrays have the shape (n,): `out` receives the new weights
        and may be `weights`; `velocity` is None if the momentum is 0; `scratch`, at least min(UPDATE_BLOCK, n), is
        overwritten. `scalars` are those of `Optimizer.step_scalars`: the learning rate.
        """
        lr, momentum, weight_decay = scalars[0], settings.momentum, settings.weight_decay
        for block in blocks(weights.size):
            w, g, new = weights[block], gradient[block], out[block]
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
            v = velocity[block]
            np.multiply(v, momentum, out=v)
            add_scaled(v, 1.0 - settings.dampening, g)
            if settings.nesterov:
                add_scaled(new, -lr, g)
            add_scaled(new, -lr * momentum if settings.nesterov else -lr, v)

    def adam_update(
        self,
        weights: Array,
        gradient: Array,
        first: Array,
        second: Array,
        out: Array,
        scratch: Array,
        settings: Adam,
        scalars: Sequence[float],
    ) -> None:
        """One step of Adam (Kingma and Ba 2015, Algorithm 1), or of AdamW if the weight decay is decoupled.

        Arrays as in `sgd_update`, with the running moments `first` and `second`, and `scratch` of twice its size.
        `scalars` are the step size with the first moment's bias correction, the root of the second moment's, and the
        factor on the weights by decoupled weight decay.
        """
        beta1, beta2 = settings.betas
        step_size, root_correction, keep = scalars[:3]
        weight_decay, eps = settings.weight_decay, settings.eps
        half = scratch.size // 2
        for block in blocks(weights.size):
            w, g, m, v = weights[block], gradient[block], first[block], second[block]
            t = scratch[: w.size]
            if weight_decay and settings.decoupled:
                w = np.multiply(w, keep, out=out[block])
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
            np.subtract(w, t, out=out[block])

    def fused_update(
        self, name: str, arrays: Sequence[Array], constants: Sequence[float], scalars: Any, count: int
    ) -> bool:
        """Update arrays of shape (n,) by one CUDA kernel; False on the host, where ufuncs compute in blocks.

        Its arguments are `arrays`, n, `constants`, and `count` of `scalars`, a sequence or an array of the device.
        """
        return False

    def sgd_prediction(self, weights: Array, velocity: Array, out: Array, distance: float) -> None:
        """Weights extrapolated along the velocity, ``out = w - distance * v``, of arrays of shape (n,).

        The distance is the number of steps times the learning rate.
        """
        for block in blocks(weights.size):
            t = out[block]
            np.multiply(velocity[block], distance, out=t)
            np.subtract(weights[block], t, out=t)

    def adam_prediction(
        self,
        weights: Array,
        first: Array,
        second: Array,
        out: Array,
        eps: float,
        corrections: tuple[float, float],
    ) -> None:
        """Weights extrapolated along Adam's direction of the last update, without weight decay; arrays of shape (n,).

        `corrections` are the first two scalars of `adam_update`, with the learning rate times the number of steps.
        """
        step_size, root_correction = corrections
        for block in blocks(weights.size):
            t = out[block]
            np.sqrt(second[block], out=t)
            np.divide(t, root_correction, out=t)
            np.add(t, eps, out=t)
            np.divide(first[block], t, out=t)
            np.multiply(t, step_size, out=t)
            np.subtract(weights[block], t, out=t)


NUMPY = Kernels()  # the host's arithmetic; it has no state
