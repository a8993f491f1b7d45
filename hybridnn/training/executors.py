"""Executors of a rank, compiled once for each number of minibatches, and the runtimes of chunks that they share."""

from __future__ import annotations

from collections.abc import Callable

from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.execution.chunk_runtime import ChunkRuntime
from hybridnn.pipeline.execution.executor import Executor, Loss
from hybridnn.pipeline.execution.program import make_program
from hybridnn.pipeline.layout import Layout

KEPT = 4  # executors that are kept: for training, for forward passes, and for shorter last epochs of both


class Executors:
    """Executors on the same workspaces, which are allocated when the first is needed.

    Parameters
    ----------
    loss : callable
        Makes the loss function of a task.
    make_runtimes : callable
        Makes the runtimes of this rank's chunks.

    Attributes
    ----------
    runtimes : list of ChunkRuntime
        Empty before the first executor.
    """

    def __init__(
        self,
        grid: ProcessGrid,
        layout: Layout,
        loss: Callable[[str], Loss],
        make_runtimes: Callable[[], list[ChunkRuntime]],
    ) -> None:
        self._grid, self._layout, self._loss, self._make_runtimes = grid, layout, loss, make_runtimes
        self.runtimes: list[ChunkRuntime] = []
        self._kept: dict[tuple[str | None, bool, int], Executor] = {}

    def executor(self, task: str | None, count: int, *, trains: bool) -> Executor:
        """The executor for `count` minibatches, for training or for forward passes only.

        Parameters
        ----------
        task : {"classification", "regression"} or None
            None if there are no targets.
        """
        key = task, trains, count
        executor = self._kept.pop(key, None)
        if executor is None:
            runtimes = self.runtimes_for(task)
            schedule = self._layout.schedule if trains else self._layout.forward_schedule
            program = make_program(schedule, self._grid.pipeline_rank, self._grid.pipeline, count)
            executor = Executor(program, self._grid, runtimes, None if task is None else self._loss(task))
        self._kept[key] = executor  # inserted last: the first one is the least recently used
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return executor

    def runtimes_for(self, task: str | None) -> list[ChunkRuntime]:
        """The runtimes, with workspace for the targets of a task."""
        if not self.runtimes:
            self.runtimes = self._make_runtimes()
        if task is not None:
            for runtime in self.runtimes:
                runtime.expect_targets(classification=task == "classification")
        return self.runtimes
