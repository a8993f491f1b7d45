"""Checkpoint writer: writes checkpoints in the background of the training, or while it waits.

A checkpoint is written in phases that all ranks enter together:

1. Every rank writes its regions of the arrays to a temporary folder and hashes the arrays that it holds whole.
2. Files that no rank holds whole are read again and hashed.
3. Rank 0 checks the sizes, writes the manifest, renames the folder and removes checkpoints that are no longer kept.

Everything is on disk (``fsync``) before the folder is renamed. Threads do the work and make no MPI calls, whatever
thread level the library provides. Between two phases the main thread starts and tests a non-blocking all-reduce.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn._version import __version__
from hybridnn.checkpoints.file_io import (
    NOT_SHARED,
    Rectangle,
    file_sha256,
    nearest_existing,
    nodes_without,
    npy_header,
    sync,
    write_rectangle,
)
from hybridnn.checkpoints.folder import (
    FORMAT_VERSION,
    ArrayEntry,
    Manifest,
    Origin,
    clean,
    hidden,
    prune,
    publish,
    step_folder,
    write_manifest,
)
from hybridnn.checkpoints.shards import (
    ArrayShard,
    WriteAssignment,
    array_shapes,
    assign_writes,
    files_to_hash,
    local_shards,
)
from hybridnn.comm.agreement import agree, name_hosts
from hybridnn.comm.blocks import block_sizes
from hybridnn.comm.group import Group
from hybridnn.errors import EnvironmentProblem, HybridnnError, StateError
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import OptimizerState
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.training.rank_comparison import trainer_facts
from hybridnn.training.records import Progress
from hybridnn.training.trainer import Trainer
from hybridnn.utils.checks import require_whole

Job = Callable[[], None]

POLL_SECONDS = 0.001  # interval of polling while a rank waits for the background work


class CollectivePhases:
    """Background jobs in phases: a phase begins when every rank of a group has completed the one before.

    Every rank makes the same number of phases, each of jobs that run in threads of their own, and the group has no
    other use meanwhile. After each phase `buffer`, to which jobs may write, becomes its maximum over the ranks. Its
    first byte is the failure flag: after a failed job on any rank no further phase begins. `error` is the first that a
    job of this rank raised.
    """

    def __init__(self, group: Group, buffer: NDArray[np.uint8], phases: Sequence[Sequence[Job]]) -> None:
        self._group, self._buffer = group, buffer
        self.error: BaseException | None = None
        self._polls = self._begin(phases)
        self.advance()

    @property
    def failed(self) -> bool:
        """Whether a job failed on any rank; valid when all phases are done."""
        return bool(self._buffer[0])

    def advance(self) -> bool:
        """Start what can be started, without waiting; True once all phases are done on all ranks."""
        return next(self._polls, True)

    def _begin(self, phases: Sequence[Sequence[Job]]) -> Iterator[bool]:
        """Begin the phases; yields False wherever something has to be waited for."""
        for jobs in phases:
            # Daemon threads: a rank that exits with an error does not wait for a disk.
            threads = [Thread(target=self._run, args=(job,), daemon=True) for job in jobs]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                yield False
            self._buffer[0] = self.error is not None
            allreduce = self._group.iallreduce(self._buffer, "max")
            while not allreduce.test():
                yield False
            if self.failed:
                return

    def _run(self, job: Job) -> None:
        try:
            job()
        except BaseException as error:  # raised again in the main thread
            self.error = self.error or error


@dataclass(frozen=True)
class ArrayFiles:
    """The ``.npy`` files of a checkpoint."""

    shapes: dict[str, tuple[int, ...]]  # global shape of every array by its name
    dtype: np.dtype[Any]  # of all

    @cached_property
    def headers(self) -> dict[str, bytes]:
        """The ``.npy`` header of every file."""
        return {name: npy_header(shape, self.dtype) for name, shape in self.shapes.items()}

    @cached_property
    def rows(self) -> dict[str, int]:
        """Row of every file in the buffer of `PendingCheckpoint`."""
        return {name: row for row, name in enumerate(self.shapes, 1)}

    def nbytes(self, name: str) -> int:
        """Bytes of a file."""
        return len(self.headers[name]) + prod(self.shapes[name]) * self.dtype.itemsize


@dataclass(frozen=True)
class PendingCheckpoint:
    """A checkpoint that is being written to a temporary folder; one method per kind of work, some called by threads."""

    folder: Path  # folder of all checkpoints
    files: ArrayFiles
    progress: Progress
    origin: Origin
    slots: tuple[str, ...]  # names of the optimizer's arrays
    # the SHA-256 of all files, each set by some rank and zero on the others, combined by a max all-reduce. Its first
    # row is free for a failure flag.
    buffer: NDArray[np.uint8]
    # array, region and elements that this rank writes
    to_write: list[tuple[str, Rectangle, NDArray[Any]]] = field(default_factory=list)
    # whole arrays that this rank hashes from memory
    to_hash: list[tuple[str, NDArray[Any]]] = field(default_factory=list)

    @property
    def finished(self) -> Path:
        """Folder of the finished checkpoint."""
        return step_folder(self.folder, self.progress.step)

    @property
    def partial(self) -> Path:
        """Temporary folder in which it is written."""
        return hidden(self.finished, "partial")

    def require_space(self) -> None:
        """Raise an error if the disk is too full already; it may still become full later."""
        usage = shutil.disk_usage(nearest_existing(self.folder))
        needed = sum(map(self.files.nbytes, self.files.shapes))
        if usage.total and usage.free < needed:  # some file systems report a total of 0
            space = f"{needed:,} bytes are needed, {usage.free:,} are free"
            raise OSError(errno.ENOSPC, f"No space left on device: {space}")

    def write(self) -> None:
        """Write this rank's regions of the arrays."""
        self.partial.mkdir(parents=True, exist_ok=True)
        for name, region, elements in self.to_write:
            write_rectangle(self._path(name), elements, region, self.files.headers[name])

    def sync(self) -> None:
        """Wait until the files that this rank wrote are on disk."""
        for name, _, _ in self.to_write:
            sync(self._path(name))

    def hash_arrays(self) -> None:
        """Hash the whole arrays in memory."""
        for name, elements in self.to_hash:
            digest = hashlib.sha256(self.files.headers[name])
            digest.update(np.ascontiguousarray(elements).data)
            self.buffer[self.files.rows[name]] = np.frombuffer(digest.digest(), np.uint8)

    def hash_files(self, names: Sequence[str]) -> None:
        """Read again and hash files that several ranks have written."""
        for name in names:
            self.buffer[self.files.rows[name]] = np.frombuffer(file_sha256(self._path(name)), np.uint8)

    def publish(self) -> None:
        """Check the sizes, write the manifest and rename the folder; on one rank, when all hashes are combined."""
        arrays = {}
        for name, shape in self.files.shapes.items():
            path, size = self._path(name), self.files.nbytes(name)
            if (found := path.stat().st_size) != size:
                raise OSError(errno.EIO, f"{path.name} has {found:,} bytes, {size:,} were written")
            sha256 = self.buffer[self.files.rows[name]].tobytes().hex()
            arrays[path.name] = ArrayEntry(shape=shape, dtype=self.files.dtype.name, bytes=size, sha256=sha256)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            hybridnn=__version__,
            progress=self.progress,
            origin=self.origin,
            slots=self.slots,
            arrays=arrays,
        )
        write_manifest(self.partial, manifest)
        publish(self.partial, self.finished)

    def _path(self, name: str) -> Path:
        return self.partial / f"{name}.npy"


