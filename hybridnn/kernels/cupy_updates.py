"""Updates of flat CuPy arrays, and predicted weights, in one launch each."""

from __future__ import annotations

from collections.abc import Sequence

from hybridnn.kernels import step_scalars
from hybridnn.kernels.backend import Array
from hybridnn.kernels.cupy_launch import FLOAT64, WARP, KernelLauncher, require, same_size


class CupyUpdates:
    """The part of `CupyKernels` that changes weights.

    Parameters
    ----------
    launch : KernelLauncher
    """

    def __init__(self, launch: KernelLauncher) -> None:
        self._launch = launch

    def write_scalars(self, numbers: Array, values: Sequence[float]) -> None:
        """Put up to three `values` into `numbers`, in line with everything else."""
        require(len(values) <= numbers.size and numbers.dtype == FLOAT64, "as many places of float64")
        first, second, third = (*map(float, values), 0.0, 0.0, 0.0)[:3]
        self._launch("write_scalars", None, (1,), (WARP,), numbers, len(values), first, second, third)

    def sgd_update(
        self,
        weights: Array,
        gradient: Array,
        velocity: Array | None,
        scratch: Array | None = None,
        *,
        lr: float,
        momentum: float,
        dampening: float,
        nesterov: bool,
        weight_decay: float,
        out: Array,
        numbers: Array | None = None,
    ) -> None:
        """One step of SGD."""
        arrays = (weights, gradient, out) if velocity is None else (weights, gradient, velocity, out)
        n, dtype = weights.size, same_size(*arrays)
        constants = (float(momentum), 1.0 - dampening, nesterov, float(weight_decay))
        now = step_scalars.sgd_update(lr=lr)
        self._launch.flat("sgd_update", dtype, n, weights, gradient, velocity, out, n, *constants, numbers, *now)

    def adam_update(
        self,
        weights: Array,
        gradient: Array,
        first: Array,
        second: Array,
        scratch: Array | None = None,
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
        """One step of Adam or AdamW."""
        coupled = 0.0 if decoupled else float(weight_decay)
        now = step_scalars.adam_update(step=step, lr=lr, betas=betas, weight_decay=weight_decay, decoupled=decoupled)
        constants = (*map(float, betas), float(eps), coupled)
        self._launch.elementwise("adam_update", weights, gradient, first, second, out, more=(*constants, numbers, *now))

    def sgd_prediction(
        self, weights: Array, velocity: Array, out: Array, *, distance: float, numbers: Array | None = None
    ) -> None:
        """Weights after steps along the velocity."""
        now = step_scalars.sgd_prediction(distance=distance)
        self._launch.elementwise("sgd_prediction", weights, velocity, out, more=(numbers, *now))

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
        now = step_scalars.adam_prediction(step=step, distance=distance, betas=betas)
        self._launch.elementwise("adam_prediction", weights, first, second, out, more=(float(eps), numbers, *now))
