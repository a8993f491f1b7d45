"""Placement of ranks in the process grid, and checks of its axes."""

from __future__ import annotations

from collections.abc import Sequence

from hybridnn.errors import GridError, SettingError
from hybridnn.utils.checks import require_whole
from hybridnn.utils.text import counted


def place_ranks(nodes: Sequence[int], model: int) -> list[int]:
    """Order the ranks so that model groups are inside a node wherever possible.

    Model groups exchange activations in every layer, so they get the fastest links. Positions of the grid vary fastest
    along the model axis. Each node first provides as many complete model groups as it has ranks for; only the remaining
    ranks form groups across nodes. If ranks are numbered by node and every node has a multiple of `model` ranks, the
    order is 0, 1, 2, …

    Parameters
    ----------
    nodes : sequence of int
        Node of every rank; any integers, equal for ranks of one node.
    model : int
        Ranks of a model group.

    Returns
    -------
    list of int
        The rank at each position of the grid.
    """
    by_node: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        by_node.setdefault(node, []).append(rank)
    grouped, remaining = [], []
    for ranks in by_node.values():
        fitting = len(ranks) // model * model
        grouped += ranks[:fitting]
        remaining += ranks[fitting:]
    return grouped + remaining


def fitting_grids(ranks: int, pipeline: int = 1) -> list[tuple[int, int]]:
    """All (batch, model) pairs that use exactly `ranks` with `pipeline` stages."""
    if ranks % pipeline:
        return []
    rest = ranks // pipeline
    return [(batch, rest // batch) for batch in range(rest, 0, -1) if rest % batch == 0]


def resolve_axes(ranks: int, pipeline: int, batch: int | None, model: int) -> tuple[int, int, int]:
    """Check the axes against the number of ranks; without `batch`, that axis gets all remaining ranks.

    Raises
    ------
    SettingError
        If an axis is not an integer of at least 1.
    GridError
        If the product of the axes is not `ranks`; the message says what it is and lists grids that would fit.
    """
    for name, size in (("pipeline", pipeline), ("batch", batch), ("model", model)):
        if size is not None:
            require_whole(f"parallel.{name}", size, 1)
    axes = f"pipeline {pipeline} x " * (pipeline > 1) + f"batch {'?' if batch is None else batch} x model {model}"
    if batch is None and ranks % (pipeline * model) == 0:
        batch = ranks // (pipeline * model)
    if batch is None or pipeline * batch * model != ranks:
        needed = pipeline * (batch or 1) * model
        fits = ", ".join(f"{b} x {m}" for b, m in fitting_grids(ranks, pipeline))
        raise GridError(
            f"the process grid {axes} does not fit {counted(ranks, 'rank')}: "
            f"start it on {needed}{' or a multiple of that' * (batch is None)}, as with -n {needed}"
            + (f"; batch x model grids that would fit {ranks}: {fits}" if fits else "")
        )
    return pipeline, batch, model


def resolve_stages(ranks: int, stages: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Check the widths of the stages against the number of ranks.

    Parameters
    ----------
    stages : sequence of (int, int)
        Batch and model ranks of every stage.

    Raises
    ------
    SettingError
        If there is no stage, or a width is not an integer of at least 1.
    GridError
        If the stages do not have `ranks` ranks in total.
    """
    if not stages:
        raise SettingError("parallel.stages", [], "at least one stage, for example [{batch=2}, {}]")
    for stage, (batch, model) in enumerate(stages):
        require_whole(f"parallel.stages[{stage}].batch", batch, 1)
        require_whole(f"parallel.stages[{stage}].model", model, 1)
    widths = " + ".join(f"{batch} x {model}" for batch, model in stages)
    total = sum(batch * model for batch, model in stages)
    if total != ranks:
        raise GridError(
            f"parallel.stages: the stages' batch x model ranks {widths} are {total} in all, the job has {ranks}"
        )
    return tuple((int(batch), int(model)) for batch, model in stages)