def origin_of(trainer: Trainer, data: str, settings: Mapping[str, str] | None = None) -> Origin:
    """Description of a training for the manifests of its checkpoints; the parameters as `checkpoint_writer`."""
    return Origin(
        model=repr(trainer.model),
        optimizer=repr(trainer.optimizer),
        data=data,
        settings=dict(settings) if settings is not None else trainer_facts(trainer.config.items()),
        layout=trainer.layout,
    )


def checkpoint_writer(
    trainer: Trainer, folder: Path, data: str, keep: int = 3, settings: Mapping[str, str] | None = None
) -> CheckpointWriter:
    """Make a writer of a training's checkpoints; collective.

    The manifests have the identity of the `data`, and the texts of all settings that change the training, by name; by
    default those of its `config`.
    """
    engine, origin = trainer.engine, origin_of(trainer, data, settings)
    return CheckpointWriter(folder, trainer.grid, trainer.model, engine.chunks, engine.states, origin, keep=keep)


class CheckpointWriter:
    """Writes checkpoints of one training into one folder; made by all ranks of a grid.

    A write in the background advances only by calls: call `is_done` between steps, and `finish` once it was True on
    every rank. The folder is created with the first checkpoint, and unfinished checkpoints in it are removed: no other
    job may write here. `chunks` and `states` are those of this rank, `origin` is the same on every rank, and the `keep`
    newest checkpoints are kept.

    Raises `EnvironmentProblem` on every rank: the folder cannot be created or written, or other nodes do not see it.
    """

    def __init__(
        self,
        folder: Path,
        grid: ProcessGrid,
        model: MLP,
        chunks: Sequence[ModelChunk],
        states: Sequence[OptimizerState],
        origin: Origin,
        *,
        keep: int = 3,
    ) -> None:
        require_whole("training.keep", keep, 1)
        self._folder, self._origin, self._keep = folder, origin, keep
        self.history: Path | None = None  # records of the training, synced on rank 0 before a checkpoint has its name
        self._unsynced: list[Path] = []  # on rank 0, folders in which the first checkpoint makes a folder
        self._chunks, self._states = chunks, states
        self._group = grid.world
        self._slots = tuple(states[0].slots)
        self._files = ArrayFiles(array_shapes(model, self._slots), chunks[0].weights.dtype)
        shards = local_shards(chunks, states)
        self._assignments = assign_writes(shards, grid)
        self._model_group = grid.model_group
        self._files_to_hash = files_to_hash(shards, grid, self._files.nbytes)
        # Ranks of one node can read files of each other before fsync, those of other nodes perhaps not.
        self._syncs_late = grid.model > 1 and grid.nodes == 1
        self._buffers: dict[int, NDArray[Any]] = {}
        self._work: tuple[PendingCheckpoint, CollectivePhases, Callable[[], None]] | None = None
        self._on_all_ranks(f"checkpoint folder {folder} cannot be written", self._prepare_folder)
        if hosts := nodes_without(folder, self._group, grid.node_group):
            raise EnvironmentProblem(f"checkpoint folder {folder}: {NOT_SHARED} {name_hosts(hosts)}")

    def write(self, progress: Progress) -> Path:
        """Write a checkpoint and return its folder when it is on disk; collective.

        Raises `EnvironmentProblem` as for `finish`, and `StateError` if the trainer was freed.
        """
        self._begin(progress, copies=False)
        return self.finish()

    def begin(self, progress: Progress) -> None:
        """Copy what this rank writes and start writing in the background; called by every rank at the same step.

        Raises ``RuntimeError`` if the checkpoint before was not finished.
        """
        self._begin(progress, copies=True)

    @property
    def busy(self) -> bool:
        """Whether a checkpoint was begun and not finished."""
        return self._work is not None

    def is_done(self) -> bool:
        """Advance the background work without waiting; True if it is done or failed, or there is none."""
        return self._work is None or self._work[1].advance()

    def finish(self) -> Path:
        """Wait for the checkpoint that was begun, and return its folder; collective. `RuntimeError` if none was begun.

        Raises `EnvironmentProblem`, the same on every rank: a rank could not write. The partial checkpoint is removed,
        and older ones stay.
        """
        if self._work is None:
            raise RuntimeError("no checkpoint was begun")
        pending, phases, release_group = self._work
        while not phases.advance():
            sleep(POLL_SECONDS)
        self._work = None
        release_group()
        if phases.failed:
            self._abandon(pending, phases.error)
        return pending.finished

    def _begin(self, progress: Progress, *, copies: bool) -> None:
        if self._work is not None:
            raise RuntimeError("a checkpoint was begun and not finished")
        if not self._chunks:
            raise StateError("the Trainer of this checkpoint writer was freed: write before free()")
        pending = self._snapshot(progress, copies)
        is_first = self._group.rank == 0

        def write() -> None:
            if is_first:
                pending.require_space()
            pending.write()
            if not self._syncs_late:
                pending.sync()

        def publish() -> None:
            if self.history is not None:
                sync(self.history)
            pending.publish()
            while self._unsynced:
                sync(self._unsynced.pop())
            try:
                prune(self._folder, self._keep, newest=progress.step)
            except OSError as error:
                reason = f"is written, but an older one cannot be removed: {error.strerror}"
                raise EnvironmentProblem(f"checkpoint {pending.finished} {reason}") from error

        hash_files = partial(pending.hash_files, self._files_to_hash)
        phases: list[list[Job]] = [
            [write, pending.hash_arrays],
            [pending.sync, hash_files] if self._syncs_late else [hash_files],
            [publish] if is_first else [],
        ]
        group, release_group = self._group.reserve("checkpoint")  # another writer may be busy too
        self._work = pending, CollectivePhases(group, pending.buffer.reshape(-1), phases), release_group

    def _snapshot(self, progress: Progress, copies: bool) -> PendingCheckpoint:
        """The current state as a pending checkpoint: with `copies`, or with views of host memory."""
        buffer = np.zeros((1 + len(self._files.shapes), hashlib.sha256().digest_size), np.uint8)
        pending = PendingCheckpoint(self._folder, self._files, progress, self._origin, self._slots, buffer)
        shards = local_shards(self._chunks, self._states)
        for number, (shard, assignment) in enumerate(zip(shards, self._assignments, strict=True)):
            rows = assignment.rows[self._model_group.rank]
            elements = self._host_rows(number, shard, assignment, copies)
            if assignment.hashes:
                pending.to_hash.append((shard.name, elements))
                elements = elements[rows]
            if elements.size:
                region = Rectangle(shard.region.shape, rows, slice(0, shard.region.shape[1]))
                pending.to_write.append((shard.name, region, elements))
        # File systems let one rank at a time write to a file: model ranks, which share files, start at different ones.
        first = len(pending.to_write) * self._model_group.rank // self._model_group.size
        pending.to_write[:] = pending.to_write[first:] + pending.to_write[:first]
        return pending

    def _host_rows(self, number: int, shard: ArrayShard, assignment: WriteAssignment, copies: bool) -> NDArray[Any]:
        """The rows of array `number` that this rank writes, or all that it holds if it hashes them, in host memory."""
        rows = assignment.rows[self._model_group.rank]
        if shard.by_inputs and self._model_group.size > 1:
            copy = self._buffer(number, (rows.stop - rows.start, shard.region.shape[1]), shard.memory.dtype)
            self._gather_whole_rows(shard, assignment.rows, copy)
            return copy
        first = shard.region.rows.start
        memory: NDArray[Any] = shard.memory
        if not assignment.hashes:
            memory = shard.memory[rows.start - first : rows.stop - first]
        if not shard.kernels.on_host:
            return shard.kernels.to_host(memory) if memory.size else np.empty(memory.shape, memory.dtype)
        if not copies:
            return memory
        copy = self._buffer(number, memory.shape, memory.dtype)
        copy[...] = memory
        return copy

    def _gather_whole_rows(self, shard: ArrayShard, rows: Sequence[slice], out: NDArray[Any]) -> None:
        """Gather in `out` whole rows of a column-split matrix, which are contiguous in a file: `rows` on each rank."""
        group = self._model_group
        widths = block_sizes(out.shape[1], group.size)
        for rank, rank_rows in enumerate(rows):
            piece = shard.kernels.to_host(shard.memory[rank_rows])
            counts = [len(piece) * width for width in widths]
            received = np.empty(out.size, out.dtype) if rank == group.rank else None
            group.gather_rows(piece.reshape(-1), received, counts, root=rank)
            if received is not None:
                pieces = np.split(received, np.cumsum(counts)[:-1])
                blocks = [piece.reshape(len(out), width) for piece, width in zip(pieces, widths, strict=True)]
                np.concatenate(blocks, axis=1, out=out)

    def _buffer(self, number: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Memory for copies, reused by later checkpoints: touching new memory takes longer than copying."""
        if number not in self._buffers:
            self._buffers[number] = np.empty(shape, dtype)
        return self._buffers[number]

    def _abandon(self, pending: PendingCheckpoint, error: BaseException | None) -> None:
        """Remove the partial checkpoint, and raise on every rank the error of one."""
        if error is not None and not isinstance(error, OSError | EnvironmentProblem):
            raise error  # a defect of the program: the rank that raises it ends the job
        if self._group.rank == 0:
            shutil.rmtree(pending.partial, ignore_errors=True)
            with contextlib.suppress(OSError):  # it holds older checkpoints
                self._folder.rmdir()

        def raise_own_error() -> None:
            if error is not None:
                raise error

        self._on_all_ranks(f"checkpoint {pending.finished} cannot be written", raise_own_error)

    def _prepare_folder(self) -> None:
        if self._group.rank == 0:
            clean(self._folder)
            if not os.access(nearest_existing(self._folder), os.W_OK | os.X_OK):
                raise PermissionError(None, "Permission denied")
            folder = self._folder.absolute()
            self._unsynced = [path.parent for path in (folder, *folder.parents) if not path.exists()]

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
