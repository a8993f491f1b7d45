"""Arithmetic on CuPy arrays: matrix products by cuBLAS, everything else by the CUDA kernels in ``cuda/``.

Unless stated otherwise, nothing here waits for the device, allocates, or copies to or from the host, so every call can
be captured in a CUDA graph once the kernels of the dtype are compiled.

This module can be imported without CuPy; `cupy_kernels` raises an error that says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.errors import EnvironmentProblem
from hybridnn.gpu.cublas import CublasProducts, load_cublas
from hybridnn.gpu.cupy_launch import (
    FLAT_BLOCK,
    FLOAT64,
    MOST_BLOCKS_ALONG_Y,
    MOST_PARTS,
    WARP,
    KernelLauncher,
    blocks_of_columns,
    blocks_of_rows,
    column_block,
    flat_grid,
    require,
    row_block,
    same_dtype,
    same_size,
    tiled_rows,
)
from hybridnn.gpu.cupy_loading import driver_version, extra_to_install, first_line, load_cupy
from hybridnn.gpu.device import PinnedMemory, Progress, record_event, wait_for
from hybridnn.nn.kernels import Array, Kernels

if TYPE_CHECKING:
    from hybridnn.nn.optimizers import SGD, Adam

StepScalars = Sequence[float] | Array
"""What an update needs of the learning rate and the number of the step, computed once (`Optimizer.step_scalars`).

