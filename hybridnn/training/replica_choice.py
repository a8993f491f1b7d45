"""Choice of replicas: shared by the batch ranks of a node, fused with the update, or one per rank."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hybridnn.comm.agreement import agree
from hybridnn.errors import SettingError
from hybridnn.nn.parameters import ParameterLayout
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.layer_split import split_layers
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.memory_plan import plan_memory
from hybridnn.training.config import TrainConfig

if TYPE_CHECKING:
    from hybridnn.parallel.replicas.sharing import Sharing

TOO_FEW = "no node holds several ranks of a batch group"


def choose_sharing(
    config: TrainConfig, grid: ProcessGrid, layout: Layout, *, on_host: bool
) -> tuple[Layout, Sharing | None]:
    """Choose whether the batch ranks of a node share a replica; collective over the grid.

    ``shared_replicas = "auto"`` shares if a node has several ranks of a batch group and enough memory, unless the job
    was started with recovery from lost ranks: the shared memory is lost with the job, and an update that a lost rank
    left incomplete cannot be undone.

    Parameters
    ----------
    on_host : bool
        Whether the weights are in host memory.

    Returns
    -------
    Layout
        With the choice.
    Sharing or None
        None for a private replica, as some ranks may have where others share.

    Raises
    ------
    SettingError
        On every rank: ``shared_replicas`` is true, and sharing is impossible.
    GridError
        On every rank: a layer has fewer outputs than model ranks.
    """
    setting = config.shared_replicas
    if setting is False:
        return layout, None
    sharing = None
    if not on_host:
        reason = "not available on a GPU"
    elif grid.size == 1:
        reason = TOO_FEW
    else:
        # Imported here: a single rank shares no replica.
        from hybridnn.diagnostics.lost_ranks import tolerates_losses
        from hybridnn.parallel.replicas.sharing import share_replicas

        reason = "not available in a job that was started to survive lost ranks"
        if not tolerates_losses():
            sharing = share_replicas(grid)
            reason = _sharing_problem(sharing, config, grid, layout)
    if reason and setting is True:
        raise SettingError("parallel.shared_replicas", setting, f"{reason}; allowed are 'auto', true and false")
    return replace(layout, shared_replicas=not reason), None if reason else sharing


def uses_fused_update(
    config: TrainConfig, grid: ProcessGrid, layout: Layout, sharing: Sharing | None, *, on_host: bool
) -> bool:
    """Whether weight-gradient products are fused with the update (`FusedUpdateReplica`); equal within a batch group."""
    return on_host and layout.fuses_update(
        config.model,
        config.batch_size,
        config.optimizer,
        clips=config.clip_norm is not None,
        one_replica=grid.batch == 1 if sharing is None else sharing.is_whole,
    )


def _sharing_problem(sharing: Sharing | None, config: TrainConfig, grid: ProcessGrid, layout: Layout) -> str:
    """The reason why replicas cannot be shared, the same text on every rank; empty if they can."""
    from hybridnn.parallel.node_memory import free_shared_memory

    def window_bytes() -> int:
        """Upper bound of the bytes of the windows that this rank allocates, including gradients or partial products."""
        if sharing is None or not sharing.memory.is_leader:
            return 0
        versions = plan_memory(layout.largest_schedules()[0], grid.pipeline_rank).peak_weight_versions
        arrays = versions + len(config.optimizer.slot_names) + sharing.memory.group.size
        splits = [
            split_layers(layers, layout.model_split, grid.model, grid.model_rank)
            for layers in layout.layers_of(config.model, grid.pipeline_rank)
        ]
        elements = sum(ParameterLayout(chunk).size for chunk in splits)
        return arrays * elements * np.dtype(config.dtype).itemsize

    needed = np.array([agree(grid.world, window_bytes)], np.int64)
    grid.node_group.allreduce(needed)
    too_large = needed[0] > free_shared_memory()
    maxima = np.array([sharing is not None, too_large, needed[0] * too_large], np.int64)
    grid.world.allreduce(maxima, "max")
    if not maxima[0]:
        return TOO_FEW
    return f"a node's shared memory (/dev/shm) has no room for {maxima[2]:,} bytes" if maxima[1] else ""
