"""Process grid: the coordinates of every rank on the axes pipeline, batch and model, and its groups along them.

There is one ``MPI_Comm_split`` per axis (Laugier et al. 2018, Figure 3: communicators along which either the weights or
the samples are split). Ranks vary fastest along model, then batch, then pipeline. Model groups exchange activations in
every layer, so they get the fastest links: each node first provides as many complete model groups as it has ranks for,
and only the remaining ranks of all nodes form groups across nodes.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from threading import RLock
from typing import TYPE_CHECKING, Any

from hybridnn.comm.group import MESSAGE_LIMIT, Group
from hybridnn.comm.mpi import detect_launch, import_mpi, is_child, ranks_within, require_communicator
from hybridnn.comm.recorder import Recorder
from hybridnn.errors import GridError, SettingError
from hybridnn.utils.checks import require_number, require_whole, with_advice
from hybridnn.utils.text import counted

if TYPE_CHECKING:
    from mpi4py import MPI

    from hybridnn.diagnostics.stall_watchdog import StallWatchdog
    from hybridnn.gpu.setup import TransportFactory

StageShapes = tuple[tuple[int, int], ...]  # batch and model ranks of every stage

AXES_BY_NAME = "name the axes, as in ProcessGrid(pipeline=2, batch=2)"
STALL_SECONDS = 60.0  # of `TrainConfig`, too


class ProcessGrid:
    """Ranks arranged as pipeline × batch × model.

    Parameters
    ----------
    comm : MPI.Intracomm, optional
        The ranks to arrange; all of the job's (``COMM_WORLD``) by default. Collective over it. Grids of one shape share
        communicators, which are kept with `comm`: to train in several threads, give each grid one of its own.
    pipeline : int
        Stages of the layer pipeline.
    batch : int, optional
        Ranks that share a minibatch; by default all that the other axes leave.
    model : int
        Ranks that share every layer.
    stages : sequence of (int, int), optional
        Batch and model ranks of every stage, for stages of different widths; replaces the three axes.
    recorder : Recorder, optional
        Receives every call; a new one by default.
    message_limit : int
        Bytes above which an array is sent in pieces.
    stall_seconds : float
        The job ends if not all ranks of `comm` make the grid within this time; 0 for no limit.

    Attributes
    ----------
    comm : MPI.Intracomm
        As given.
    world, pipeline_group, batch_group, model_group, node_group : Group
        All ranks, this rank's three groups, and the ranks of this rank's node.
    groups : tuple of Group
        These, in the same order on all ranks.
    rank, size : int
        Position in the grid, and number of ranks; rank 0 loads data, logs and writes files.
    pipeline_rank, batch_rank, model_rank : int
        This rank's coordinates.
    pipeline, batch, model : int
        Sizes of the axes; batch and model are those of this rank's stage.
    stages : tuple of (int, int)
        Batch and model ranks of every stage.
    nodes : int
        Number of nodes.
    node_ranks : int
        Most ranks on a node.
    lock : RLock
        Held by the thread that is in a collective method of a trainer; grids of one communicator share it.
    trainers : int
        Number of trainers that were made on the grid, if it has several ranks.
    stall_watchdog : StallWatchdog or None
        Ends a job that stalls, from the first training on the grid on; None for one rank.

    Raises
    ------
    GridError
        If the product of the axes is not the number of ranks, or, on every rank, if the ranks' arguments differ.

    Examples
    --------
    >>> grid = ProcessGrid()          # one rank: every group has one member
    >>> grid.shape
    (1, 1, 1)
    """

    @with_advice({"stage": "did you mean stages?", "ranks": "start it on so many ranks, as with -n", "*": AXES_BY_NAME})
    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        *,
        pipeline: int = 1,
        batch: int | None = None,
        model: int = 1,
        stages: Sequence[tuple[int, int]] | None = None,
        recorder: Recorder | None = None,
        message_limit: int = MESSAGE_LIMIT,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        require_number("stall_seconds", stall_seconds, at_least=0)
        everyone = all_ranks_group(comm, stall_seconds)
        if everyone.size > 1:
            from hybridnn.comm.agreement import unequal_values

            axes = {"pipeline": pipeline, "batch": batch, "model": model, "stages": stages}
            given = {name: repr(value) for name, value in (axes | {"message_limit": message_limit}).items()}
            unequal = unequal_values(everyone, lambda: given)
            if unequal:
                texts = "; ".join(difference.text for difference in unequal)
                raise GridError(f"process grid: {texts}; it must be the same on every rank")
        self.comm: Any = comm if comm is not None else import_mpi().COMM_WORLD
        size, self.lock = self.comm.Get_size(), RLock()
        if size > 1:
            from hybridnn.comm.kept import free_unused, kept  # one rank has no communicators

            free_unused(self.comm)
            self.lock = kept(self.comm, "lock", RLock)  # grids share communicators
        message_limit = require_whole("message_limit", message_limit, 1)
        if not isinstance(recorder, Recorder | None):
            raise SettingError("recorder", recorder, "must be a Recorder")
        if stages is None:
            pipeline, batch, model = resolve_axes(size, pipeline, batch, model)
            self.stages: StageShapes = ((batch, model),) * pipeline
        else:
            self.stages = resolve_stages(size, stages)
        self.pipeline = len(self.stages)
        self._first_of_stage = [0, *accumulate(map(prod, self.stages))]
        self.recorder = recorder if recorder is not None else Recorder()
        self.trainers = 0
        self._make_groups(*self._place(), message_limit)
        self.stall_watchdog: StallWatchdog | None = None
        if self.size > 1:
            from hybridnn.diagnostics.stall_watchdog import StallWatchdog

            # Made here although a training starts it: a rank that leaves before that is named too.
            self.stall_watchdog = StallWatchdog.for_grid(self.recorder, self.world.comm, self.node_group.comm)

    def _place(self) -> tuple[int, int]:
        """Find nodes and this rank's coordinates; return its position and its node. Collective."""
        rank, nodes = self.comm.Get_rank(), [0]
        position = rank
        if self.comm.Get_size() > 1:
            from hybridnn.parallel.nodes import nodes_of_ranks, place_ranks

            nodes = nodes_of_ranks(self.comm)
            position = place_ranks(nodes, max(model for _, model in self.stages)).index(rank)
        self.nodes, self.node_ranks = len(set(nodes)), max(Counter(nodes).values())
        self.pipeline_rank = bisect_right(self._first_of_stage, position) - 1
        self.batch, self.model = self.stages[self.pipeline_rank]
        self.shape = self.pipeline, self.batch, self.model
        self.batch_rank, self.model_rank = divmod(position - self._first_of_stage[self.pipeline_rank], self.model)
        return position, nodes[rank]

    def _make_groups(self, position: int, node: int, message_limit: int) -> None:
        """Split the ranks along the axes. Collective."""

        def group(axis: str, color: int, longest: int) -> Group:
            comm, members = None, [position]
            if longest > 1:
                from hybridnn.comm.kept import kept_split

                comm = kept_split(self.comm, (axis, self.stages), color, position)
            if comm is not None:
                members = ranks_within(comm, comm if axis == "world" else self.world.comm)
            return Group(comm, axis, self.recorder, message_limit, members)

        first, ranks = self._first_of_stage[self.pipeline_rank], self.comm.Get_size()
        self.world = group("world", 0, ranks)
        self.model_group = group("model", first + self.batch_rank, max(model for _, model in self.stages))
        self.batch_group = group("batch", first + self.model_rank, max(batch for batch, _ in self.stages))
        self.pipeline_group = group("pipeline", self.batch_rank * ranks + self.model_rank, self.pipeline)
        self.node_group = group("node", node, self.node_ranks)
        self.groups = self.world, self.pipeline_group, self.batch_group, self.model_group, self.node_group
        self.rank, self.size = self.world.rank, self.world.size

    def attach_device(self, transports: TransportFactory) -> str:
        """Enable arrays of this rank's device in all groups; collective, and nothing may be in flight.

        Returns the first reason why this rank could not be connected in a group, which then stages its arrays; empty if
        all groups are connected. The remaining groups are attached in either case.
        """
        problems = [group.attach_device(transports) for group in self.groups]
        return next(filter(None, problems), "")

    def disconnect(self) -> None:
        """Close connections other than MPI: see `Group.disconnect`."""
        for group in self.groups:
            group.disconnect()

    def rank_at(self, stage: int, batch_rank: int, model_rank: int) -> int:
        """Position in the grid of coordinates in a stage."""
        return self._first_of_stage[stage] + batch_rank * self.stages[stage][1] + model_rank

    def __repr__(self) -> str:
        return (
            f"ProcessGrid(pipeline={self.pipeline}, batch={self.batch}, model={self.model}, "
            f"rank={self.rank} at {self.pipeline_rank, self.batch_rank, self.model_rank})"
        )


