"""What is done with a network without training it: measuring it on samples, and computing its outputs."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.partition import block_slice
from hybridnn.kernels.backend import Kernels
from hybridnn.nn.losses import resolve_loss
from hybridnn.nn.mlp import MLP
from hybridnn.parallel.distribution import Distributor
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.training.data_split import DataSplit, minibatches
from hybridnn.training.executors import Executors
from hybridnn.training.loading import make_loader
from hybridnn.training.metrics import Metrics, MetricSums
from hybridnn.training.pipelining import PipelinePlan
from hybridnn.training.work import EvaluationWork, PredictionWork

Array = NDArray[Any]


def tell_from_last_stage(grid: ProcessGrid, numbers: Array) -> None:
    """Give all ranks the `numbers` of the last stage, whose ranks agree on them; collective over the grid."""
    if grid.pipeline > 1:
        grid.world.broadcast(numbers, grid.rank_at(grid.pipeline - 1, 0, 0))


class ForwardPasses:
    """Forward passes of an engine; every method is collective over the grid.

    Parameters
    ----------
    model : MLP
    grid : ProcessGrid
    plan : PipelinePlan
    executors : Executors
    distributor : Distributor
    kernels : Kernels
        Of the device that computes.
    batch_size : int
        Most samples of a minibatch of training, over all ranks.
    dtype : dtype
    """

    def __init__(
        self,
        model: MLP,
        grid: ProcessGrid,
        plan: PipelinePlan,
        executors: Executors,
        distributor: Distributor,
        kernels: Kernels,
        batch_size: int,
        dtype: np.dtype[Any],
    ) -> None:
        self._model, self._grid, self._executors = model, grid, executors
        self._distributor, self._kernels, self._dtype = distributor, kernels, dtype
        # Samples go through the pipeline as many together as its memory is for.
        self._block = ceil(batch_size / plan.microbatches)

    def evaluate(self, part: DataSplit) -> Metrics:
        """Loss and accuracy or R² on all samples of `part`; every sample counts once."""
        classification = part.task == "classification"
        sums = MetricSums(self._model.sizes[-1], classification)
        batches = list(minibatches(np.arange(part.samples), self._block))
        loss_name = resolve_loss(self._model, part.task)
        loader = make_loader(part, batches, self._distributor, self._kernels, self._grid)
        sizes = [len(batch) for batch in batches]
        work = EvaluationWork(loader, sizes, loss_name, self._kernels, sums, self._dtype)
        self._executors.get(classification, trains=False, count=len(batches)).run(work)
        grid = self._grid
        if grid.pipeline == 1:
            return sums.total(grid.batch_group)
        is_last = grid.pipeline_rank == grid.pipeline - 1
        numbers = sums.total(grid.batch_group).to_array() if is_last else np.empty(4)
        tell_from_last_stage(grid, numbers)
        return Metrics.from_array(numbers)

    def predict(self, x: Array) -> Array:
        """Outputs for `x`, shape (samples, features) and the same on every rank; shape (samples, outputs)."""
        outputs = np.zeros((len(x), self._model.sizes[-1]), self._dtype)
        grid = self._grid
        sizes = [min(self._block, len(x) - first) for first in range(0, len(x), self._block)]
        if sizes:
            work = PredictionWork(
                x, sizes, lambda n: block_slice(n, grid.batch, grid.batch_rank), outputs, self._kernels
            )
            self._executors.get(None, trains=False, count=len(sizes)).run(work)
        # Every sample was computed by one batch part of the last stage; the others hold zeros.
        grid.batch_group.allreduce(outputs)
        tell_from_last_stage(grid, outputs)
        return outputs
