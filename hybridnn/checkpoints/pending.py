"""Pending checkpoint: the files of a checkpoint that is being written, and this rank's part of the work."""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn._version import __version__
from hybridnn.checkpoints.folder import nearest_existing, partial_folder, publish, step_folder
from hybridnn.checkpoints.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    SUMS,
    ArrayEntry,
    Manifest,
    Origin,
    Progress,
)
from hybridnn.comm.file_io import Rectangle, file_sha256, npy_header, sync, write_file, write_rectangle

SHA256_BYTES = 32


@dataclass(frozen=True)
class ArrayFiles:
    """The ``.npy`` files of a checkpoint.

    Attributes
    ----------
    shapes : dict
        Global shape of every array, by its name.
    dtype : dtype
        Of all of them.
    """

    shapes: dict[str, tuple[int, ...]]
    dtype: np.dtype[Any]

    @cached_property
    def headers(self) -> dict[str, bytes]:
        """The ``.npy`` header of every file."""
        return {name: npy_header(shape, self.dtype) for name, shape in self.shapes.items()}

    def nbytes(self, name: str) -> int:
        """Bytes of a file."""
        return len(self.headers[name]) + prod(self.shapes[name]) * self.dtype.itemsize

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(map(self.nbytes, self.shapes))


class SharedResults:
    """Results of all ranks for the manifest, in one buffer of bytes that is combined by a max all-reduce.

    Every result is set by some ranks, equal on all of them, and zero on the others.

    Attributes
    ----------
    buffer : ndarray of uint8
        Its first byte is free for a failure flag.
    versions : ndarray of int64, shape (layers,)
        Updates of every layer's weights, a view of `buffer`.
    """

    def __init__(self, layers: int, names: Sequence[str]) -> None:
        end = 8 * (1 + layers)
        self.buffer = np.zeros(end + SHA256_BYTES * len(names), np.uint8)
        self.versions = self.buffer[8:end].view(np.int64)
        self._hashes = dict(zip(names, self.buffer[end:].reshape(-1, SHA256_BYTES), strict=True))

    def set_sha256(self, name: str, digest: bytes) -> None:
        """Set the SHA-256 of an array's file."""
        self._hashes[name][:] = np.frombuffer(digest, np.uint8)

    def sha256(self, name: str) -> str:
        """SHA-256 of an array's file, in hexadecimal digits."""
        digest: bytes = self._hashes[name].tobytes()
        return digest.hex()


@dataclass(frozen=True)
class PendingCheckpoint:
    """A checkpoint that is being written to a temporary folder; one method per kind of work, some called by threads.

    Attributes
    ----------
    folder : Path
        Folder of all checkpoints.
    files : ArrayFiles
    progress : Progress
    origin : Origin
    slots : tuple of str
        Names of the optimizer's arrays.
    results : SharedResults
    files_to_hash : list of str
        Arrays whose files this rank reads again to hash them, when all ranks have written.
    to_write : list of (str, Rectangle, ndarray)
        Array, region and elements that this rank writes.
    to_hash : list of (str, ndarray)
        Whole arrays that this rank hashes from memory.
    """

    folder: Path
    files: ArrayFiles
    progress: Progress
    origin: Origin
    slots: tuple[str, ...]
    results: SharedResults
    files_to_hash: list[str]
    to_write: list[tuple[str, Rectangle, NDArray[Any]]] = field(default_factory=list)
    to_hash: list[tuple[str, NDArray[Any]]] = field(default_factory=list)

    @property
    def partial(self) -> Path:
        """Temporary folder."""
        return partial_folder(self.folder, self.progress.step)

    @property
    def finished(self) -> Path:
        """Folder of the finished checkpoint."""
        return step_folder(self.folder, self.progress.step)

    def require_space(self) -> None:
        """Raise an error if the disk is too full already; it may still become full later."""
        usage = shutil.disk_usage(nearest_existing(self.folder))
        if usage.total and usage.free < self.files.total_bytes:  # some file systems report a total of 0
            needed = f"{self.files.total_bytes:,} bytes are needed, {usage.free:,} are free"
            raise OSError(errno.ENOSPC, f"No space left on device: {needed}")

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
            self.results.set_sha256(name, digest.digest())

    def hash_files(self) -> None:
        """Read again and hash files that several ranks have written."""
        for name in self.files_to_hash:
            self.results.set_sha256(name, file_sha256(self._path(name)))

    def publish(self) -> None:
        """Check the sizes, write the manifest and rename the folder; on one rank, when all results are combined."""
        arrays = {}
        for name, shape in self.files.shapes.items():
            path, size = self._path(name), self.files.nbytes(name)
            if (found := path.stat().st_size) != size:
                raise OSError(errno.EIO, f"{path.name} has {found:,} bytes, {size:,} were written")
            sha256 = self.results.sha256(name)
            arrays[path.name] = ArrayEntry(shape=shape, dtype=self.files.dtype.name, bytes=size, sha256=sha256)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            hybridnn=__version__,
            progress=self.progress,
            origin=self.origin,
            slots=self.slots,
            weight_versions=tuple(self.results.versions.tolist()),
            arrays=arrays,
        )
        text = (manifest.model_dump_json(indent=2) + "\n").encode()
        hashes = {name: entry.sha256 for name, entry in arrays.items()}
        hashes[MANIFEST] = hashlib.sha256(text).hexdigest()
        write_file(self.partial / MANIFEST, text)
        write_file(self.partial / SUMS, "".join(f"{sha}  {name}\n" for name, sha in hashes.items()).encode())
        publish(self.partial, self.finished)

    def _path(self, name: str) -> Path:
        return self.partial / f"{name}.npy"
