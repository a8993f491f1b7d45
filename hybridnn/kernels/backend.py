"""What the arithmetic of a device can do: the same on every device, so that nothing above knows which one it is.

`NumpyKernels` works on arrays in the host's memory, `CupyKernels` on arrays of a GPU. What a function's arrays and
numbers mean stands with the NumPy functions (`numpy_kernels`, `numpy_updates`); here is said what is more.

Every function writes into arrays it is given. On a GPU it returns when its work is in line, not when it is done: the
device does what it is told in order, and only `to_host` and `squared_norm` wait for it. Arrays are C-contiguous except
where a function says that any will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from numpy.typing import DTypeLike, NDArray

Array = Any
"""An array of the device."""


class Kernels(Protocol):
    """Arithmetic of one device.

    Updates and predictions have arguments that change from step to step: `lr`, `step`, `distance`. A launch that is
    recorded once and replayed in many steps keeps its arguments, so it reads what follows from them in `numbers`, an
    array of float64 and shape (3,) on the device. Before every replay `write_scalars` puts there what the function of
    the same name in `step_scalars` says. Where nothing is recorded `numbers` is None.

    Attributes
    ----------
    on_host : bool
        Whether arrays lie in the host's memory, and every call returns when its work is done.
    """

    on_host: bool

    def compile(self, dtype: DTypeLike) -> None:
        """Make everything for a dtype ready now, rather than in the first step, and before anything is recorded."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An uninitialized array of the device."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array of zeros of the device."""
        ...

    def to_device(self, array: NDArray[Any]) -> Array:
        """The numbers of a host's array on the device; on the host the array itself."""
        ...

    def to_host(self, array: Array) -> NDArray[Any]:
        """The numbers as a host's array, once the device has computed them; on the host the array itself."""
        ...

    def put(self, host: NDArray[Any], out: Array) -> None:
        """``out = host``, of the same shape and dtype; `host` may be written to again at once.

        On the host nothing is copied where the two are the same array, as `to_host` gives it.
        """
        ...

    def filling(self, out: Array) -> AbstractContextManager[NDArray[Any]]:
        """Memory of the host for the numbers of `out`, of the same shape and dtype, while the context lasts.

        At its end they are put in line for `out`, and the host goes on, as long as it is not far ahead of the device;
        on the host it is `out` itself.
        """
        ...

    def free_bytes(self) -> int:
        """Bytes that are free on a device; 0 on the host, to which nothing has to be brought."""
        ...

    def copy(self, source: Array, out: Array) -> None:
        """``out = source``, of any strides; float32 becomes float64 where `out` is."""
        ...

    def add(self, a: Array, b: Array, out: Array) -> None:
        """``out = a + b``, of any strides; `out` may be `a` or `b`."""
        ...

    def scale(self, flat: Array, factor: float) -> None:
        """``flat *= factor``."""
        ...

    def gather_rows(self, source: Array, index: Array, out: Array) -> None:
        """Copy rows by their index: the samples of a minibatch.

        Parameters
        ----------
        source : array, shape (samples, features) or (samples,)
            Of numbers of four or eight bytes.
        index : array of int64, shape (n,)
            Each at least 0 and below `samples`. Indices beyond are a defect of the caller; on a GPU, which cannot
            raise, the row is filled with what is not a number, or with the label -1.
        out : array, shape (n, features) or (n,)
        """
        ...

    def matmul(self, a: Array, b: Array, out: Array) -> None:
        """``out = a @ b``, of matrices that are contiguous along one of their axes."""
        ...

    def matmul_transposed(self, a: Array, b: Array, out: Array, room: Array | None) -> None:
        """``out = a.T @ b``; a GPU has no use for `room`."""
        ...

    def add_bias(self, z: Array, bias: Array) -> None:
        """Add `bias`, shape (rows, 1), to every column of `z`, shape (rows, n)."""
        ...

    def activate(self, name: str, z: Array, scratch: Array) -> None:
        """Replace `z` by its activation; a GPU has no use for `scratch`."""
        ...

    def bias_activate(self, name: str, z: Array, bias: Array, scratch: Array) -> None:
        """`add_bias`, then `activate`, in one pass on a GPU."""
        ...

    def gradient_of_activation(self, name: str, y: Array, dy: Array, out: Array, scratch: Array) -> None:
        """Gradient with respect to the activation's input; `out` may be `dy`."""
        ...

    def row_sums(self, dz: Array, ones: Array, out: Array) -> None:
        """Sum of every row of `dz`, shape (rows, n), into `out`, shape (rows,); a GPU has no use for `ones`."""
        ...

    def gradient_and_row_sums(
        self, name: str, y: Array, dy: Array, out: Array, sums: Array, scratch: Array, ones: Array
    ) -> None:
        """`gradient_of_activation` into `out`, then `row_sums` of that into `sums`, in one pass on a GPU."""
        ...

    def mean_squared_error(self, outputs: Array, targets: Array, scale: float, gradient: Array, loss: Array) -> None:
        """Squared error and its gradient; the targets may have any strides."""
        ...

    def cross_entropy(
        self, logits: Array, labels: Array, columns: Array, scale: float, gradient: Array, loss: Array
    ) -> None:
        """Cross-entropy of the softmax and its gradient; a GPU has no use for `columns`.

        On a GPU a label that is no class makes the loss not a number.
        """
        ...

    def squared_norm(self, flat: Array) -> float:
        """Sum of squares, once the device has computed it."""
        ...

    def squared_norm_into(self, flat: Array, norm: Array) -> None:
        """Sum of squares of `flat` into `norm`, an array of float64 and shape (1,): nobody waits for it."""
        ...

    def clip_to_norm(self, flat: Array, squared_norm: Array, limit: float) -> None:
        """Scale `flat` so that a norm above `limit` becomes `limit`.

        Parameters
        ----------
        flat : array, shape (n,)
        squared_norm : array of float64, shape (1,)
            Of all parameters, of which `flat` may be a part.
        limit : float
        """
        ...

    def write_scalars(self, numbers: Array, values: Sequence[float]) -> None:
        """Put up to three `values` into an array of float64 and shape (3,)."""
        ...

    def sgd_update(
        self,
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
        numbers: Array | None = None,
    ) -> None:
        """One step of SGD; a GPU has no use for `scratch`."""
        ...

    def adam_update(
        self,
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
        numbers: Array | None = None,
    ) -> None:
        """One step of Adam or AdamW; a GPU has no use for `scratch`."""
        ...

    def sgd_prediction(
        self, weights: Array, velocity: Array, out: Array, *, distance: float, numbers: Array | None = None
    ) -> None:
        """Weights after steps along the velocity."""
        ...

    def adam_prediction(
        self,
        weights: Array,
        first: Array,
        second: Array,
        out: Array,
        *,
        step: int,
        distance: float,
        betas: tuple[float, float],
        eps: float,
        numbers: Array | None = None,
    ) -> None:
        """Weights after steps along Adam's last direction."""
        ...
