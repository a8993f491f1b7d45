"""Reading checkpoints: the newest that is sound, and the blocks of its arrays that a rank needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.checkpoints.blocks import HeldBlock, deal_files, held_blocks
from hybridnn.checkpoints.folder import checkpoint_folders
from hybridnn.checkpoints.manifest import MANIFEST, SUMS, ArrayEntry, Manifest, parse_manifest
from hybridnn.comm.agreement import agree, broadcast_text
from hybridnn.comm.file_io import Rectangle, file_sha256, read_npy_header, read_rectangle
from hybridnn.comm.group import Group
from hybridnn.errors import DataError
from hybridnn.nn.optimizers import OptimizerState
from hybridnn.parallel.stage import Stage
from hybridnn.utils.files import JSON_BYTES, FileError, open_regular, read_bytes, read_text

SOUND, MISSING, UNREADABLE, OTHER_SIZE, OTHER_DIGEST, OTHER_ARRAY = range(6)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are those that were written.

    Attributes
    ----------
    path : Path
    manifest : Manifest
    """

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
        return {name: self._whole(name) for name in self.manifest.shapes() if not name.endswith(endings)}

    def read_into(self, stages: Sequence[Stage], states: Sequence[OptimizerState], group: Group | None = None) -> None:
        """Fill the weights and the optimizer's arrays of this rank, of any grid and split, and set its updates.

        Parameters
        ----------
        stages : sequence of Stage
        states : sequence of OptimizerState
            Of each of them.
        group : Group, optional
            The ranks that read, so that an error of one is raised on all; each reads only its own rows and columns.

        Raises
        ------
        DataError
            If the checkpoint is of another network, optimizer or dtype, or cannot be read.
        """
        if group is None:
            self._read(stages, states)
        else:
            agree(group, lambda: self._read(stages, states))

    def _read(self, stages: Sequence[Stage], states: Sequence[OptimizerState]) -> None:
        if (slots := tuple(states[0].slots)) != self.manifest.slots:
            has, needs = (", ".join(names) or "nothing" for names in (self.manifest.slots, slots))
            raise DataError(f"{self.path}: holds {has} of the optimizer, this one remembers {needs}")
        versions = self.manifest.weight_versions
        for stage, state in zip(stages, states, strict=True):
            updates = {versions[shard.layer.index] for shard in stage.shards if shard.layer.index < len(versions)}
            if len(updates) != 1:
                raise DataError(f"{self.path}: the layers of a stage have {sorted(updates)} updates, not one number")
            state.updates = updates.pop()
        for block in held_blocks(stages, states):
            self._read_block(block)

    def _read_block(self, block: HeldBlock) -> None:
        path = self.path / f"{block.name}.npy"
        entry = self.manifest.arrays.get(path.name)
        if entry is None:
            raise DataError(f"{self.path}: {path.name} is missing: the checkpoint is of another network")
        memory = block.memory
        shape = tuple(block.where.shape) if len(entry.shape) == 2 else (block.where.shape[0],)
        if (entry.shape, entry.dtype) != (shape, memory.dtype.name):
            needed = f"the model needs {shape} of {memory.dtype.name}"
            raise DataError(f"{path}: has shape {entry.shape} of {entry.dtype}, {needed}")
        host = memory if block.kernels.on_host else np.empty(memory.shape, memory.dtype)
        self._fill(path.name, host, block.where)
        block.kernels.put(host, memory)

    def _whole(self, name: str) -> NDArray[Any]:
        entry = self.manifest.arrays[f"{name}.npy"]
        array = np.empty(entry.shape, entry.dtype)
        rows, columns = entry.shape if len(entry.shape) == 2 else (entry.shape[0], 1)
        self._fill(f"{name}.npy", array, Rectangle((rows, columns), slice(0, rows), slice(0, columns)))
        return array

    def _fill(self, name: str, memory: NDArray[Any], where: Rectangle) -> None:
        path = self.path / name
        try:
            read_rectangle(path, memory, where, _first_byte(path, self.manifest.arrays[name]))
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read: {error}") from error


def newest_valid(
    folder: Path, group: Group | None = None, refusal: Callable[[Manifest], str] | None = None
) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint in `folder` with all its files as they were written; collective over `group`.

    Parameters
    ----------
    folder : Path
    group : Group, optional
        Ranks that share the reading, each some of the files.
    refusal : callable, optional
        Given a manifest, why training cannot go on from that checkpoint, the same on every rank; empty where it can.

    Returns
    -------
    Checkpoint or None
        None where there is none that is sound; the same on every rank.
    list of str
        A line for each checkpoint that was passed over, which names what is damaged.

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
        found = open_checkpoint(path, group)
        if isinstance(found, str):
            problems.append(found)
        elif refusal is not None and (reason := refusal(found.manifest)):
            problems.append(f"{path / MANIFEST}: {reason}")
        else:
            return found, problems
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
    # What each file was found to be, and its size: every number is found by one rank.
    found = np.zeros((len(names), 2), np.int64)
    for place, reader in enumerate(deal_files(sizes, ranks)):
        if reader == rank:
            found[place] = _state_of(path / names[place], manifest.arrays[names[place]])
    if group is not None:
        group.allreduce(found)
    for name, size, (state, size_found) in zip(names, sizes, found.tolist(), strict=True):
        if state != SOUND:
            return (
                f"{path / name}: "
                + {
                    MISSING: "the file is missing",
                    UNREADABLE: "the file cannot be read",
                    OTHER_SIZE: f"has {size_found:,} bytes, {size:,} were written",
                    OTHER_DIGEST: "its bytes are not those that were written (SHA-256 differs)",
                    OTHER_ARRAY: "is not the array that the manifest describes",
                }[state]
            )
    return Checkpoint(path, manifest)


def _read_manifest(path: Path, group: Group | None) -> Manifest | str:
    """The manifest as rank 0 finds it, or what is wrong with it."""
    text, problem = _text_of_manifest(path) if group is None or group.rank == 0 else ("", "")
    if group is not None:
        text, problem = broadcast_text(group, text, 0), broadcast_text(group, problem, 0)
    if not text:
        return problem
    try:
        manifest = parse_manifest(text, str(path / MANIFEST))
    except ValueError as error:
        return f"{path / MANIFEST}: {error}"
    except DataError:
        if problem:  # a number that was damaged is no newer version
            return problem
        raise
    return problem or manifest


def _text_of_manifest(path: Path) -> tuple[str, str]:
    """What stands in the manifest, and what is wrong with it; each may be empty."""
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
    """What a file is found to be, and its size."""
    try:
        found = path.stat().st_size
        if found != entry.bytes:
            return OTHER_SIZE, found
        if file_sha256(path).hex() != entry.sha256:
            return OTHER_DIGEST, found
        _first_byte(path, entry)
    except FileNotFoundError:
        return MISSING, 0
    except OSError:
        return UNREADABLE, 0
    except ValueError:
        return OTHER_ARRAY, found
    return SOUND, found


def _first_byte(path: Path, entry: ArrayEntry) -> int:
    """Where the numbers of an array begin in its file.

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
