"""A rank's layers with their memory, and the executors that run schedules on them; each is made when it is needed."""

from __future__ import annotations

from collections.abc import Callable

from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.execution.chunk import Chunk
from hybridnn.pipeline.execution.executor import Executor
from hybridnn.training.pipelining import PipelinePlan

KEPT_EXECUTORS = 4
"""Schedules that are kept for the next run of as many minibatches: of training, of tests, and of other data."""


class Executors:
    """Executors of one engine.

    Parameters
    ----------
    plan : PipelinePlan
    grid : ProcessGrid
    make_chunks : callable
        Allocates this rank's chunks.

    Attributes
    ----------
    chunks : list of Chunk
        Empty until they are needed.
    """

    def __init__(self, plan: PipelinePlan, grid: ProcessGrid, make_chunks: Callable[[], list[Chunk]]) -> None:
        self._plan, self._grid, self._make_chunks = plan, grid, make_chunks
        self._kept: dict[tuple[bool, int], Executor] = {}
        self.chunks: list[Chunk] = []

    def chunks_for(self, classification: bool | None) -> list[Chunk]:
        """This rank's chunks, with room for the targets of a task; predicting needs none."""
        if not self.chunks:
            self.chunks = self._make_chunks()
        if classification is not None:
            for chunk in self.chunks:
                chunk.expect_targets(classification=classification)
        return self.chunks

    def get(self, classification: bool | None, *, trains: bool, count: int) -> Executor:
        """The executor of `count` minibatches, of training or of forward passes alone.

        Parameters
        ----------
        classification : bool or None
            The task; None where there are no targets.
        """
        chunks = self.chunks_for(classification)
        key = trains, count
        executor = self._kept.pop(key, None)
        if executor is None:
            schedule = self._plan.training(count) if trains else self._plan.evaluation(count)
            executor = Executor(schedule, self._grid, chunks)
        self._kept[key] = executor  # behind all others: the one in front was not used for longest
        if len(self._kept) > KEPT_EXECUTORS:
            del self._kept[next(iter(self._kept))]
        return executor
