"""Memory of a layout: the bytes of the arrays that the trainer's own code allocates in a dry run.

The objects of a rank are made by their constructors on arrays that take no memory, without MPI.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.group import DONE, Group, Request
from hybridnn.comm.recorder import Recorder, capture_calls
from hybridnn.cost.prediction import Workload
from hybridnn.cost.prediction.groups import Placement, replica_groups
from hybridnn.cost.prediction.times import pipeline_of
from hybridnn.nn.kernels import Kernels
from hybridnn.nn.mlp import DenseLayer
from hybridnn.nn.parameters import LayerShard, ParameterLayout
from hybridnn.parallel.dense import parallel_dense
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.parallel.nodes import NodeMemory
from hybridnn.parallel.shared_replica import OwnedSlice, Sharing
from hybridnn.parallel.workspace import StageRole, Workspace
from hybridnn.pipeline.execution.chunk_runtime import ChunkRuntime, MemoryBreakdown
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.program import ChunkPlan, plan_chunk


def stage_memory(workload: Workload, layout: Layout, stage: int) -> MemoryBreakdown:
    """Bytes of the first rank of a stage, whose blocks are the largest, after its first step.

    The rank is in the batch group whose placement on nodes needs most. Asynchronous schedules are counted as long
    enough to reach their largest memory.
    """
    memories = (_rank_memory(workload, layout, stage, placement) for placement in replica_groups(layout, stage))
    return max(memories, key=lambda memory: memory.total)


def largest_memory(workload: Workload, layout: Layout) -> MemoryBreakdown:
    """Bytes of the rank that needs most."""
    stages = (stage_memory(workload, layout, stage) for stage in range(len(layout.stages)))
    return max(stages, key=lambda memory: memory.total)


def data_bytes(workload: Workload) -> int:
    """Bytes of the training samples, of which every node holds one copy with ``data.distribution = "local"``."""
    return workload.samples * (workload.model.sizes[0] * workload.itemsize + workload.target_bytes)


def _rank_memory(workload: Workload, layout: Layout, stage: int, placement: Placement) -> MemoryBreakdown:
    """Bytes of the first rank of a stage, in a batch group with that placement."""
    grid, optimizer = DryGrid(layout.stages, stage), workload.optimizer
    plans = _chunk_plans(pipeline_of(layout))[stage]
    sharing = grid.share_replicas(placement) if max(placement) > 1 else None
    replica = sharing, plans[0].weight_versions + len(optimizer.slot_names)
    chunks, states = [], []
    runtimes: list[ChunkRuntime] = []
    batch_size = min(workload.batch_size, workload.samples)
    for plan, layers in zip(plans, layout.layers_of(workload.model, stage), strict=True):
        chunk = ModelChunk(layers, grid, layout.model_split, workload.dtype, layout.overlap, DRY_KERNELS, *replica)
        state = chunk.replica.new_state(optimizer, chunk.weights)
        samples = ceil(batch_size / plan.microbatches)
        before = runtimes[-1] if runtimes else None
        runtime = ChunkRuntime(plan, grid, chunk, optimizer, state, samples=samples, before=before)
        runtime.workspace.expect_targets(labels=workload.classification)
        if plan.accumulates:
            chunk.weight_gradient(runtime.workspace.arrays(1).layers, accumulate=True)
        chunks.append(chunk)
        states.append(state)
        runtimes.append(runtime)
    return MemoryBreakdown.of_rank(chunks, states, runtimes)


@lru_cache(maxsize=256)
def _chunk_plans(pipeline: Layout) -> tuple[tuple[ChunkPlan, ...], ...]:
    """Plans of the chunks of every stage, for a `pipeline_of` a layout."""
    schedules, chunks = pipeline.largest_schedules(), range(pipeline.chunks)
    return tuple(
        tuple(plan_chunk(schedules, stage, chunk) for chunk in chunks) for stage in range(len(pipeline.stages))
    )


# -- dry run -----------------------------------------------------------------------------------------------------------


class DryArray(np.ndarray[Any, np.dtype[Any]]):
    """An array of any shape whose elements are all the same one in memory; assignments have no effect."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


def dry_array(shape: tuple[int, ...], dtype: DTypeLike) -> DryArray:
    """An array that takes the memory of one element; ``nbytes`` is that of all."""
    return DryArray(shape, dtype, np.zeros(1, dtype), strides=(0,) * len(shape))


