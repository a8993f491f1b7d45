"""The engine: takes minibatches through this rank's stage, to train on them or to measure."""

from __future__ import annotations

from math import ceil, isfinite, sqrt
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.partition import block_bounds, block_slice
from hybridnn.errors import NonFiniteLossError
from hybridnn.kernels import numpy_kernels as kernels
from hybridnn.nn.losses import loss_gradient, resolve_loss
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import Optimizer, new_state
from hybridnn.parallel.distribution import make_distributor
from hybridnn.parallel.stage import Stage
from hybridnn.parallel.workspace import StageArrays, Workspace
from hybridnn.training.metrics import Metrics, MetricSums
from hybridnn.training.part import Part
from hybridnn.training.sampling import minibatches

__all__ = ["Engine"]

Array = NDArray[Any]


class Engine:
    """Weights, optimizer state and working memory of this rank, and what is done with a minibatch.

    Every method is collective over the grid.

    Parameters
    ----------
    model : MLP
    optimizer : Optimizer
    grid : ProcessGrid
    batch_size : int
        Most samples of a minibatch, over all ranks.
    dtype : {"float32", "float64"}
    model_split : {"columns", "alternating"}
    overlap : bool
    distribution : {"local", "scatter", "scatter-broadcast"}
    clip_norm : float or None
        As for `Trainer`.

    Attributes
    ----------
    stage : Stage
        Layers, parameters and gradients of this rank.
    state : OptimizerState
        What the optimizer remembers; ``state.updates`` counts the steps done.
    """

    def __init__(
        self,
        model: MLP,
        optimizer: Optimizer,
        grid: ProcessGrid,
        *,
        batch_size: int,
        dtype: DTypeLike,
        model_split: str,
        overlap: bool,
        distribution: str,
        clip_norm: float | None,
    ) -> None:
        self._model, self._optimizer, self._grid = model, optimizer, grid
        self._batch_size, self._clip_norm = batch_size, clip_norm
        self._distributor = make_distributor(grid, distribution)
        self.stage = Stage(model.layers, grid, model_split, np.dtype(dtype), overlap)
        self.state = new_state(optimizer, self.stage.weights)
        self._workspaces: dict[bool, Workspace] = {}

    def train(self, part: Part, indices: NDArray[np.int64], rate: float) -> float:
        """One update on the global minibatch `indices`; returns its mean loss, before the update.

        Raises
        ------
        NonFiniteLossError
            Before anything is changed, on every rank alike.
        """
        stage, recorder = self.stage, self._grid.recorder
        arrays = self._fetch(part, indices)
        stage.forward(arrays)
        self._loss(part, arrays, len(indices))
        stage.backward(arrays)
        loss = float(stage.loss[0]) / len(indices)
        if not isfinite(loss):
            self._stop(f"the loss became {loss} in step {self.state.updates + 1} at learning rate {rate:g}")
        gradient = stage.gradient[:-1]
        if self._clip_norm is not None and (norm := self.gradient_norm()) > self._clip_norm:
            kernels.scale(gradient, self._clip_norm / norm)
        start = perf_counter()
        self._optimizer.update(stage.weights, gradient, self.state, rate)
        recorder.end_compute("update", start)
        return loss

    def evaluate(self, part: Part) -> Metrics:
        """Loss and accuracy or R² on all samples of `part`; every sample counts once."""
        sums = MetricSums(self._model.sizes[-1], part.task == "classification")
        for indices in minibatches(np.arange(part.samples), self._batch_size):
            arrays = self._fetch(part, indices)
            self.stage.forward(arrays)
            self._loss(part, arrays, len(indices))
            sums.add(arrays.outputs, arrays.targets, float(self.stage.loss[0]))
        return sums.total(self._grid.batch_group)

    def require_finite(self, test: Metrics | None) -> None:
        """Refuse to go on with weights, or a test loss, that are not finite.

        Raises
        ------
        NonFiniteLossError
            On every rank alike.
        """
        if not np.isfinite(self.stage.squared_norms(self.stage.weights)).all():
            self._stop(f"the weights are no longer finite after step {self.state.updates}")
        if test is not None and not isfinite(test.loss):
            self._stop(f"the test loss became {test.loss} after step {self.state.updates}")

    def predict(self, x: Array) -> Array:
        """Outputs for `x`, shape (samples, features) and the same on every rank; shape (samples, outputs)."""
        outputs = np.zeros((len(x), self._model.sizes[-1]), self.stage.weights.dtype)
        # Predicting needs no targets: the memory of the training serves, whatever its task.
        workspace = next(iter(self._workspaces.values()), None) or self._workspace(classification=False)
        for start in range(0, len(x), self._batch_size):
            block = range(start, min(start + self._batch_size, len(x)))
            mine = block[block_slice(len(block), self._grid.batch, self._grid.batch_rank)]
            arrays = workspace.arrays(len(mine))
            arrays.samples[...] = x[mine.start : mine.stop]
            self.stage.forward(arrays)
            outputs[mine.start : mine.stop] = arrays.outputs.T
        # Every sample was computed by one batch part; the others hold zeros.
        self._grid.batch_group.allreduce(outputs)
        return outputs

    def gradient_norm(self) -> float:
        """Global norm of the last gradient, every parameter counted once."""
        return sqrt(self.stage.squared_norms(self.stage.gradient[:-1]).sum())

    @property
    def memory_bytes(self) -> int:
        """Bytes of parameters, gradients, optimizer state and activations on this rank."""
        arrays = [self.stage.weights, self.stage.gradient, self.state.scratch, *self.state.slots.values()]
        arrays_bytes = sum(array.nbytes for array in arrays)
        return arrays_bytes + sum(workspace.nbytes for workspace in self._workspaces.values())

    def _workspace(self, classification: bool) -> Workspace:
        if classification not in self._workspaces:
            capacity = ceil(self._batch_size / self._grid.batch)
            self._workspaces[classification] = self.stage.workspace(capacity, classification)
        return self._workspaces[classification]

    def _fetch(self, part: Part, indices: NDArray[np.int64]) -> StageArrays:
        """This rank's block of a global minibatch, in the arrays of the workspace."""
        first, end = block_bounds(len(indices), self._grid.batch, self._grid.batch_rank)
        arrays = self._workspace(part.task == "classification").arrays(end - first)
        self._distributor.fetch(part.rows, indices, arrays.samples, arrays.targets)
        return arrays

    def _loss(self, part: Part, arrays: StageArrays, samples: int) -> None:
        loss_gradient(
            resolve_loss(self._model, part.task),
            arrays.outputs,
            arrays.targets,
            arrays.columns,
            samples,
            arrays.output_gradient,
            self.stage.loss,
        )

    def _stop(self, what: str) -> NoReturn:
        norms = np.sqrt(self.stage.squared_norms(self.stage.weights))
        layers = ", ".join(f"layer {index}: {norm:.3g}" for index, norm in enumerate(norms))
        raise NonFiniteLossError(
            f"{what}; norms of the weights: {layers}. "
            "Try a lower optimizer.lr, a training.clip_norm, or a warm-up; check the scale of the data"
        )
