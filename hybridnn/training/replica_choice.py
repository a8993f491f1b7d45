"""``parallel.shared_replicas``: whether the batch ranks of a node train one replica that they share."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.agreement import agree
from hybridnn.diagnostics.lost_ranks import tolerates_losses
from hybridnn.errors import SettingError
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import Optimizer
from hybridnn.nn.parameters import ParameterLayout
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.layer_split import split_layers
from hybridnn.parallel.node_memory import free_shared_memory
from hybridnn.parallel.replicas.fused_update import fused_update_pays
from hybridnn.parallel.replicas.sharing import Sharing, share_replicas
from hybridnn.pipeline.schedules.memory_plan import plan_memory
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.training.pipelining import PipelinePlan


def settle_sharing(
    wanted: bool | str,
    model: MLP,
    optimizer: Optimizer,
    grid: ProcessGrid,
    plan: PipelinePlan,
    *,
    model_split: str,
    dtype: DTypeLike,
    on_host: bool,
) -> Sharing | None:
    """Let the batch ranks of a node share a replica, where that is wanted and can be; collective over the grid.

    Parameters
    ----------
    wanted : bool or "auto"
        ``"auto"`` shares wherever a node holds several ranks of a batch group and has room for it, unless the job was
        started to outlive lost ranks: the memory goes with the job, and what a lost rank left half updated is lost.
    model, optimizer, grid, plan, model_split, dtype
        As for `Engine`.
    on_host : bool
        Whether the weights lie in the host's memory.

    Returns
    -------
    Sharing or None
        None where this rank keeps a replica of its own.

    Raises
    ------
    SettingError
        On every rank alike: `wanted` is true, and it cannot be.
    GridError
        On every rank: a layer has fewer outputs than there are ranks to split them.
    """
    if wanted is False:
        return None
    sharing = None
    if not on_host:
        reason = "cannot be on a GPU"
    elif tolerates_losses():
        reason = "cannot be where the job was started to outlive lost ranks"
    else:
        sharing = share_replicas(grid)
        reason = _what_is_missing(sharing, model, optimizer, grid, plan, model_split=model_split, dtype=dtype)
    if reason and wanted is True:
        raise SettingError("parallel.shared_replicas", wanted, f"{reason}; allowed are 'auto', true and false")
    return None if reason else sharing


def takes_products(
    model: MLP,
    optimizer: Optimizer,
    grid: ProcessGrid,
    plan: PipelinePlan,
    sharing: Sharing | None,
    *,
    batch_size: int,
    clip_norm: float | None,
    on_host: bool,
) -> bool:
    """Whether the update takes weight gradients as products, so that nobody keeps them; see `ProductReplica`.

    The parameters are those of `Engine`; it is the same on all ranks of a batch group.
    """
    return (
        on_host
        and plan.stages == plan.microbatches == 1
        and clip_norm is None
        and optimizer.reads_gradient_once
        and (grid.batch == 1 if sharing is None else sharing.is_whole)
        and fused_update_pays(model, batch_size, grid.batch, grid.model)
    )


def shared_arrays(optimizer: Optimizer, schedule: Schedule, stage: int) -> int:
    """Arrays of a chunk's parameters that are shared: current weights, older versions, slots of the optimizer."""
    return plan_memory(schedule, stage).peak_weight_versions + len(optimizer.slot_names)


def _what_is_missing(
    sharing: Sharing | None,
    model: MLP,
    optimizer: Optimizer,
    grid: ProcessGrid,
    plan: PipelinePlan,
    *,
    model_split: str,
    dtype: DTypeLike,
) -> str:
    """Why replicas cannot be shared; empty where they can, and the same on every rank."""

    def window_bytes() -> int:
        """Of the windows whose memory this rank provides, with gradients, or no more than that for products instead."""
        if sharing is None or not sharing.memory.is_leader:
            return 0
        arrays = shared_arrays(optimizer, plan.representatives()[0], grid.pipeline_rank) + sharing.memory.group.size
        splits = [
            split_layers(layers, model_split, grid.model, grid.model_rank)
            for layers in plan.layers_of(model, grid.pipeline_rank)
        ]
        numbers = sum(ParameterLayout(chunk).size for chunk in splits)
        return arrays * numbers * np.dtype(dtype).itemsize

    needed = np.array([agree(grid.world, window_bytes)], np.int64)
    grid.node_group.allreduce(needed)
    lacks = needed[0] > free_shared_memory()
    found = np.array([sharing is not None, lacks, needed[0] * lacks], np.int64)
    grid.world.allreduce(found, "max")
    if not found[0]:
        return "no node holds several ranks of a batch group"
    return f"a node's shared memory (/dev/shm) has no room for {found[2]:,} bytes" if found[1] else ""
