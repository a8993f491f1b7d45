"""Files of arrays that several ranks write and read in blocks at the same time, in folders that all nodes see.

Every rank writes its own block at its own offset with ``pwrite``, not through MPI-IO. Measured with two ranks of Open
MPI 5 and of MPICH 5 and 256 MB on ext4, that is no slower than a collective MPI-IO write. It can run in a thread during
the training, without MPI calls from two threads and without busy waiting in a collective; and a full disk is an
``OSError`` with its reason, where MPI-IO raises "known error not in list".
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.agreement import broadcast_text, hosts_where, lowest_rank
from hybridnn.comm.group import Group
from hybridnn.utils.files import open_regular

VISIBLE_SECONDS = 3.0  # time for a network file system to show a new file on other nodes
NOT_SHARED = "must be on a file system that all nodes share; it is not seen by"
VISIBLE_PREFIX = ".hybridnn-visible-"

CHUNK = 1 << 20  # bytes read at a time for a digest: they stay in cache until they are hashed


@dataclass(frozen=True)
class Rectangle:
    """A block of a matrix in C order; a vector is a matrix of one column."""

    shape: tuple[int, int]  # of the matrix
    # the block
    rows: slice
    columns: slice

    @property
    def height(self) -> int:
        """Rows of the block."""
        return int(self.rows.stop - self.rows.start)

    @property
    def size(self) -> int:
        """Elements of the block."""
        return self.height * int(self.columns.stop - self.columns.start)

    def spans(self, block: NDArray[Any]) -> Iterator[tuple[int, memoryview]]:
        """The contiguous parts of `block`, in C order: first byte, from the start of the matrix, and memory."""
        if not self.size:
            return
        itemsize, width = block.itemsize, self.shape[1]
        first = (self.rows.start * width + self.columns.start) * itemsize
        memory = memoryview(block.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        if self.columns == slice(0, width):
            yield first, memory
        else:
            row = len(memory) // self.height
            for index in range(self.height):
                yield first + index * width * itemsize, memory[index * row : (index + 1) * row]


def write_rectangle(path: Path, block: NDArray[Any], rectangle: Rectangle, header: bytes) -> None:
    """Write a block of an ``.npy`` file, which is created if it does not exist.

    The rank whose block, in C order, has the first element writes the header, from `npy_header`. The data are on disk
    after `sync`. Raises `OSError` with ``ENOSPC`` if the disk is full.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if rectangle.size and rectangle.rows.start == rectangle.columns.start == 0:
            _write_all(descriptor, memoryview(header), 0)
        for offset, memory in rectangle.spans(block):
            _write_all(descriptor, memory, len(header) + offset)
    finally:
        os.close(descriptor)


def read_rectangle(path: Path, block: NDArray[Any], rectangle: Rectangle, offset: int) -> None:
    """Read a block of the matrix that begins at byte `offset` of a file into `block`.

    Raises `OSError` if the file cannot be read, or is too short.
    """
    with open_regular(path) as file:
        for start, memory in rectangle.spans(block):
            _read_all(file.fileno(), memory, offset + start, path)


def write_file(path: Path, data: bytes) -> None:
    """Write a small file and sync it to disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Sync the data of a file, or the names in a folder, to disk.

    Raises `OSError` also if an earlier write fails only now.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Header of an ``.npy`` file of an array in C order."""
    stream = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, description)
    return stream.getvalue()


def read_npy_header(file: BinaryIO) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape and dtype of the array in an open ``.npy`` file, and the size of the header in bytes.

    Raises `ValueError` if the header is not as from `npy_header`.
    """
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("not an .npy file of version 1.0")
    try:
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    except Exception as error:  # NumPy parses it as Python, which raises many kinds of errors
        raise ValueError(f"not the header of an .npy file: {error}") from error
    if fortran_order:
        raise ValueError("an array in Fortran order")
    return shape, dtype, file.tell()


def file_sha256(path: Path) -> bytes:
    """SHA-256 digest of a file."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK))
    with open_regular(path) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.digest()


def nearest_existing(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def nodes_without(folder: Path, world: Group, node: Group) -> list[str]:
    """Host names of the nodes that do not see the folder that rank 0 sees, on every rank; collective over `world`.

    Rank 0 makes an empty file in it, or in the nearest folder above that exists, for a moment, and one rank of every
    `node` looks for it. A folder that rank 0 cannot write is not examined. On one node, nothing is done.
    """
    if node.size == world.size:
        return []
    mark = ""
    if world.rank == 0:
        with contextlib.suppress(OSError):
            descriptor, mark = tempfile.mkstemp(prefix=VISIBLE_PREFIX, dir=nearest_existing(folder))
            os.close(descriptor)
    path = broadcast_text(world, mark, 0)
    try:
        is_missing = bool(path) and node.rank == 0 and not _appears(Path(path))
        if lowest_rank(world, is_missing) is None:
            return []
        return hosts_where(world, is_missing)
    finally:
        if mark:
            with contextlib.suppress(OSError):
                os.unlink(mark)


def _appears(path: Path) -> bool:
    """Whether a file that another node has made exists here, at once or after a while."""
    deadline = time.monotonic() + VISIBLE_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(VISIBLE_SECONDS / 50)
        with contextlib.suppress(OSError):
            os.listdir(path.parent)  # a network file system then asks its server again
    return True


def _write_all(descriptor: int, memory: memoryview, offset: int) -> None:
    # A call may write only a part: at most 2 GiB on Linux, and less on a disk that is almost full.
    while memory:
        written = os.pwrite(descriptor, memory, offset)
        memory, offset = memory[written:], offset + written


def _read_all(descriptor: int, memory: memoryview, offset: int, path: Path) -> None:
    while memory:
        count = os.preadv(descriptor, [memory], offset)
        if not count:
            raise OSError(f"{path} ends after {offset} bytes")
        memory, offset = memory[count:], offset + count