def all_ranks_group(comm: MPI.Intracomm | None = None, stall_seconds: float = STALL_SECONDS) -> Group:
    """Group of the ranks of `comm`, by default all of the job, before they are arranged as a grid; collective.

    A rank that exits instead, or does not call this within `stall_seconds` (0 for no limit), ends the job: see
    `hybridnn.diagnostics.failsafe.wait_for_ranks`. Raises `EnvironmentProblem` on every process if MPI does not see all
    processes that were started, and `GridError` if `comm` belongs to other ranks than those running.
    """
    if comm is not None:
        require_communicator(comm)
    elif not is_child() and detect_launch(os.environ) is not None:
        from hybridnn.comm.launcher import require_complete_launch

        require_complete_launch()
    ranks = comm if comm is not None else import_mpi().COMM_WORLD
    if ranks.Get_size() > 1:
        from hybridnn.diagnostics.failsafe import wait_for_ranks

        wait_for_ranks(ranks, stall_seconds)
    return Group(ranks, "world", Recorder())


def fitting_grids(ranks: int, pipeline: int = 1) -> list[tuple[int, int]]:
    """All (batch, model) pairs that use exactly `ranks` with `pipeline` stages."""
    if ranks % pipeline:
        return []
    rest = ranks // pipeline
    return [(batch, rest // batch) for batch in range(rest, 0, -1) if rest % batch == 0]


def resolve_axes(ranks: int, pipeline: int, batch: int | None, model: int) -> tuple[int, int, int]:
    """Check the axes against the number of ranks; without `batch`, that axis gets all remaining ranks.

    Raises `SettingError` if an axis is not an integer of at least 1, and `GridError`, which lists grids that would fit,
    if the product of the axes is not `ranks`.
    """
    pipeline, model = require_whole("parallel.pipeline", pipeline, 1), require_whole("parallel.model", model, 1)
    batch = None if batch is None else require_whole("parallel.batch", batch, 1)
    sizes = {"pipeline": pipeline if pipeline > 1 else None, "batch": batch, "model": model}
    axes = " x ".join(f"{name} {size}" for name, size in sizes.items() if size is not None)
    if batch is None and ranks % (pipeline * model) == 0:
        batch = ranks // (pipeline * model)
    if batch is None or pipeline * batch * model != ranks:
        needed = pipeline * (batch or 1) * model
        fits = ", ".join(f"{b} x {m}" for b, m in fitting_grids(ranks, pipeline))
        raise GridError(
            f"the process grid {axes} does not fit {counted(ranks, 'rank')}: "
            f"start it on {needed}{' or a multiple of that' * (batch is None)}, as with -n {needed}"
            + (f", or in a notebook with hybridnn.in_process.run_ranks({needed}, program)" if ranks == 1 else "")
            + (f"; batch x model grids that would fit {ranks}: {fits}" if fits else "")
        )
    return pipeline, batch, model


def resolve_stages(ranks: int, stages: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Check the widths of the stages, batch and model ranks of each, against the number of ranks.

    Raises `SettingError` if there is no stage, or a width is not an integer of at least 1, and `GridError` if the
    stages do not have `ranks` ranks in total.
    """
    try:
        pairs = [(batch, model) for batch, model in stages]
    except (TypeError, ValueError):
        pairs = []
    if not pairs:
        allowed = "must be a list of the batch and model ranks of every stage, for example [(2, 1), (1, 1)]"
        raise SettingError("parallel.stages", stages, allowed)
    shapes = []
    for stage, sizes in enumerate(pairs):
        named = zip(("batch", "model"), sizes, strict=True)
        batch, model = (require_whole(f"parallel.stages[{stage}].{name}", size, 1) for name, size in named)
        shapes.append((batch, model))
    widths = " + ".join(f"{batch} x {model}" for batch, model in shapes)
    total = sum(map(prod, shapes))
    if total != ranks:
        raise GridError(
            f"parallel.stages: the stages' batch x model ranks {widths} are {total} in all, the job has {ranks}"
        )
    return tuple(shapes)
