"""A checkpoint while it is written: its jobs, which run in threads beside the training."""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class ArrayFiles:
    """The ``.npy`` files of the arrays of a checkpoint.

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
        """What stands before each array's numbers."""
        return {name: npy_header(shape, self.dtype) for name, shape in self.shapes.items()}

    def nbytes(self, name: str) -> int:
        """Bytes of a file."""
        return len(self.headers[name]) + prod(self.shapes[name]) * self.dtype.itemsize

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(map(self.nbytes, self.shapes))


class Findings:
    """What the ranks find out, each a part: bytes, whose maximum over the ranks is everything.

    Attributes
    ----------
    numbers : ndarray of uint8
        All of it; the first number is left to others.
    versions : ndarray of int64, shape (layers,)
        Updates that each layer's weights have seen.
    """

    def __init__(self, layers: int, names: Sequence[str]) -> None:
        self.numbers = np.zeros(8 * (1 + layers) + 32 * len(names), np.uint8)
        self.versions = self.numbers[8 : 8 * (1 + layers)].view(np.int64)
        self._digests: NDArray[np.uint8] = self.numbers[8 * (1 + layers) :].reshape(-1, 32)
        self._place = {name: place for place, name in enumerate(names)}

    def set_sha256(self, name: str, digest: bytes) -> None:
        """Note the digest of an array's file."""
        self._digests[self._place[name]] = np.frombuffer(digest, np.uint8)

    def sha256(self, name: str) -> str:
        """The digest of an array's file, in hexadecimal digits."""
        digest: bytes = self._digests[self._place[name]].tobytes()
        return digest.hex()


@dataclass(frozen=True)
class PendingCheckpoint:
    """A checkpoint that this rank writes its part of.

    Attributes
    ----------
    folder : Path
        Of all checkpoints.
    files : ArrayFiles
    progress : Progress
    origin : Origin
    slots : tuple of str
        Names of the optimizer's arrays.
    findings : Findings
    written : list of (str, Rectangle, ndarray)
        Array, place and numbers of what this rank writes.
    digested : list of (str, ndarray)
        The whole arrays that it digests.
    read_again : list of str
        The arrays that it digests from disk, when all ranks have written.
    """

    folder: Path
    files: ArrayFiles
    progress: Progress
    origin: Origin
    slots: tuple[str, ...]
    findings: Findings
    written: list[tuple[str, Rectangle, NDArray[Any]]]
    digested: list[tuple[str, NDArray[Any]]]
    read_again: list[str]

    @property
    def partial(self) -> Path:
        """Where it is written."""
        return partial_folder(self.folder, self.progress.step)

    @property
    def finished(self) -> Path:
        """Where it will be."""
        return step_folder(self.folder, self.progress.step)

    def require_space(self) -> None:
        """Refuse to begin on a disk that is already too full; one may still become full later."""
        usage = shutil.disk_usage(nearest_existing(self.folder))
        if usage.total and usage.free < self.files.total_bytes:  # some file systems do not tell
            needed = f"{self.files.total_bytes:,} bytes are needed, {usage.free:,} are free"
            raise OSError(errno.ENOSPC, f"No space left on device: {needed}")

    def write(self) -> None:
        """Write this rank's part."""
        self.partial.mkdir(parents=True, exist_ok=True)
        for name, where, numbers in self.written:
            write_rectangle(self._path(name), numbers, where, self.files.headers[name])

    def sync(self) -> None:
        """Return when it is on disk."""
        for name, _, _ in self.written:
            sync(self._path(name))

    def digest(self) -> None:
        """Digest the arrays that this rank has whole."""
        for name, numbers in self.digested:
            digest = hashlib.sha256(self.files.headers[name])
            digest.update(np.ascontiguousarray(numbers).data)
            self.findings.set_sha256(name, digest.digest())

    def digest_files(self) -> None:
        """Digest files that several ranks have written."""
        for name in self.read_again:
            self.findings.set_sha256(name, file_sha256(self._path(name)))

    def publish(self) -> None:
        """Check the sizes, write the manifest, and give the folder its name; one rank does, when all have written."""
        arrays = {}
        for name, shape in self.files.shapes.items():
            path, size = self._path(name), self.files.nbytes(name)
            if (found := path.stat().st_size) != size:
                raise OSError(errno.EIO, f"{path.name} has {found:,} bytes, {size:,} were written")
            arrays[path.name] = ArrayEntry(
                shape=shape, dtype=self.files.dtype.name, bytes=size, sha256=self.findings.sha256(name)
            )
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            hybridnn=__version__,
            progress=self.progress,
            origin=self.origin,
            slots=self.slots,
            weight_versions=tuple(self.findings.versions.tolist()),
            arrays=arrays,
        )
        text = (manifest.model_dump_json(indent=2) + "\n").encode()
        digests = {name: entry.sha256 for name, entry in arrays.items()}
        digests[MANIFEST] = hashlib.sha256(text).hexdigest()
        write_file(self.partial / MANIFEST, text)
        write_file(self.partial / SUMS, "".join(f"{sha}  {name}\n" for name, sha in digests.items()).encode())
        publish(self.partial, self.finished)

    def _path(self, name: str) -> Path:
        return self.partial / f"{name}.npy"
