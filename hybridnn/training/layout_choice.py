"""Choice of the layout: the requested layout, resolved for the ranks of a training, whose memory it fits."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from hybridnn.comm.agreement import agree
from hybridnn.comm.mpi import is_in_process
from hybridnn.errors import SettingError
from hybridnn.nn.kernels import Kernels
from hybridnn.parallel.grid import ProcessGrid, StageShapes
from hybridnn.pipeline.layout import Layout
from hybridnn.training.config import OPTIONS, PIPELINE_OPTIONS, TrainConfig
from hybridnn.utils.text import format_bytes


def choose_layout(config: TrainConfig, grid: ProcessGrid, *, on_host: bool) -> Layout:
    """The layout of a training on a grid, equal on all ranks, with the layers of a ``profile`` partition; collective.

    All message sizes follow from it, so messages need no headers. Whether replicas are shared is chosen by
    `hybridnn.training.sharing_choice`. Errors are those of `resolve_layout`, on every rank.
    """
    layout = agree(grid.world, lambda: resolve_layout(config, grid.stages, grid.node_ranks, on_host=on_host))
    if config.partition != "profile":
        return layout
    from hybridnn.training.pipeline_choice import profiled_layers

    counts = agree(grid.world, lambda: profiled_layers(layout, config) if grid.rank == 0 else layout.layers)
    partition = np.array(counts, np.int64)
    grid.world.broadcast(partition)
    return replace(layout, layers=tuple(partition.tolist()))


def resolve_layout(config: TrainConfig, stages: StageShapes, node_ranks: int, *, on_host: bool = True) -> Layout:
    """Resolve the wishes of a configuration on stages of (batch, model) ranks, and check them.

    With a single stage, every exact method becomes ``sequential`` with one microbatch, and other methods are refused.
    By default the microbatches and the partition are those that are fastest by typical costs. A ``profile`` partition
    is uniform here, because it requires timing the layers. Replicas are shared unless the configuration excludes it, or
    a GPU trains. `node_ranks` are the ranks of a full node.

    Raises `SettingError` if a setting is not allowed, or conflicts with another.
    """
    pipeline: dict[str, Any] = {"layers": (len(config.model.layers),), "merges": True}
    if len(stages) > 1 or any(getattr(config, name) != OPTIONS[name].default for name in PIPELINE_OPTIONS):
        from hybridnn.training.pipeline_choice import resolve_pipeline  # a single stage needs none

        pipeline = resolve_pipeline(config, stages)
    overlap = config.overlap
    if not isinstance(overlap, bool):
        # Within a node the cores that compute also copy the messages, so that overlap gains nothing
        # (benchmarks/batch_parallel.py).
        overlap = node_ranks < sum(map(prod, stages)) or not on_host
    return Layout(
        stages,
        model_split=config.model_split,
        overlap=overlap,
        shared_replicas=on_host and config.shared_replicas is not False,
        node_ranks=node_ranks,
        **pipeline,
    )


# -- memory ------------------------------------------------------------------------------------------------------------

MOST_ARRAYS = 16  # upper bound of the arrays of a rank for each of its parameters, and for each activation
LEAST_CHECKED = 1 << 30  # bytes: what is surely less is not computed exactly
TOLERANCE = 1.1  # available memory is an estimate of the system


def require_memory(
    config: TrainConfig,
    grid: ProcessGrid,
    layout: Layout,
    kernels: Kernels,
    samples: int = 0,
    *,
    labels: bool = True,
    held: int = 0,
    more: int = 0,
    unwritten: int = 0,
) -> None:
    """Check that a training fits the memory that is free; collective.

    Systems give memory when it is written: a training that is too large would be ended in the middle. `samples` are
    those of the largest minibatch; 0: of parameters, gradients and optimizer state only. `held` are bytes that this
    rank has allocated, `unwritten` those among them that it has not written, and `more` those that it needs besides in
    host memory.

    Raises `SettingError` on every rank: it does not fit the memory of one, with the bytes that are needed and free.
    """
    model, itemsize = config.model, np.dtype(config.dtype).itemsize
    ranks = max(grid.node_ranks, 1)
    elements = ranks * model.parameters + samples * sum(model.sizes) * grid.model
    if MOST_ARRAYS * elements * itemsize + ranks * more < LEAST_CHECKED:
        return
    from hybridnn.comm.hosts import available_memory, free_address_space  # small trainings do not need them
    from hybridnn.cost.prediction import Workload
    from hybridnn.cost.prediction.memory import stage_memory

    workload = Workload(
        model,
        max(samples, 1),
        config.batch_size,
        np.dtype(config.dtype).name,
        config.optimizer,
        classification=labels,
        distribution=config.distribution,
    )
    memory = stage_memory(workload, layout, grid.pipeline_rank)
    needed = memory.weight_bytes + memory.optimizer_bytes
    if samples:
        needed = memory.total - held + (more if kernels.on_host else 0)
    on_node = np.array([needed, unwritten], np.int64)
    grid.node_group.allreduce(on_node)

    def check() -> None:
        of_process = int(on_node[0]) if is_in_process() else needed
        bounds = [(needed, float(kernels.free_bytes()), "on its GPU")]
        if kernels.on_host:
            bounds = [(int(on_node.sum()), available_memory(), "on its node")]
            bounds.append((of_process, free_address_space(), "within the limits of its process (ulimit -v, -d)"))
        for nbytes, free, where in bounds:
            if nbytes > TOLERANCE * free:
                of_samples = samples > 0 and 2 * (memory.activation_bytes + memory.buffer_bytes) > memory.total
                amounts = f": {format_bytes(nbytes)} are needed and {format_bytes(free)} are free {where}"
                raise does_not_fit(config, amounts, of_samples=of_samples)

    agree(grid.world, check)


def does_not_fit(config: TrainConfig, amounts: str = "", *, of_samples: bool) -> SettingError:
    """The error that the arrays of the samples, or else of the parameters, do not fit."""
    problem = f"do not fit this rank's memory{amounts}"
    if of_samples:
        return SettingError("training.batch_size", config.batch_size, f"the activations of a minibatch {problem}")
    what = f"{config.model.parameters:,} parameters, their gradients and the optimizer's state"
    return SettingError("model.sizes", config.model.sizes, f"{what} {problem}")
