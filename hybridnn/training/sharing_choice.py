"""Choice of shared replicas: whether the batch ranks of a node share their weights and gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hybridnn.comm.agreement import agree, hosts_where, name_hosts
from hybridnn.errors import SettingError
from hybridnn.nn.parameters import ParameterLayout
from hybridnn.parallel.dense import split_layers
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.nodes import free_shared_memory
from hybridnn.parallel.shared_replica import Sharing, share_replicas
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.program import plan_memory
from hybridnn.training.config import TrainConfig

TOO_FEW = "no node holds several ranks of a batch group"


def choose_sharing(
    config: TrainConfig, grid: ProcessGrid, layout: Layout, *, on_host: bool
) -> tuple[Layout, Sharing | None]:
    """Choose whether the batch ranks of a node share a replica; None for a private one. Collective over the grid.

    ``shared_replicas = "auto"`` shares if a node has several ranks of a batch group and enough memory. Some ranks may
    have a private replica where others share. Raises `SettingError` on every rank: ``shared_replicas`` is true, and
    sharing is impossible.
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
        sharing = share_replicas(grid)
        reason = _sharing_problem(sharing, config, grid, layout)
    if reason and setting is True:
        raise SettingError("parallel.shared_replicas", setting, f"{reason}; allowed are 'auto', true and false")
    return replace(layout, shared_replicas=not reason), None if reason else sharing


def _sharing_problem(sharing: Sharing | None, config: TrainConfig, grid: ProcessGrid, layout: Layout) -> str:
    """The reason why replicas cannot be shared, the same text on every rank; empty if they can."""

    def window_bytes() -> int:
        """Upper bound of the bytes of the windows that this rank allocates, including gradients."""
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
    if not maxima[1]:
        return ""
    hosts = name_hosts(hosts_where(grid.world, bool(too_large)))
    return f"the shared memory of {hosts} (/dev/shm) has no room for {maxima[2]:,} bytes"
