"""Reading of checkpoints: search for the newest valid one, and the shards of its arrays that a rank needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.checkpoints.folder import checkpoint_folders
from hybridnn.checkpoints.manifest import MANIFEST, SUMS, ArrayEntry, Manifest, parse_manifest
from hybridnn.checkpoints.shards import ArrayShard, assign_files, local_shards
from hybridnn.comm.agreement import agree, broadcast_text
from hybridnn.comm.file_io import Rectangle, file_sha256, read_npy_header, read_rectangle
from hybridnn.comm.group import Group
from hybridnn.errors import DataError
from hybridnn.nn.optimizers import OptimizerState
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.utils.files import JSON_BYTES, FileError, open_regular, read_bytes, read_text

VALID, MISSING, UNREADABLE, WRONG_SIZE, WRONG_HASH, WRONG_ARRAY = range(6)
"""States of an array's file."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are as they were written."""

    path: Path
    manifest: Manifest

    def weights(self) -> dict[str, NDArray[Any]]:
        """The global arrays ``layers.<i>.weight``, shape (outputs, inputs), and ``layers.<i>.bias``.

        Raises
        ------
        DataError
            If a file cannot be read.
        """
        endings = tuple(f".{slot}" for slot in self.manifest.slots)
        return {name: self._read_array(name) for name in self.manifest.shapes() if not name.endswith(endings)}

    def read_into(
        self, chunks: Sequence[ModelChunk], states: Sequence[OptimizerState], group: Group | None = None
    ) -> None:
        """Read the weights and the optimizer state of this rank, on any grid and split: only its rows and columns.

        Parameters
        ----------
        states : sequence of OptimizerState
            Of each of `chunks`; their numbers of updates are set, too.
        group : Group, optional
            The ranks that read, so that an error on one is raised on all.

        Raises
        ------
        DataError
            If the checkpoint is of another network, optimizer or dtype, or cannot be read.
        """
        if group is None:
            self._read(chunks, states)
        else:
            agree(group, lambda: self._read(chunks, states))

    def _read(self, chunks: Sequence[ModelChunk], states: Sequence[OptimizerState]) -> None:
        if (slots := tuple(states[0].slots)) != self.manifest.slots:
            has, needs = (", ".join(names) or "nothing" for names in (self.manifest.slots, slots))
            raise DataError(f"{self.path}: holds {has} of the optimizer, this one remembers {needs}")
        versions = self.manifest.weight_versions
        for chunk, state in zip(chunks, states, strict=True):
            updates = {versions[shard.layer.index] for shard in chunk.shards if shard.layer.index < len(versions)}
            if len(updates) != 1:
                raise DataError(f"{self.path}: the layers of a stage have {sorted(updates)} updates, not one number")
            state.updates = updates.pop()
        for shard in local_shards(chunks, states):
            self._read_shard(shard)

    def _read_shard(self, shard: ArrayShard) -> None:
        path = self.path / f"{shard.name}.npy"
        entry = self.manifest.arrays.get(path.name)
        if entry is None:
            raise DataError(f"{self.path}: {path.name} is missing: the checkpoint is of another network")
        memory, region = shard.memory, shard.region
        shape = tuple(region.shape) if len(entry.shape) == 2 else (region.shape[0],)
        if (entry.shape, entry.dtype) != (shape, memory.dtype.name):
            needed = f"the model needs {shape} of {memory.dtype.name}"
            raise DataError(f"{path}: has shape {entry.shape} of {entry.dtype}, {needed}")
        host = memory if shard.kernels.on_host else np.empty(memory.shape, memory.dtype)
        self._read_region(path.name, host, region)
        shard.kernels.put(host, memory)

    def _read_array(self, name: str) -> NDArray[Any]:
        entry = self.manifest.arrays[f"{name}.npy"]
        array = np.empty(entry.shape, entry.dtype)
        rows, columns = entry.shape if len(entry.shape) == 2 else (entry.shape[0], 1)
        self._read_region(f"{name}.npy", array, Rectangle((rows, columns), slice(0, rows), slice(0, columns)))
        return array

    def _read_region(self, file: str, out: NDArray[Any], region: Rectangle) -> None:
        path = self.path / file
        try:
            read_rectangle(path, out, region, _data_offset(path, self.manifest.arrays[file]))
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read: {error}") from error


