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

from hybridnn.checkpoints.file_io import Rectangle, file_sha256, read_npy_header, read_rectangle
from hybridnn.checkpoints.folder import (
    MANIFEST,
    SUMS,
    ArrayEntry,
    Manifest,
    checkpoint_folders,
    parse_manifest,
    step_of,
)
from hybridnn.checkpoints.shards import ArrayShard, assign_files, local_shards
from hybridnn.comm.agreement import agree, broadcast_text, gather_texts
from hybridnn.comm.group import Group
from hybridnn.errors import DataError
from hybridnn.nn.optimizers import OptimizerState
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.utils.files import JSON_BYTES, FileError, open_regular, read_bytes, read_text


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are as they were written."""

    path: Path
    manifest: Manifest

    def weights(self) -> dict[str, NDArray[Any]]:
        """The global arrays ``layers.<i>.weight``, shape (outputs, inputs), and ``layers.<i>.bias``.

        Raises `DataError` if a file cannot be read.
        """
        endings = tuple(f".{slot}" for slot in self.manifest.slots)
        return {name: self._read_array(name) for name in self.manifest.shapes() if not name.endswith(endings)}

    def read_into(self, chunks: Sequence[ModelChunk], states: Sequence[OptimizerState]) -> None:
        """Read the weights and the optimizer state of this rank, on any grid and split: only its rows and columns.

        The numbers of updates of `states`, those of each of `chunks`, are set too.

        Raises `DataError` if the checkpoint is of another network, optimizer or dtype, or cannot be read.
        """
        if (slots := tuple(states[0].slots)) != self.manifest.slots:
            has, needs = (", ".join(names) or "nothing" for names in (self.manifest.slots, slots))
            raise DataError(f"{self.path}: holds {has} of the optimizer, and this optimizer needs {needs}")
        for state in states:
            state.updates = self.manifest.progress.step
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
    """The newest checkpoint in `folder` whose files are all as they were written, or None; collective over `group`.

    Each rank of `group` verifies some of the files. `objection` returns why training cannot resume from a manifest, the
    same text on every rank, empty if it can. The second result, the same on every rank, has a line for each checkpoint
    that was skipped, which names what is damaged.

    Raises `DataError` on every rank: the newest was written by a newer version.
    """
    if group is None:
        paths = checkpoint_folders(folder)
    else:
        paths = agree(group, lambda: checkpoint_folders(folder) if group.rank == 0 else [])
        names = broadcast_text(group, "/".join(path.name for path in paths), 0)
        paths = [folder / name for name in names.split("/") if name]
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

    Raises `DataError` on every rank: it was written by a newer version.
    """
    manifest = _read_manifest(path, group)
    if isinstance(manifest, str):
        return manifest
    ranks, rank = (1, 0) if group is None else (group.size, group.rank)
    owners = assign_files([entry.bytes for entry in manifest.arrays.values()], ranks)
    damaged = ""
    for (name, entry), owner in zip(manifest.arrays.items(), owners, strict=True):
        if owner == rank and (problem := _problem_of(path / name, entry)):
            damaged = f"{name}: {problem}"
            break
    problems = [damaged] if group is None else gather_texts(group, damaged)
    first = next(filter(None, problems), "")
    return str(path / first) if first else Checkpoint(path, manifest)


def _read_manifest(path: Path, group: Group | None) -> Manifest | str:
    """The manifest, which rank 0 reads, or what is wrong with it."""
    text, problem = _manifest_text(path) if group is None or group.rank == 0 else ("", "")
    if group is not None:
        text, problem = broadcast_text(group, text, 0), broadcast_text(group, problem, 0)
    if not text:
        return problem or f"{path / MANIFEST}: is empty"
    try:
        manifest = parse_manifest(text, str(path / MANIFEST))
    except ValueError as error:
        return f"{path / MANIFEST}: {error}"
    except DataError:
        if problem:  # the version number may be damaged
            return problem
        raise
    if manifest.progress.step != step_of(path):
        problem = problem or f"{path / MANIFEST}: progress.step = {manifest.progress.step}"
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


def _problem_of(path: Path, entry: ArrayEntry) -> str:
    """What is wrong with the file of an array; empty if nothing is."""
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            return f"has {size:,} bytes, {entry.bytes:,} were written"
        if file_sha256(path).hex() != entry.sha256:
            return "its bytes are not those that were written (SHA-256 differs)"
        _data_offset(path, entry)
    except FileNotFoundError:
        return "the file is missing"
    except OSError:
        return "the file cannot be read"
    except ValueError:
        return "is not the array that the manifest describes"
    return ""


def _data_offset(path: Path, entry: ArrayEntry) -> int:
    """Offset of an array's elements in its file; ``OSError`` or ``ValueError`` if it is not as in `entry`."""
    with open_regular(path) as file:
        shape, dtype, offset = read_npy_header(file)
    if (shape, dtype, offset + prod(shape) * dtype.itemsize) != (entry.shape, np.dtype(entry.dtype), entry.bytes):
        raise ValueError(f"shape {shape} of {dtype.str}")
    return offset
