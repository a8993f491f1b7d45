"""The engine: this rank's layers and optimizer state, and what is done with minibatches, through the executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import isfinite, sqrt
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.agreement import agree
from hybridnn.errors import NonFiniteLossError
from hybridnn.kernels.backend import Kernels
from hybridnn.kernels.numpy_backend import NUMPY
from hybridnn.kernels.sixteen_bits import CompressedFormat
from hybridnn.nn.losses import resolve_loss
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import Optimizer
from hybridnn.parallel.distribution import make_distributor
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.replicas.sharing import Sharing
from hybridnn.parallel.stage import ReplicaConfig, Stage
from hybridnn.pipeline.execution.chunk import Chunk, make_chunk
from hybridnn.training.cuda_graphs import CudaGraphSteps, Record
from hybridnn.training.data_split import DataSplit
from hybridnn.training.device_samples import DeviceSampleCache
from hybridnn.training.executors import Executors
from hybridnn.training.forward_passes import ForwardPasses, tell_from_last_stage
from hybridnn.training.global_arrays import GlobalArrays
from hybridnn.training.loading import DeviceLoader, make_loader
from hybridnn.training.metrics import Metrics
from hybridnn.training.minibatch_losses import MinibatchLosses
from hybridnn.training.pipelining import PipelinePlan
from hybridnn.training.replica_choice import shared_arrays, takes_products
from hybridnn.training.stage_memory import StageMemory
from hybridnn.training.work import TrainingWork

Array = NDArray[Any]
Indices = NDArray[np.int64]


class Engine:
    """Weights, optimizer state and working memory of this rank, and what is done with minibatches.

    Every method is collective over the grid.

    Parameters
    ----------
    model : MLP
    optimizer : Optimizer
    grid : ProcessGrid
    plan : PipelinePlan
        Which layers this rank has, and the schedule.
    batch_size : int
        Most samples of a minibatch, over all ranks.
    dtype : {"float32", "float64"}
    model_split : {"columns", "alternating"}
    overlap : bool
    distribution : {"local", "scatter", "scatter-broadcast"}
    clip_norm : float or None
        As for `Trainer`.
    sharing : Sharing, optional
        Ranks that share one replica.
    compression : CompressedFormat, optional
        As for `ReplicaConfig`.
    kernels : Kernels
        Of the device that trains.
    record : Record, optional
        Records steps, to replay them; where all ranks are batch ranks.
    keeps_gradients : bool
        Keep gradients also where `takes_products` would do without.

    Attributes
    ----------
    stages : list of Stage
        Layers, parameters and gradients of this rank: one stage, or one per chunk.
    states : list of OptimizerState
        What the optimizer remembers of each.
    samples : DeviceSampleCache
        On the device that trains.
    evaluate, predict : callable
        As of `ForwardPasses`.
    """

    def __init__(
        self,
        model: MLP,
        optimizer: Optimizer,
        grid: ProcessGrid,
        plan: PipelinePlan,
        *,
        batch_size: int,
        dtype: DTypeLike,
        model_split: str,
        overlap: bool,
        distribution: str,
        clip_norm: float | None,
        sharing: Sharing | None = None,
        compression: CompressedFormat | None = None,
        kernels: Kernels = NUMPY,
        record: Record | None = None,
        keeps_gradients: bool = False,
    ) -> None:
        self._kernels = kernels
        kernels.compile(dtype)
        self._model, self._optimizer, self._grid, self._plan = model, optimizer, grid, plan
        self._batch_size, self._clip_norm, self._sharing = batch_size, clip_norm, sharing
        self._distributor = make_distributor(grid, distribution)
        layers = plan.layers_of(model, grid.pipeline_rank)
        self._representatives = plan.representatives()
        products = not keeps_gradients and takes_products(
            model, optimizer, grid, plan, sharing, batch_size=batch_size, clip_norm=clip_norm, on_host=kernels.on_host
        )
        arrays = shared_arrays(optimizer, self._representatives[0], grid.pipeline_rank)
        replica = ReplicaConfig(sharing, arrays, compression, products)
        self.stages = [Stage(chunk, grid, model_split, np.dtype(dtype), overlap, kernels, replica) for chunk in layers]
        self.states = [stage.replica.new_state(optimizer, stage.weights) for stage in self.stages]
        self.arrays = GlobalArrays(model, grid, plan, self.stages)
        self._executors = Executors(plan, grid, self._make_chunks)
        self._recorded = (
            None
            if record is None
            else CudaGraphSteps(record, self.stages[0], optimizer, self.states[0], batch_size, grid.batch_group)
        )
        self.samples = DeviceSampleCache(kernels, grid, self.dtype)
        passes = ForwardPasses(model, grid, plan, self._executors, self._distributor, kernels, batch_size, self.dtype)
        self.evaluate, self.predict = passes.evaluate, passes.predict

    @property
    def exact(self) -> bool:
        """Whether every minibatch is complete before the next begins."""
        return self._plan.exact

    @property
    def updates(self) -> int:
        """Updates done so far."""
        return self.states[0].updates

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of weights and activations."""
        return self.stages[0].weights.dtype

    def new_losses(self, batches: Sequence[Indices], rates: Callable[[int], float]) -> MinibatchLosses:
        """Room for the losses of the next minibatches, which it refuses where they are not finite."""
        first, tell = self.updates, partial(tell_from_last_stage, self._grid)

        def require_finite(number: int, loss: float) -> None:
            if not isfinite(loss):
                self._stop(f"the loss became {loss} in step {first + number + 1} at learning rate {rates(number):g}")

        return MinibatchLosses(self._kernels, [len(batch) for batch in batches], tell, require_finite)

    def train(
        self,
        part: DataSplit,
        batches: Sequence[Indices],
        rates: Callable[[int], float],
        losses: MinibatchLosses,
        updated: Callable[[int], None],
    ) -> Iterator[int]:
        """One update on each minibatch of an epoch; yields their numbers.

        With an exact method a number comes out after its minibatch, else all of them when the pipeline is empty. By
        then its loss, from before its update, is known, unless an exact method trains on a device: there it waits to
        be fetched.

        Parameters
        ----------
        rates : callable
            Learning rate by number of the minibatch.
        losses : MinibatchLosses
            New ones for these minibatches.
        updated : callable
            Called when this rank has updated on a minibatch, with its number.

        Raises
        ------
        NonFiniteLossError
            On every rank alike; with an exact method on the CPU before anything is changed.
        """
        classification, sizes = part.task == "classification", [len(batch) for batch in batches]
        loss_name = resolve_loss(self._model, part.task)
        loader = make_loader(part, batches, self._distributor, self._kernels, self._grid)
        if self._recorded is not None and isinstance(loader, DeviceLoader):
            yield from self._recorded.train(
                self._executors.get(classification, trains=True, count=1),
                loader,
                sizes,
                loss_name,
                rates,
                losses,
                self._clip,
                updated,
            )
            return
        knows_at_once = self._plan.exact and self._kernels.on_host

        def work(first: int, count: int) -> TrainingWork:
            def reduced(number: int) -> None:
                losses.note(first + number, self.stages[-1].replica.total_loss)
                if knows_at_once:
                    losses.fetch(first + number + 1)
                self._clip()

            return TrainingWork(
                loader,
                first,
                sizes[first : first + count],
                loss_name,
                self._kernels,
                lambda number: rates(first + number),
                reduced,
                lambda number: updated(first + number),
            )

        if self._plan.exact:
            executor = self._executors.get(classification, trains=True, count=1)
            for number in range(len(batches)):
                executor.run(work(number, 1))
                yield number
            return
        self._executors.get(classification, trains=True, count=len(batches)).run(work(0, len(batches)))
        losses.fetch(len(batches))
        yield from range(len(batches))

    def _clip(self) -> None:
        """Scale the gradient down where its norm is above the limit; on a device nobody waits for the norm."""
        if self._clip_norm is None:
            return
        norm = self.arrays.squared_gradient_norm()
        for stage in self.stages:
            stage.replica.clip(norm, self._clip_norm)

    def require_finite(self, test: Metrics | None) -> None:
        """Refuse to go on with weights, or a test loss, that are not finite.

        Raises
        ------
        NonFiniteLossError
            On every rank alike.
        """
        if not np.isfinite(self.arrays.squared_norms([stage.weights for stage in self.stages])).all():
            self._stop(f"the weights are no longer finite after step {self.updates}")
        if test is not None and not isfinite(test.loss):
            self._stop(f"the test loss became {test.loss} after step {self.updates}")

    def gradient_norm(self) -> float:
        """Global norm of the last gradient, every parameter counted once."""
        return sqrt(self._kernels.to_host(self.arrays.squared_gradient_norm())[0])

    def restore(self, read: Callable[[], None]) -> None:
        """Let `read` fill weights and states on the ranks that have to; a user's mistake on one is raised on all."""
        leads = all(stage.replica.is_leader for stage in self.stages)
        for stage in self.stages:
            stage.replica.publish()
        agree(self._grid.world, read if leads else lambda: None)
        for stage, state in zip(self.stages, self.states, strict=True):
            stage.replica.synchronize_state(state)

    def free(self) -> None:
        """Give back the memory that ranks share, kept samples and recordings; nothing may be used afterwards."""
        self.samples.free()
        if self._recorded is not None:
            self._recorded.free()
        if self._sharing is not None:
            self._sharing.memory.free()

    def memory(self, task: str) -> StageMemory:
        """Bytes on this rank, with all that training on data of `task` needs."""
        return StageMemory.of(self.stages, self.states, self._executors.chunks_for(task == "classification"))

    @property
    def memory_bytes(self) -> int:
        """Bytes allocated on this rank so far."""
        return StageMemory.of(self.stages, self.states, self._executors.chunks).total

    def _make_chunks(self) -> list[Chunk]:
        return [
            make_chunk(
                self._representatives,
                self._grid,
                index,
                stage,
                self._optimizer,
                state,
                batch_size=self._batch_size,
                synchronous=self._plan.synchronous_sends,
            )
            for index, (stage, state) in enumerate(zip(self.stages, self.states, strict=True))
        ]

    def _stop(self, what: str) -> NoReturn:
        for chunk in self._executors.chunks:
            chunk.finish()  # an exact method stops within its schedule, after the last message of the minibatch
        norms = np.sqrt(self.arrays.squared_norms([stage.weights for stage in self.stages]))
        layers = ", ".join(f"layer {index}: {norm:.3g}" for index, norm in enumerate(norms))
        raise NonFiniteLossError(
            f"{what}; norms of the weights: {layers}. "
            "Try a lower optimizer.lr, a training.clip_norm, or a warm-up; check the scale of the data"
        )