An update that is recorded once and replayed in many steps keeps its arguments. It therefore takes an array of the
weights' dtype, shape (4,), on the device, which `CupyKernels.begin_step` fills in every step.
"""

COPIES_AHEAD = 4
"""Inputs and targets of two minibatches: the host reads ahead while the device computes, with bounded memory."""


def cupy_kernels(*, tf32: bool = False, progress: Progress | None = None) -> CupyKernels:
    """Arithmetic of the current device.

    Raises `EnvironmentProblem` if CuPy, a driver, a device or cuBLAS is missing; the message says what was found.
    """
    cupy = load_cupy()
    return CupyKernels(cupy, CublasProducts(cupy, load_cublas(cupy), tf32), progress)


class CupyKernels(Kernels):
    """Arithmetic on arrays of one GPU, in the current stream.

    Reductions share a workspace, so an object serves one stream at a time. `progress` is called repeatedly while the
    host waits for the device, if other ranks may need this one meanwhile.
    """

    on_host = False

    def __init__(self, cupy: Any, products: CublasProducts, progress: Progress | None = None) -> None:
        self._launch = KernelLauncher(cupy)
        self._cupy, self._products, self._progress = cupy, products, progress
        self._parts = cupy.empty((MOST_PARTS,), np.float64)
        self._arrived = cupy.zeros((1,), np.uint32)
        self._pinned = PinnedMemory(cupy, progress)

    def compile(self, dtype: DTypeLike) -> None:
        """Compile the kernels for a dtype now; CuPy caches them on disk.

        Raises `EnvironmentProblem` if CuPy cannot compile, most likely because NVRTC is missing.
        """
        try:
            self._launch.compile(dtype)
        except Exception as error:  # CuPy raises different exceptions for missing libraries
            raise EnvironmentProblem(
                f"CuPy {self._cupy.__version__} cannot compile kernels ({first_line(error)}): NVRTC comes "
                f"with an extra; {extra_to_install(driver_version())}"
            ) from error

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An uninitialized array of the device."""
        return self._cupy.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array of zeros of the device."""
        return self._cupy.zeros(shape, dtype)

    def to_device(self, array: NDArray[Any]) -> Array:
        """Copy of a host array in a new array of the device."""
        return self._cupy.asarray(array)

    def to_host(self, array: Array) -> NDArray[Any]:
        """Copy in a new host array, after all work enqueued before."""
        if self._progress is not None:  # else asnumpy waits
            wait_for(self._cupy, record_event(self._cupy), self._progress)
        host: NDArray[Any] = self._cupy.asnumpy(array)
        return host

    def put(self, host: NDArray[Any], out: Array) -> None:
        """``out = host``; CUDA has read the host array when this returns, unless it is pinned."""
        out.set(host)

    @contextmanager
    def filling(self, out: Array) -> Iterator[NDArray[Any]]:
        """Pinned memory that is copied to `out` at the end; waits if `COPIES_AHEAD` such copies are enqueued."""
        self._pinned.wait_for_all_but(COPIES_AHEAD)
        memory = self._pinned.acquire(out.nbytes)
        host = memory[: out.nbytes].view(out.dtype).reshape(out.shape)
        yield host
        if out.size:
            out.set(host, stream=self._cupy.cuda.get_current_stream())
        self._pinned.release(memory, record_event(self._cupy))

    def free_bytes(self) -> int:
        """Free bytes of the device, and those in CuPy's memory pool."""
        free, _ = self._cupy.cuda.runtime.memGetInfo()
        return int(free + self._cupy.get_default_memory_pool().free_bytes())

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture the work that `work` enqueues as a CUDA graph, without executing it.

        `work` must not wait or allocate, and must have been called before, so that its kernels are compiled. Streams
        that wait for the current one are part of the graph; the current stream must wait for them at the end. The
        returned function enqueues the graph on the current stream, with the same arrays and arguments.

        Raises `RuntimeError` at an allocation: CuPy would give the memory to others while the graph still uses it.
        """
        stream = self._cupy.cuda.Stream(non_blocking=True)
        try:
            with stream, self._cupy.cuda.using_allocator(_refuse_allocation):
                stream.begin_capture()
                try:
                    work()
                except BaseException:
                    # Ends the capture of all streams of the graph, which can then be used again.
                    with suppress(self._cupy.cuda.runtime.CUDARuntimeError):
                        stream.end_capture()
                    raise
                graph = stream.end_capture()
        finally:
            self._products.forget_stream()
        return lambda: graph.launch(self._cupy.cuda.get_current_stream())

    def copy(self, source: Array, out: Array) -> None:
        """``out = source``, of any strides."""
        self._cupy.copyto(out, source)

    def add(self, a: Array, b: Array, out: Array) -> None:
        """``out = a + b``, of any strides."""
        if a.flags.c_contiguous and b.flags.c_contiguous and out.flags.c_contiguous:
            self._launch.elementwise("add", a, b, out)
        else:
            self._cupy.add(a, b, out=out)

    def gather_rows(self, source: Array, index: Array, out: Array) -> None:
        """``out = source[index]``."""
        same_dtype(source, out)
        require(index.dtype == np.int64 and index.flags.c_contiguous, "a contiguous index of int64")
        require(out.shape == (*index.shape, *source.shape[1:]), "a row of the output for every index")
        if out.size == 0:
            return
        row_bytes = out.nbytes // len(index)
        block = row_block(row_bytes // 4, itemsize=4)
        grid = blocks_of_rows(len(index), block)
        self._launch("gather_rows", None, grid, block, source, index, out, len(index), len(source), row_bytes)

    def matmul(self, a: Array, b: Array, out: Array) -> None:
        """``out = a @ b``."""
        self._products.multiply(a, b, out)

    def matmul_transposed(self, a: Array, b: Array, out: Array, workspace: Array | None = None) -> None:
        """``out = a.T @ b``."""
        self.matmul(a.T, b, out)

    def add_bias(self, z: Array, bias: Array) -> None:
        """Add `bias`, shape (rows, 1), to every column of `z`, shape (rows, n)."""
        self.bias_activate("identity", z, bias)

    def activate(self, name: str, z: Array, scratch: Array | None = None) -> None:
        """Replace `z` by its activation."""
        if name != "identity":
            self._launch.elementwise(f"activate_{name}", z)

    def bias_activate(self, name: str, z: Array, bias: Array, scratch: Array | None = None) -> None:
        """Replace `z` by the activation of `z` plus the bias."""
        dtype, (rows, columns) = same_dtype(z, bias), z.shape
        require(bias.size == rows, "a bias for every row")
        if z.size:
            block = row_block(columns, dtype.itemsize)
            grid = tiled_rows(rows, columns, dtype.itemsize, block)
            self._launch(f"bias_{name}", dtype, grid, block, z, bias, rows, columns)

    def gradient_of_activation(self, name: str, y: Array, dy: Array, out: Array, scratch: Array | None = None) -> None:
        """Gradient with respect to the activation's input; `out` may be `dy`."""
        if name != "identity" or out is not dy:
            self._launch.elementwise(f"gradient_{name}", y, dy, out)

    def row_sums(self, dz: Array, ones: Array | None, out: Array) -> None:
        """Sum of every row of `dz`, shape (rows, n), into `out`, shape (rows,)."""
        self._rows("row_sums", dz, sums=out)

    def gradient_and_row_sums(
        self,
        name: str,
        y: Array,
        dy: Array,
        out: Array,
        sums: Array,
        scratch: Array | None = None,
        ones: Array | None = None,
    ) -> None:
        """Gradient with respect to the activation's input, and its row sums."""
        if name == "identity" and out is dy:
            self.row_sums(dy, ones, sums)
        else:
            self._rows(f"gradient_sums_{name}", y, dy, out, sums=sums)

    def mean_squared_error(self, outputs: Array, targets: Array, scale: float, gradient: Array, loss: Array) -> None:
        """Squared error and its gradient, shape (outputs, n)."""
        dtype, (rows, columns) = same_size(outputs, gradient), outputs.shape
        require(targets.shape == outputs.shape and targets.dtype == dtype, "targets like the outputs")
        same_dtype(outputs, loss)
        strides = (stride // dtype.itemsize for stride in targets.strides)
        arguments = (outputs, targets, gradient, loss, rows, columns, *strides, float(scale))
        self._sum("mean_squared_error", dtype, outputs.size, *arguments)

    def cross_entropy(
        self,
        logits: Array,
        labels: Array,
        columns: Array | None,
        scale: float,
        gradient: Array,
        loss: Array,
    ) -> None:
        """Cross-entropy of the softmax and its gradient; a label out of range makes the loss NaN."""
        dtype, (classes, samples) = same_size(logits, gradient), logits.shape
        require(labels.shape == (samples,) and labels.dtype == np.int64, "an int64 label for every sample")
        require(labels.flags.c_contiguous, "contiguous labels")
        same_dtype(logits, loss)
        block = column_block(classes, samples)
        grid = blocks_of_columns(samples, block, MOST_PARTS)
        arguments = (logits, labels, gradient, loss, classes, samples, float(scale))
        self._launch("cross_entropy", dtype, grid, block, *arguments, self._parts, self._arrived)

    def count_correct(self, logits: Array, labels: Array, correct: Array) -> None:
        """Number of samples whose largest logit is that of the label, into `correct`, shape (1,)."""
        dtype, (classes, samples) = same_dtype(logits), logits.shape
        require(labels.shape == (samples,) and labels.dtype == np.int64, "an int64 label for every sample")
        require(labels.flags.c_contiguous and correct.dtype == FLOAT64, "contiguous labels, and a count of float64")
        grid = blocks_of_columns(samples, FLAT_BLOCK, MOST_PARTS)
        arguments = (logits, labels, correct, classes, samples)
        self._launch("count_correct", dtype, grid, FLAT_BLOCK, *arguments, self._parts, self._arrived)

    def squared_norms(self, flat: Array, ends: Sequence[int]) -> NDArray[np.float64]:
        """Sums of squares of consecutive parts, in float64; waits for the device."""
        dtype, count = same_dtype(flat), len(ends)
        require(0 < count <= MOST_BLOCKS_ALONG_Y and ends[-1] == flat.size, "parts of the whole array")
        across = flat_grid(-(-flat.size // count), dtype.itemsize, max(MOST_PARTS // count, 1))
        norms, parts = self.empty((count,), np.float64), self.empty((count * across[0],), np.float64)
        arguments = (flat, self.to_device(np.array(ends, np.int64)), count, norms, parts, self._arrived)
        self._launch("squared_norms", dtype, (*across, count), FLAT_BLOCK, *arguments)
        return self.to_host(norms)

    def squared_norm_into(self, flat: Array, norm: Array) -> None:
        """Sum of squares, in float64, into `norm`, shape (1,)."""
        self._sum("squared_norm", same_dtype(flat), flat.size, flat, flat.size, norm)

    def clip_to_norm(self, flat: Array, squared_norm: Array, limit: float) -> None:
        """Scale `flat` if the norm is above the limit."""
        require(squared_norm.dtype == FLOAT64, "a squared norm of float64")
        self._launch.elementwise("clip_to_norm", flat, more=(squared_norm, float(limit)))

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
        table : array of float32 or float64, shape (steps, 4)
            `StepScalars` of all steps.
        scalars : array of the same dtype, shape (4,)
            Receives those of the step.
        """
        same_dtype(step, order, indices)
        dtype = same_dtype(table, scalars)
        require(step.dtype == np.int64, "indices of int64")
        require(step.size == 1 and table.shape[1:] == scalars.shape, "one number, and scalars for every step")
        n, count = indices.size, scalars.size
        grid = flat_grid(max(n, count), indices.itemsize)
        self._launch("begin_step", dtype, grid, FLAT_BLOCK, step, order, batch_size, indices, n, table, scalars, count)

    def end_step(self, step: Array, loss: Array, losses: Array) -> None:
        """Write `loss`, shape (1,), to element `step` of `losses`, of float64, and add 1 to `step`."""
        require(step.dtype == np.int64 and losses.dtype == FLOAT64, "a number of int64 and losses of float64")
        self._launch("end_step", same_dtype(loss), (1,), (WARP,), step, loss, losses)

    def sgd_update(
        self,
        weights: Array,
        gradient: Array,
        velocity: Array | None,
        out: Array,
        scratch: Array | None,
        settings: SGD,
        scalars: StepScalars,
    ) -> None:
        """One step of SGD."""
        arrays = (weights, gradient, out) if velocity is None else (weights, gradient, velocity, out)
        n, dtype = weights.size, same_size(*arrays)
        constants = (
            float(settings.momentum),
            1.0 - settings.dampening,
            settings.nesterov,
            float(settings.weight_decay),
        )
        step = _step_arguments(scalars, 1, dtype)
        self._launch.flat("sgd_update", dtype, n, weights, gradient, velocity, out, n, *constants, *step)

    def adam_update(
        self,
        weights: Array,
        gradient: Array,
        first: Array,
        second: Array,
        out: Array,
        scratch: Array | None,
        settings: Adam,
        scalars: StepScalars,
    ) -> None:
        """One step of Adam or AdamW."""
        coupled = 0.0 if settings.decoupled else float(settings.weight_decay)
        constants = (*map(float, settings.betas), float(settings.eps), coupled)
        more = (*constants, *_step_arguments(scalars, 3, weights.dtype))
        self._launch.elementwise("adam_update", weights, gradient, first, second, out, more=more)

    def fused_update(
        self, name: str, arrays: Sequence[Array], constants: Sequence[float], scalars: StepScalars, count: int
    ) -> bool:
        """Launch the kernel `name`; True."""
        step = _step_arguments(scalars, count, arrays[0].dtype) if count else ()
        self._launch.elementwise(name, *arrays, more=(*map(float, constants), *step))
        return True

    def sgd_prediction(self, weights: Array, velocity: Array, out: Array, distance: float) -> None:
        """Weights extrapolated along the velocity."""
        self._launch.elementwise("sgd_prediction", weights, velocity, out, more=(float(distance),))

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
        more = (float(eps), *map(float, corrections))
        self._launch.elementwise("adam_prediction", weights, first, second, out, more=more)

    def _rows(self, name: str, *arrays: Array, sums: Array) -> None:
        """Launch a kernel over arrays of shape (rows, n) that computes row sums."""
        dtype, (rows, columns) = same_size(*arrays), arrays[0].shape
        require(sums.size == rows, "a sum for every row")
        same_dtype(arrays[0], sums)
        if rows:
            block = row_block(columns, dtype.itemsize)
            self._launch(name, dtype, blocks_of_rows(rows, block), block, *arrays, sums, rows, columns)

    def _sum(self, name: str, dtype: np.dtype[Any], n: int, *arguments: Any) -> None:
        """Launch a reduction of `n` elements, which may be 0."""
        grid = flat_grid(n, dtype.itemsize, MOST_PARTS)
        self._launch(name, dtype, grid, FLAT_BLOCK, *arguments, self._parts, self._arrived)


def _refuse_allocation(nbytes: int) -> NoReturn:
    raise RuntimeError(
        f"the step allocates {nbytes} bytes on the device, for example for an input that overlaps `out` of a ufunc "
        "but is another object"
    )


def _step_arguments(scalars: StepScalars, count: int, dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """Arguments of an update kernel: null and `count` scalars, or a pointer to them and zeros that are not read."""
    if isinstance(scalars, Sequence):
        return None, *map(float, scalars)
    require(scalars.size >= count and scalars.dtype == dtype, "as many scalars, of the weights' dtype")
    return scalars, *(0.0,) * count
