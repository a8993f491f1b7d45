"""Which rank stands where in the process grid, given the nodes the ranks run on."""

from __future__ import annotations

from collections.abc import Sequence

from hybridnn.errors import GridError, SettingError
from hybridnn.utils.checks import require_whole
from hybridnn.utils.text import counted


def place_ranks(nodes: Sequence[int], model: int) -> list[int]:
    """Order the ranks so that model groups lie inside a node wherever they fit.

    Model groups exchange activations in every layer, so they get the fastest links. Positions of the grid vary fastest
    along the model axis; each node first gives as many whole model groups as it holds, and only what is left over forms
    groups that cross nodes. With ranks numbered node by node and nodes of equal, fitting size the order is 0, 1, 2, …

    Parameters
    ----------
    nodes : sequence of int
        Node of every rank; any numbers, equal for ranks of one node.
    model : int
        Ranks in a model group.

    Returns
    -------
    list of int
        The rank that stands at each position of the grid.
    """
    by_node: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        by_node.setdefault(node, []).append(rank)
    whole, left_over = [], []
    for ranks in by_node.values():
        fitting = len(ranks) // model * model
        whole += ranks[:fitting]
        left_over += ranks[fitting:]
    return whole + left_over


def fitting_grids(ranks: int, pipeline: int = 1) -> list[tuple[int, int]]:
    """All (batch, model) pairs that use exactly `ranks` with `pipeline` stages."""
    if ranks % pipeline:
        return []
    rest = ranks // pipeline
    return [(batch, rest // batch) for batch in range(rest, 0, -1) if rest % batch == 0]


def resolve_axes(ranks: int, pipeline: int, batch: int | None, model: int) -> tuple[int, int, int]:
    """Check the axes against the number of ranks; without `batch`, all ranks that are left go to it.

    Raises
    ------
    SettingError
        If an axis is not a whole number, 1 or more.
    GridError
        If the axes do not multiply to `ranks`; the message says how many they take, and lists the grids that would fit.
    """
    for name, size in (("pipeline", pipeline), ("batch", batch), ("model", model)):
        if size is not None:
            require_whole(f"parallel.{name}", size, 1)
    asked = f"pipeline {pipeline} x " * (pipeline > 1) + f"batch {'?' if batch is None else batch} x model {model}"
    if batch is None and ranks % (pipeline * model) == 0:
        batch = ranks // (pipeline * model)
    if batch is None or pipeline * batch * model != ranks:
        needed = pipeline * (batch or 1) * model
        fits = ", ".join(f"{b} x {m}" for b, m in fitting_grids(ranks, pipeline))
        raise GridError(
            f"the process grid {asked} does not fit {counted(ranks, 'rank')}: "
            f"start it on {needed}{' or a multiple of that' * (batch is None)}, as with -n {needed}"
            + (f"; batch x model grids that would fit {ranks}: {fits}" if fits else "")
        )
    return pipeline, batch, model


def resolve_stages(ranks: int, stages: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Check the widths of the stages against the number of ranks.

    Parameters
    ----------
    ranks : int
    stages : sequence of (int, int)
        Batch and model ranks of every stage.

    Raises
    ------
    SettingError
        If there is no stage, or a width is not a whole number, 1 or more.
    GridError
        If the stages do not add up to `ranks`.
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
