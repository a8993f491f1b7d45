"""Memory of a layout: the bytes of the arrays that the trainer's own code allocates in a dry run."""

from __future__ import annotations

from functools import lru_cache

from hybridnn.cost.prediction.dry_run import DRY_KERNELS, DryGrid
from hybridnn.cost.prediction.workload import Workload
from hybridnn.parallel.model_chunk import ModelChunk, ReplicaConfig
from hybridnn.pipeline.execution.chunk_runtime import ChunkPlan, make_runtime, plan_chunk
from hybridnn.pipeline.execution.memory import MemoryBreakdown
from hybridnn.pipeline.layout import Layout, Placement


def stage_memory(workload: Workload, layout: Layout, stage: int) -> MemoryBreakdown:
    """Bytes of the first rank of a stage, whose blocks are the largest, after its first step.

    The rank is in the batch group whose placement on nodes needs most. Asynchronous schedules are counted as long
    enough to reach their largest memory.

    Raises
    ------
    GridError
        If a layer has fewer outputs than there are ranks to split them.
    """
    memories = (_rank_memory(workload, layout, stage, placement) for placement in layout.replica_groups(stage))
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
    plans, fused = _chunk_plans(layout.pipeline_only)[stage], workload.fuses_update(layout)
    rounding = layout.rounding(stage)
    replica = ReplicaConfig(
        grid.share_replicas(placement) if fused or max(placement) > 1 else None,
        plans[0].weight_versions + len(optimizer.slot_names),
        "same" if rounding is None else rounding.name,
        fused,
    )
    chunks, states, runtimes = [], [], []
    for plan, layers in zip(plans, layout.layers_of(workload.model, stage), strict=True):
        chunk = ModelChunk(layers, grid, layout.model_split, workload.dtype, layout.overlap, DRY_KERNELS, replica)
        state = chunk.replica.new_state(optimizer, chunk.weights)
        runtime = make_runtime(plan, grid, chunk, optimizer, state, batch_size=workload.batch_size, synchronous=False)
        runtime.expect_targets(classification=workload.classification)
        if plan.accumulates:
            chunk.weight_gradient(runtime.workspace.arrays(1).layers, accumulate=True)
        chunks.append(chunk)
        states.append(state)
        runtimes.append(runtime)
    return MemoryBreakdown.of_rank(chunks, states, runtimes)


@lru_cache(maxsize=256)
def _chunk_plans(pipeline: Layout) -> tuple[tuple[ChunkPlan, ...], ...]:
    """Plans of the chunks of every stage, for a `Layout.pipeline_only`."""
    schedules, chunks = pipeline.largest_schedules(), range(pipeline.chunks)
    return tuple(
        tuple(plan_chunk(schedules, stage, chunk) for chunk in chunks) for stage in range(len(pipeline.stages))
    )
