"""Interface of the array arithmetic of a device: `NumpyKernels` for the host, `CupyKernels` for a GPU.

The NumPy functions (`numpy_kernels`) document shapes and formulas; this module documents the interface
and the differences between the devices.

Every function writes into arrays that it is given. On a GPU calls are asynchronous: they enqueue work on the current
stream. Only `to_host` and `squared_norm` wait for the device. Arrays are C-contiguous unless a function accepts any
strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = Any  # an array of the device

HostArray = NDArray[Any]

UPDATE_BLOCK = 1 << 16
"""Elements that an update reads and writes before the next ones, so that they stay in the processor's cache.

Measured fastest between 2^12 and whole arrays on a core with 512 KiB of second-level cache.
"""

StepScalars = Sequence[float] | Array
"""What an update needs of the learning rate and the number of the step, computed once (`Optimizer.step_scalars`).

An update that is recorded once and replayed in many steps keeps its arguments. It therefore takes an array of float64,
shape (3,), on the device, which `Kernels.begin_step` fills in every step.
"""


class SGDSettings(Protocol):
    """Settings of SGD that do not change between steps, as `hybridnn.nn.optimizers.SGD` has them."""

    @property
    def momentum(self) -> float: ...  # noqa: D102
    @property
    def dampening(self) -> float: ...  # noqa: D102
    @property
    def nesterov(self) -> bool: ...  # noqa: D102
    @property
    def weight_decay(self) -> float: ...  # noqa: D102


class AdamSettings(Protocol):
    """Settings of Adam that do not change between steps, as `hybridnn.nn.optimizers.Adam` has them."""

    @property
    def betas(self) -> tuple[float, float]: ...  # noqa: D102
    @property
    def eps(self) -> float: ...  # noqa: D102
    @property
    def weight_decay(self) -> float: ...  # noqa: D102
    @property
    def decoupled(self) -> bool: ...  # noqa: D102


class Kernels(Protocol):
    """Arithmetic of one device.

    Attributes
    ----------
    on_host : bool
        Whether arrays are in host memory and calls are synchronous.
    """

    on_host: bool

    def compile(self, dtype: DTypeLike) -> None:
        """Compile all kernels for a dtype now rather than in the first step, and before a CUDA graph is captured."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An uninitialized array of the device."""

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array of zeros of the device."""

    def to_device(self, array: NDArray[Any]) -> Array:
        """Copy a host array to the device; on the host, the array itself."""

    def to_host(self, array: Array) -> NDArray[Any]:
        """Copy an array to the host, after all work enqueued before; on the host, the array itself."""

    def put(self, host: NDArray[Any], out: Array) -> None:
        """``out = host``, of the same shape and dtype; `host` may be overwritten when the call returns.

        On the host nothing is copied if both are the same array, as after `to_host`.
        """

    def filling(self, out: Array) -> AbstractContextManager[NDArray[Any]]:
        """Context manager of host memory to be filled with the elements of `out`, of the same shape and dtype.

        At the end of the context the copy to `out` is enqueued; the host waits only if it is several copies ahead of
        the device. On the host the memory is `out` itself.
        """

    def free_bytes(self) -> int:
        """Free bytes of the device; 0 on the host, where nothing has to be copied to a device."""

    def copy(self, source: Array, out: Array) -> None:
        """``out = source``, of any strides; float32 becomes float64 if `out` is."""

    def add(self, a: Array, b: Array, out: Array) -> None:
        """``out = a + b``, of any strides; `out` may be `a` or `b`."""

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

    def matmul(self, a: Array, b: Array, out: Array) -> None:
        """``out = a @ b``, of matrices that are contiguous along one of their axes."""

    def matmul_transposed(self, a: Array, b: Array, out: Array, workspace: Array | None) -> None:
        """``out = a.T @ b``; a GPU does not use `workspace`."""

    def add_product(self, a: Array, b: Array, out: Array, factor: float, keep: float) -> None:
        """``out = keep * out + factor * a @ b``, of matrices as for `matmul`; every row of `out` is contiguous."""

    def add_row_sums(self, dz: Array, ones: Array, out: Array, factor: float, keep: float) -> None:
        """``out = keep * out + factor * row_sums``, of the row sums of `dz`."""

    def add_bias(self, z: Array, bias: Array) -> None:
        """Add `bias`, shape (rows, 1), to every column of `z`, shape (rows, n)."""

    def activate(self, name: str, z: Array, scratch: Array) -> None:
        """Replace `z` by its activation; a GPU does not use `scratch`."""

    def bias_activate(self, name: str, z: Array, bias: Array, scratch: Array) -> None:
        """`add_bias`, then `activate`; one pass on a GPU."""

    def gradient_of_activation(self, name: str, y: Array, dy: Array, out: Array, scratch: Array) -> None:
        """Gradient with respect to the activation's input; `out` may be `dy`."""

    def row_sums(self, dz: Array, ones: Array, out: Array) -> None:
        """Sum of every row of `dz`, shape (rows, n), into `out`, shape (rows,); a GPU does not use `ones`."""

    def gradient_and_row_sums(
        self, name: str, y: Array, dy: Array, out: Array, sums: Array, scratch: Array, ones: Array
    ) -> None:
        """`gradient_of_activation` into `out`, then `row_sums` of it into `sums`; one pass on a GPU."""

    def mean_squared_error(self, outputs: Array, targets: Array, scale: float, gradient: Array, loss: Array) -> None:
        """Squared error and its gradient; the targets may have any strides."""

    def cross_entropy(
        self, logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array
    ) -> None:
        """Cross-entropy of the softmax and its gradient; a GPU does not use `columns`.

        On a GPU a label out of range makes the loss NaN.
        """

    def count_correct(self, logits: Array, labels: Array, correct: Array) -> None:
        """Count samples whose largest logit is that of the label; asynchronous on a device.

        Parameters
        ----------
        logits : array, shape (classes, n)
        labels : array of int64, shape (n,)
        correct : array of float64, shape (1,)
            Receives the number.
        """

    def squared_norms(self, flat: Array, ends: Sequence[int]) -> NDArray[np.float64]:
        """Sums of squares of consecutive parts of `flat`, on the host; waits for the device.

        Parameters
        ----------
        ends : sequence of int
            Part i is ``flat[ends[i - 1]:ends[i]]``, with 0 as the first start.

        Returns
        -------
        ndarray, shape (len(ends),)
        """

    def squared_norm_into(self, flat: Array, norm: Array) -> None:
        """Sum of squares of `flat` into `norm`, an array of float64 and shape (1,), without waiting for the device."""

    def clip_to_norm(self, flat: Array, squared_norm: Array, limit: float) -> None:
        """Scale `flat` by limit / norm if the norm is above `limit`.

        Parameters
        ----------
        flat : array, shape (n,)
        squared_norm : array of float64, shape (1,)
            Of all parameters, of which `flat` may be a part.
        """

    def begin_step(
        self, step: Array, order: Array, batch_size: int, indices: Array, table: Array, scalars: Array
    ) -> None:
        """Read what differs between the steps of an epoch from arrays of the epoch, by the number of the step.

        Parameters
        ----------
        step : array of int64, shape (1,)
            Number of the step, from 0.
        order : array of int64, shape (samples,)
            Indices of the samples of all steps: those of the step begin at `step` times `batch_size`.
        indices : array of int64, shape (n,)
            Receives those of the step, n of them.
        table : array of float64, shape (steps, 3)
            `StepScalars` of all steps.
        scalars : array of float64, shape (3,)
            Receives those of the step.
        """

    def end_step(self, step: Array, loss: Array, losses: Array) -> None:
        """Write `loss`, shape (1,), to element `step` of `losses`, of float64, and add 1 to `step`."""

    def sgd_update(
        self,
        weights: Array,
        gradient: Array,
        velocity: Array | None,
        out: Array,
        scratch: Array,
        settings: SGDSettings,
        scalars: StepScalars,
    ) -> None:
        """One step of SGD; a GPU does not use `scratch`."""

    def adam_update(
        self,
        weights: Array,
        gradient: Array,
        first: Array,
        second: Array,
        out: Array,
        scratch: Array,
        settings: AdamSettings,
        scalars: StepScalars,
    ) -> None:
        """One step of Adam or AdamW; a GPU does not use `scratch`."""

    def sgd_prediction(self, weights: Array, velocity: Array, out: Array, distance: float) -> None:
        """Weights extrapolated along the velocity."""

    def adam_prediction(
        self,
        weights: Array,
        first: Array,
        second: Array,
        out: Array,
        eps: float,
        corrections: tuple[float, float],
    ) -> None:
        """Weights extrapolated along Adam's last direction."""