def newest_valid(
    folder: Path, group: Group | None = None, objection: Callable[[Manifest], str] | None = None
) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint in `folder` whose files are all as they were written; collective over `group`.

    Parameters
    ----------
    group : Group, optional
        Ranks that share the reading: each verifies some of the files.
    objection : callable, optional
        Given a manifest, the reason why training cannot resume from it, the same on every rank; empty if it can.

    Returns
    -------
    Checkpoint or None
        None if there is no valid one; the same on every rank.
    list of str
        A line for each checkpoint that was skipped, which names what is damaged.

    Raises
    ------
    DataError
        On every rank: the newest was written by a newer version.
    """
    if group is None:
        paths = checkpoint_folders(folder)
    else:
        paths = agree(group, lambda: checkpoint_folders(folder) if group.rank == 0 else [])
        paths = [Path(path) for path in broadcast_text(group, "\n".join(map(str, paths)), 0).split("\n") if path]
    problems: list[str] = []
    for path in paths:
        checkpoint = open_checkpoint(path, group)
        if isinstance(checkpoint, str):
            problems.append(checkpoint)
        elif objection is not None and (reason := objection(checkpoint.manifest)):
            problems.append(f"{path / MANIFEST}: {reason}")
        else:
            return checkpoint, problems
    return None, problems


def open_checkpoint(path: Path, group: Group | None = None) -> Checkpoint | str:
    """The checkpoint in the folder `path`, or what is damaged in it; collective over `group`.

    Raises
    ------
    DataError
        On every rank: it was written by a newer version.
    """
    manifest = _read_manifest(path, group)
    if isinstance(manifest, str):
        return manifest
    names = list(manifest.arrays)
    sizes = [manifest.arrays[name].bytes for name in names]
    ranks, rank = (1, 0) if group is None else (group.size, group.rank)
    states = np.zeros((len(names), 2), np.int64)  # state and size of each file, set by one rank
    for file, owner in enumerate(assign_files(sizes, ranks)):
        if owner == rank:
            states[file] = _state_of(path / names[file], manifest.arrays[names[file]])
    if group is not None:
        group.allreduce(states)
    for name, size, (state, found_size) in zip(names, sizes, states.tolist(), strict=True):
        if state != VALID:
            problems = {
                MISSING: "the file is missing",
                UNREADABLE: "the file cannot be read",
                WRONG_SIZE: f"has {found_size:,} bytes, {size:,} were written",
                WRONG_HASH: "its bytes are not those that were written (SHA-256 differs)",
                WRONG_ARRAY: "is not the array that the manifest describes",
            }
            return f"{path / name}: {problems[state]}"
    return Checkpoint(path, manifest)


def _read_manifest(path: Path, group: Group | None) -> Manifest | str:
    """The manifest, which rank 0 reads, or what is wrong with it."""
    text, problem = _manifest_text(path) if group is None or group.rank == 0 else ("", "")
    if group is not None:
        text, problem = broadcast_text(group, text, 0), broadcast_text(group, problem, 0)
    if not text:
        return problem
    try:
        manifest = parse_manifest(text, str(path / MANIFEST))
    except ValueError as error:
        return f"{path / MANIFEST}: {error}"
    except DataError:
        if problem:  # the version number may be damaged
            return problem
        raise
    return problem or manifest


def _manifest_text(path: Path) -> tuple[str, str]:
    """Text of the manifest, and what is wrong with it; each may be empty."""
    text = ""
    try:
        data = read_bytes(path / MANIFEST, JSON_BYTES)
        text = data.decode()
        sums = read_text(path / SUMS, JSON_BYTES).splitlines()
    except FileError as error:
        return text, f"{error.path}: the file is missing" if error.is_missing else str(error)
    except UnicodeDecodeError as error:
        return "", f"{path / MANIFEST}: cannot be read: {error}"
    if f"{hashlib.sha256(data).hexdigest()}  {MANIFEST}" in sums:
        return text, ""
    return text, f"{path / MANIFEST}: its bytes are not those that were written (SHA-256 differs)"


def _state_of(path: Path, entry: ArrayEntry) -> tuple[int, int]:
    """State of a file, and its size."""
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            return WRONG_SIZE, size
        if file_sha256(path).hex() != entry.sha256:
            return WRONG_HASH, size
        _data_offset(path, entry)
    except FileNotFoundError:
        return MISSING, 0
    except OSError:
        return UNREADABLE, 0
    except ValueError:
        return WRONG_ARRAY, size
    return VALID, size


def _data_offset(path: Path, entry: ArrayEntry) -> int:
    """Offset of the elements of an array in its file.

    Raises
    ------
    OSError, ValueError
        If the file cannot be read, or is of another array than `entry`.
    """
    with open_regular(path) as file:
        shape, dtype, offset = read_npy_header(file)
    if (shape, dtype.name, offset + prod(shape) * dtype.itemsize) != (entry.shape, entry.dtype, entry.bytes):
        raise ValueError(f"shape {shape} of {dtype.name}")
    return offset