class _DryKernels:
    """Kernels that allocate dry arrays and compute nothing."""

    on_host = True
    empty = zeros = staticmethod(dry_array)

    def to_device(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


DRY_KERNELS = cast(Kernels, _DryKernels())


class DryGroup(Group):
    """The first rank of a group: calls are recorded and nothing is sent."""

    def __init__(self, axis: str, ranks: int, recorder: Recorder) -> None:
        super().__init__(None, axis, recorder, members=range(ranks))

    def split(self, color: int, axis: str, key: Hashable = None) -> DryGroup:
        """The same ranks."""
        return self

    def allreduce(self, array: NDArray[Any], operation: str = "sum") -> None:
        """Record the call."""
        self._note("allreduce", array)

    def iallreduce(self, array: NDArray[Any], operation: str = "sum") -> Request:
        """Record the call."""
        self._note("allreduce", array)
        return DONE

    def allgather_rows(self, array: NDArray[Any]) -> None:
        """Record the call."""
        self._note("allgather", array)

    def _note(self, name: str, array: NDArray[Any]) -> None:
        if self.size > 1:
            self._finish(self._begin(name, nbytes=array.nbytes))


class DryGrid(ProcessGrid):
    """The first rank of a stage of a process grid."""

    def __init__(self, stages: Sequence[tuple[int, int]], stage: int) -> None:
        self.stages, self.pipeline, self.pipeline_rank = tuple(stages), len(stages), stage
        self.batch, self.model = stages[stage]
        self.batch_rank = self.model_rank = 0
        self.recorder = Recorder()
        self.world = DryGroup("world", 1, self.recorder)  # its size has no effect on a rank's arrays
        self.batch_group = DryGroup("batch", self.batch, self.recorder)
        self.model_group = DryGroup("model", self.model, self.recorder)

    def share_replicas(self, placement: Sequence[int]) -> Sharing:
        """Sharing of replicas as on the node with the fewest ranks of a batch group, with `placement` on each node."""
        sharers, slices = min(placement), max(placement)
        owners = DryGroup("batch", len(placement), self.recorder) if len(placement) > 1 else None
        owned = (OwnedSlice(number, owners) for number in range(slices) if number * sharers < slices)
        return Sharing(DryMemory(DryGroup("batch", sharers, self.recorder)), self.batch_group, slices, tuple(owned))


class DryMemory(NodeMemory):
    """Shared memory of dry arrays."""

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """A dry array."""
        return dry_array(shape, dtype)

    def publish(self, synchronize: object = None) -> None:
        """Nothing is written."""


class LayerCollectives(NamedTuple):
    """Collectives of a layer in its model group, each as an operation and the bytes of its vector for one sample."""

    forward: tuple[tuple[str, int], ...]
    backward: tuple[tuple[str, int], ...]


def layer_collectives(shard: LayerShard, ranks: int, itemsize: int) -> LayerCollectives:
    """Collectives of both passes of a layer, given its shard on the first of `ranks` ranks."""
    rows, columns = shard.weight_shape
    return _recorded(shard.layer, rows, columns, shard.by_inputs, shard.gathers, ranks, itemsize)


@lru_cache(1 << 14)
def _recorded(
    layer: DenseLayer, rows: int, columns: int, by_inputs: bool, gathers: bool, ranks: int, itemsize: int
) -> LayerCollectives:
    shard = LayerShard(layer, slice(0, rows), slice(0, columns), slice(0, 1), by_inputs, gathers)
    recorder, dtype, layout = Recorder(), np.dtype(f"V{itemsize}"), ParameterLayout([shard])
    dense = parallel_dense(shard, DryGroup("model", ranks, recorder), False, DRY_KERNELS)
    (arrays,) = Workspace([shard], 1, dtype, StageRole(layer.index == 0), kernels=DRY_KERNELS).arrays(1).layers
    (parameters,) = layout.views(dry_array((layout.size,), dtype))

    def backward() -> None:
        dense.backward_input(parameters, arrays)

    passes = [capture_calls(recorder, work) for work in (lambda: dense.forward(parameters, arrays), backward)]
    return LayerCollectives(*(tuple((call[0], call[3]) for call, _ in calls) for calls in passes))
