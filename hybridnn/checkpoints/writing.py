"""Writing checkpoints, beside the training or while it waits.

A checkpoint is made in phases, each of which begins when all ranks have done the one before: every rank writes its part
of the arrays to a folder with a temporary name and digests the arrays it has whole; the files that nobody has whole are
read again and digested; rank 0 checks the sizes, writes the manifest, gives the folder its name and removes checkpoints
that are no longer kept. Everything is on disk (``fsync``) before the folder gets its name.

Work in the background that all ranks do in phases: a phase begins when every rank has done the one before.

Threads do the work and make no MPI calls, whatever thread level the library gives. What joins the ranks between two
phases is a non-blocking all-reduce that the training's own thread starts and tests when it asks how far things are.

Whole rows of matrices that are split by columns, so that a rank writes one stretch of a file and not one per row.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.checkpoints.blocks import (
    ArrayShare,
    HeldBlock,
    array_shapes,
    files_to_read_again,
    held_blocks,
    shares_of_rank,
)
from hybridnn.checkpoints.folder import clean, nearest_existing, prune
from hybridnn.checkpoints.manifest import Origin, Progress
from hybridnn.checkpoints.pending import ArrayFiles, Findings, PendingCheckpoint
from hybridnn.comm.agreement import agree
from hybridnn.comm.file_io import Rectangle
from hybridnn.comm.group import Group
from hybridnn.comm.partition import block_sizes
from hybridnn.comm.request import Request
from hybridnn.errors import EnvironmentProblem, HybridnnError
from hybridnn.kernels.backend import Array
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import OptimizerState
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.stage import Stage
from hybridnn.utils.checks import require_whole

Job = Callable[[], None]


class CollectivePhases:
    """Jobs in the background, in phases that all ranks of a group go through together.

    Parameters
    ----------
    group : Group
        Used for nothing else meanwhile. Every rank makes the same number of phases.
    shared : ndarray of uint8
        Replaced by its maximum over the ranks after each phase; jobs may write to it. The first number is set where a
        job failed on any rank, and no further phase begins.
    phases : sequence of sequence of callable
        The jobs of each phase, each in a thread of its own.

    Attributes
    ----------
    error : BaseException or None
        The first that a job of this rank raised.
    """

    def __init__(self, group: Group, shared: NDArray[np.uint8], phases: Sequence[Sequence[Job]]) -> None:
        self._group, self._shared = group, shared
        self._phases = list(phases)
        self._threads: list[Thread] = []
        self._joining: Request | None = None
        self.error: BaseException | None = None
        self._done = False
        self._start()

    @property
    def failed(self) -> bool:
        """Whether a job failed on any rank; known when all is done."""
        return bool(self._shared[0])

    def advance(self) -> bool:
        """Begin what can be begun, without waiting; True once all phases are done on all ranks."""
        while not self._done:
            if self._joining is None:
                if any(thread.is_alive() for thread in self._threads):
                    return False
                self._shared[0] = self.error is not None
                self._joining = self._group.iallreduce(self._shared, "max")
            if not self._joining.test():
                return False
            self._joining = None
            if self.failed or not self._phases:
                self._done = True
            else:
                self._start()
        return True

    def join(self) -> None:
        """Return when no job of this rank runs any more; none begins without `advance`."""
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        # Daemons: a rank that ends with an error does not wait for a disk.
        self._threads = [Thread(target=self._run, args=(job,), daemon=True) for job in self._phases.pop(0)]
        for thread in self._threads:
            thread.start()

    def _run(self, job: Job) -> None:
        try:
            job()
        except BaseException as error:  # looked at, and raised again, in the training's own thread
            self.error = self.error or error


def gather_whole_rows(
    group: Group, block: Array, rows: Sequence[slice], out: NDArray[Any], to_host: Callable[[Array], NDArray[Any]]
) -> None:
    """Give every rank of a group some rows of a matrix of which each holds a block of columns; collective.

    Parameters
    ----------
    group : Group
    block : array, shape (all rows, this rank's columns)
    rows : sequence of slice
        What each rank gets.
    out : ndarray, shape (this rank's rows, all columns)
    to_host : callable
        As `Kernels.to_host`.
    """
    widths = block_sizes(out.shape[1], group.size)
    for rank, wanted in enumerate(rows):
        piece = to_host(block[wanted])
        counts = [len(piece) * width for width in widths]
        pieces = np.empty(out.size, out.dtype) if rank == group.rank else None
        group.gather_rows(piece.reshape(-1), pieces, counts, root=rank)
        if pieces is not None:
            parts = np.split(pieces, np.cumsum(counts)[:-1])
            shaped = [part.reshape(len(out), width) for part, width in zip(parts, widths, strict=True)]
            np.concatenate(shaped, axis=1, out=out)


POLL_SECONDS = 0.001
"""Between two looks while a rank waits for the background work."""


class CheckpointWriter:
    """Writes checkpoints of one training into one folder; made by all ranks of a grid alike.

    A write in the background goes on only while ranks ask for it: call `written` between steps, and `finish` once it
    was true on every rank.

    Parameters
    ----------
    folder : Path
        Made with the first checkpoint where it does not exist. What an earlier run left there unfinished is removed: no
        other job may write here.
    grid : ProcessGrid
    model : MLP
    stages : sequence of Stage
        This rank's.
    states : sequence of OptimizerState
        Of each of them.
    origin : Origin
        The same on every rank.
    keep : int
        Newest checkpoints that stay.

    Raises
    ------
    EnvironmentProblem
        On every rank: the folder cannot be made or written.
    """

    def __init__(
        self,
        folder: Path,
        grid: ProcessGrid,
        model: MLP,
        stages: Sequence[Stage],
        states: Sequence[OptimizerState],
        origin: Origin,
        *,
        keep: int = 3,
    ) -> None:
        require_whole("training.keep", keep, 1)
        self._folder, self._origin, self._keep = folder, origin, keep
        self._stages, self._states = stages, states
        self._group = grid.world.split(0, "checkpoint")
        self._layers, self._slots = len(model.layers), tuple(states[0].slots)
        self._files = ArrayFiles(array_shapes(model, self._slots), stages[0].weights.dtype)
        blocks = held_blocks(stages, states)
        self._shares = shares_of_rank(blocks, grid)
        self._model_group = grid.model_group.split(0, "checkpoint")
        self._read_again = files_to_read_again(blocks, grid, self._files.nbytes)
        # What one node wrote, all of it can read at once; other nodes perhaps only when it is on disk.
        self._syncs_late = grid.model > 1 and grid.nodes == 1
        self._copies: dict[int, NDArray[Any]] = {}
        self._draft: PendingCheckpoint | None = None
        self._work: CollectivePhases | None = None
        self._on_all_ranks(f"checkpoint folder {folder} cannot be written", self._prepare)

    def write(self, progress: Progress) -> Path:
        """Write a checkpoint and return its folder when it is on disk; collective.

        Raises
        ------
        EnvironmentProblem
            As for `finish`.
        """
        self._begin(progress, copies=False)
        return self.finish()

    def begin(self, progress: Progress) -> None:
        """Copy what this rank writes and begin to write it in the background; every rank calls it at the same step.

        Raises
        ------
        RuntimeError
            If the one before was not finished.
        """
        self._begin(progress, copies=True)

    @property
    def busy(self) -> bool:
        """Whether a write was begun and not finished."""
        return self._work is not None

    def is_done(self) -> bool:
        """Whether the write that was begun has ended, well or not; asks without waiting. True where there is none."""
        return self._work is None or self._work.advance()

    def finish(self) -> Path:
        """Wait for the write that was begun and return its folder; collective.

        Raises
        ------
        EnvironmentProblem
            The same on every rank: it could not be written on one of them. What there was of it is removed, and older
            checkpoints stay.
        RuntimeError
            If none was begun.
        """
        if self._work is None or self._draft is None:
            raise RuntimeError("no checkpoint was begun")
        while not self._work.advance():
            sleep(POLL_SECONDS)
        work, draft, self._work, self._draft = self._work, self._draft, None, None
        if work.failed:
            self._give_up(draft, work.error)
        return draft.finished

    def join(self) -> None:
        """Return when this rank writes nothing any more: where a rank is lost, what was begun comes to no end."""
        if self._work is not None:
            self._work.join()

    # -- how the above is done ---------------------------------------------------------------------------------------

    def _begin(self, progress: Progress, *, copies: bool) -> None:
        if self._work is not None:
            raise RuntimeError("a checkpoint was begun and not finished")
        self._draft = draft = self._new_draft(progress, copies)
        is_first = self._group.rank == 0

        def write() -> None:
            if is_first:
                draft.require_space()
            draft.write()
            if not self._syncs_late:
                draft.sync()

        def publish() -> None:
            draft.publish()
            try:
                prune(self._folder, self._keep, newest=progress.step)
            except OSError as error:
                reason = f"is written, but an older one cannot be removed: {error.strerror}"
                raise EnvironmentProblem(f"checkpoint {draft.finished} {reason}") from error

        nothing: list[Job] = []
        phases = [
            [write, draft.digest],
            [draft.sync, draft.digest_files] if self._syncs_late else [draft.digest_files],
            [publish] if is_first else nothing,
        ]
        self._work = CollectivePhases(self._group, draft.findings.numbers, phases)

    def _new_draft(self, progress: Progress, copies: bool) -> PendingCheckpoint:
        """Everything that is to be written, as it is now."""
        draft = PendingCheckpoint(
            self._folder,
            self._files,
            progress,
            self._origin,
            self._slots,
            Findings(self._layers, list(self._files.shapes)),
            [],
            [],
            self._read_again,
        )
        blocks = held_blocks(self._stages, self._states)
        for place, (block, share) in enumerate(zip(blocks, self._shares, strict=True)):
            rows = share.rows[self._model_group.rank]
            memory = self._whole_rows(place, block, share, copies)
            if share.digests:
                draft.digested.append((block.name, memory))
                memory = memory[rows]
            if memory.size:
                where = Rectangle(block.where.shape, rows, slice(0, block.where.shape[1]))
                draft.written.append((block.name, where, memory))
        # A file system lets only one rank at a time write to a file: model ranks, which share files, begin at others.
        first = len(draft.written) * self._model_group.rank // self._model_group.size
        draft.written[:] = draft.written[first:] + draft.written[:first]
        for stage, state in zip(self._stages, self._states, strict=True):
            for shard in stage.shards:
                draft.findings.versions[shard.layer.index] = state.updates
        return draft

    def _whole_rows(self, place: int, block: HeldBlock, share: ArrayShare, copies: bool) -> NDArray[Any]:
        """The rows of an array that this rank writes, or all where it digests them; no others come from the device.

        Copies are in memory that the next checkpoint uses again: touching new memory takes longer than copying.
        """
        to_host = block.kernels.to_host
        rows, (_, width) = share.rows[self._model_group.rank], block.where.shape
        if block.where.columns != slice(0, width):
            copy = self._kept_memory(place, (rows.stop - rows.start, width), block.memory.dtype)
            gather_whole_rows(self._model_group, block.memory, share.rows, copy, to_host)
            return copy
        top = block.where.rows.start
        memory: NDArray[Any] = block.memory if share.digests else block.memory[rows.start - top : rows.stop - top]
        if not block.kernels.on_host:
            return to_host(memory) if memory.size else np.empty(memory.shape, memory.dtype)
        if not copies:
            return memory
        copy = self._kept_memory(place, memory.shape, memory.dtype)
        copy[...] = memory
        return copy

    def _kept_memory(self, place: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        if place not in self._copies:
            self._copies[place] = np.empty(shape, dtype)
        return self._copies[place]

    def _give_up(self, draft: PendingCheckpoint, error: BaseException | None) -> None:
        """Remove what was written, and raise on every rank what went wrong on one."""
        if error is not None and not isinstance(error, OSError | EnvironmentProblem):
            raise error  # a defect of the program: the rank that raises it ends the job
        if self._group.rank == 0:
            shutil.rmtree(draft.partial, ignore_errors=True)
            with contextlib.suppress(OSError):  # it holds older ones
                self._folder.rmdir()
        self._on_all_ranks(f"checkpoint {draft.finished} cannot be written", partial(_raise, error))

    def _prepare(self) -> None:
        if self._group.rank == 0:
            clean(self._folder)
            if not os.access(nearest_existing(self._folder), os.W_OK | os.X_OK):
                raise PermissionError(None, "Permission denied")

    def _on_all_ranks(self, what: str, action: Callable[[], None]) -> None:
        """Run `action` on every rank; an ``OSError`` on one is an `EnvironmentProblem` on all."""

        def explained() -> None:
            try:
                action()
            except OSError as error:
                raise EnvironmentProblem(f"{what}: {error.strerror or error}") from error

        try:
            agree(self._group, explained)
        except HybridnnError as error:
            raise EnvironmentProblem(str(error)) from error.__cause__


def _raise(error: BaseException | None) -> None:
    if error is not None:
        raise error
