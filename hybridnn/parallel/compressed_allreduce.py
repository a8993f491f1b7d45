"""Compressed all-reduce: a sum whose elements travel as bfloat16 or float16 (``parallel.wire_dtype``).

MPI reduces neither type everywhere, so the all-reduce is composed of an all-to-all and an all-gather, as large
all-reduces are. Every rank encodes its elements and sends each rank the items of its block (all-to-all). Each rank then
sums its block in the precision of the training, in the order of the ranks, and rounds the sum once. An all-gather
distributes the encoded sums, which all ranks decode to the same bits.

With roundoff u of the format and s of the training precision, p ranks and their elements g_r, the error of a sum is at
most

    u |sum g_r| + (1 + u) (u + (p - 1) s (1 + u)) sum |g_r|

up to terms of s^2, and up to the underflow described in `hybridnn.kernels.compressed_formats`.

Arrays of a device are copied to the host, which encodes and sums them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from time import sleep

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.blocks import block_size, block_slice, pieces
from hybridnn.comm.group import Group
from hybridnn.comm.transport import is_on_host
from hybridnn.comm.transports.device import Device
from hybridnn.kernels import numpy_kernels as kernels
from hybridnn.kernels.backend import Array
from hybridnn.kernels.compressed_formats import COMPRESSED_ITEMSIZE, CompressedFormat

PIECE_ELEMENTS = 1 << 18  # elements that are summed at a time, so that the workspace is small and stays in the cache


def piece_sizes(elements: int, limit: int = PIECE_ELEMENTS) -> list[int]:
    """Elements of the pieces of an array: `limit` each, the rest in the last one."""
    full, rest = divmod(elements, limit)
    return [limit] * full + [rest] * (rest > 0)


def compressed_bytes(sizes: Iterable[int], ranks: int, compression: CompressedFormat) -> int:
    """Bytes of the encoded blocks of pieces of these sizes: of the all-to-all, and again of the all-gather."""
    return sum(ranks * _row_items(size, ranks, compression) * COMPRESSED_ITEMSIZE for size in sizes)


def compressed_workspace_bytes(elements: int, ranks: int, compression: CompressedFormat, itemsize: int) -> int:
    """Bytes of a `CompressionWorkspace` for pieces of up to `elements`."""
    return 2 * compressed_bytes([elements], ranks, compression) + 2 * block_size(elements, ranks, 0) * itemsize


def _row_items(elements: int, ranks: int, compression: CompressedFormat) -> int:
    """Items of an encoded block; equal for all ranks, so that shorter blocks end with unused items."""
    return compression.header + block_size(elements, ranks, 0)


class CompressionWorkspace:
    """Workspace of one compressed all-reduce in flight.

    Attributes
    ----------
    scratch : ndarray, shape (2, most elements of a block)
    """

    def __init__(self, compression: CompressedFormat, ranks: int, elements: int, dtype: DTypeLike) -> None:
        self.compression, self.elements, self._ranks = compression, elements, ranks
        self._encoded = np.zeros((2, ranks * _row_items(elements, ranks, compression)), np.uint16)
        self.scratch = kernels.empty((2, block_size(elements, ranks, 0)), dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return int(self._encoded.nbytes + self.scratch.nbytes)

    def rows(self, elements: int) -> tuple[Array, Array]:
        """Items to send and to receive of a piece, shape (ranks, items of a block) each."""
        width = _row_items(elements, self._ranks, self.compression)
        sent, received = self._encoded[:, : self._ranks * width]
        return sent.reshape(self._ranks, width), received.reshape(self._ranks, width)


class CompressedAllreduce:
    """A compressed all-reduce in flight, with the interface of `Request`.

    Parameters
    ----------
    group, gather_group : Group
        The same ranks, for the all-to-all and for the all-gather.
    array : ndarray, shape (n,)
        Host array, summed in place.
    """

    def __init__(self, group: Group, gather_group: Group, array: Array, workspace: CompressionWorkspace) -> None:
        self._gather_group, self._format, self._workspace = gather_group, workspace.compression, workspace
        self._blocks = [array[block_slice(array.size, group.size, rank)] for rank in range(group.size)]
        self._sent, self._received = workspace.rows(array.size)
        for block, row in zip(self._blocks, self._sent, strict=True):
            self._encode(block, row)
        self._request = group.ialltoall_rows(self._sent, self._received)
        self._is_summed = self._is_done = False

    def test(self) -> bool:
        """Let MPI make progress; True once the sum is complete."""
        if not self._is_done and self._request.test():
            self._continue()
        return self._is_done

    def wait(self) -> None:
        """Return when the sum is complete."""
        while not self._is_done:
            self._request.wait()
            self._continue()

    def _continue(self) -> None:
        """Process what the completed collective received: addends of the own block, or the blocks of the sum."""
        if self._is_summed:
            for row, block in zip(self._sent, self._blocks, strict=True):
                self._decode(row, block)
            self._is_done = True
            return
        rank = self._gather_group.rank
        own = self._blocks[rank]
        addend = self._workspace.scratch[0, : own.size]
        self._decode(self._received[0], own)
        for row in self._received[1:]:
            self._decode(row, addend)
            kernels.add(own, addend, own)
        self._encode(own, self._sent[rank])
        self._request = self._gather_group.iallgather_rows(self._sent)
        self._is_summed = True

    def _encode(self, block: Array, row: Array) -> None:
        self._format.encode(block, row[: self._format.header + block.size], self._workspace.scratch)

    def _decode(self, row: Array, block: Array) -> None:
        self._format.decode(row[: self._format.header + block.size], block)


class StagedCompressedAllreduce:
    """A compressed all-reduce in flight of a device's array, staged through pinned memory; interface of `Request`.

    It is done when the sum is on the host: later work of the current stream begins after the copy back to the device.

    Parameters
    ----------
    array : array of the device, shape (n,)
        Summed in place.
    start : callable
        Starts the compressed all-reduce of a host array. Called in the order in which these objects are created, on
        all ranks.
    """

    def __init__(self, device: Device, array: Array, start: Callable[[Array], CompressedAllreduce]) -> None:
        self._device, self._array, self._start = device, array, start
        self._on_host: CompressedAllreduce | None = None
        self._is_done = False
        self._memory = device.pinned.acquire(array.nbytes)
        self._host = self._memory[: array.nbytes].view(array.dtype)
        device.copies_wait_for(device.record_event())
        device.deferred_calls.add(device.copy_to_host(array, self._host), self._start_on_host)

    def test(self) -> bool:
        """Let the device and MPI make progress; True once the sum is complete."""
        if self._is_done:
            return True
        self._device.progress()
        if self._on_host is not None and self._on_host.test():
            copied = self._device.copy_to_device(self._host, self._array)
            self._device.pinned.release(self._memory, copied)
            self._device.stream_waits_for(copied)
            self._is_done = True
        return self._is_done

    def wait(self) -> None:
        """Return when the sum is complete; deferred calls of other operations go on meanwhile."""
        while not self.test():
            sleep(0)  # ranks may share a core

    def _start_on_host(self) -> None:
        self._on_host = self._start(self._host)


class CompressedReducer:
    """Starts compressed all-reduces over a group.

    Parameters
    ----------
    group : Group
        Constructing a reducer is collective over it.
    workspaces : sequence of CompressionWorkspace
        One for each all-reduce that may be in flight at a time; they must complete in the order in which they start.
    """

    def __init__(self, group: Group, workspaces: Sequence[CompressionWorkspace]) -> None:
        self._device = group.device
        # Encoded items are on the host: their messages need not wait in the queue of a device's deferred calls.
        self._group = group if self._device is None else group.split(0, group.axis, on_device=False)
        # Ranks start the all-gather at different moments, but MPI requires one order of collectives per communicator.
        self._gather_group = self._group if len(workspaces) == 1 else group.split(0, group.axis, on_device=False)
        self._piece_elements, self._workspaces = workspaces[0].elements, cycle(workspaces)

    def allreduce(self, array: Array) -> None:
        """Replace `array`, of any size, by its sum over the ranks, in place."""
        for piece in pieces(array, self._piece_elements * array.itemsize):
            self.iallreduce(piece).wait()

    def iallreduce(self, piece: Array) -> CompressedAllreduce | StagedCompressedAllreduce:
        """Non-blocking `allreduce` of an array that fits a workspace; the operation owns it until it is done."""
        if is_on_host(piece):
            return self._start(piece)
        assert self._device is not None, "the group has no transport for arrays of a device"
        return StagedCompressedAllreduce(self._device, piece, self._start)

    def _start(self, piece: Array) -> CompressedAllreduce:
        return CompressedAllreduce(self._group, self._gather_group, piece, next(self._workspaces))
