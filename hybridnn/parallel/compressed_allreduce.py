"""Sums over a group whose numbers travel as words of 16 bits: ``parallel.wire_dtype``.

MPI adds up what it knows the type of, and it knows neither bfloat16 nor float16 everywhere. So the ranks do what a
large all-reduce is made of. Every rank rounds its numbers, and sends each of the others the words of that one's block:
an all-to-all. Then it adds up its own block, in the precision of the training and in the order of the ranks, rounds
the sum once, and all gather the words of all blocks. Every rank reads the same words, so all hold the same bits.

With u the roundoff of a word, s of the sum as the training computes it, and p ranks with the numbers g_r, a sum is off
by at most

    u |sum g_r| + (1 + u) (u + (p - 1) s (1 + u)) sum |g_r|

up to terms of s^2, and up to what `hybridnn.kernels.sixteen_bits` says of numbers that are small beside others.

Sums of a device's gradients that travel as words of 16 bits: the host rounds them and adds them up.

Sums over a group whose numbers travel as words of 16 bits, of arrays of the host or of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from time import sleep

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.group import Group
from hybridnn.comm.partition import block_size, block_slice, pieces
from hybridnn.comm.transports.device import Device
from hybridnn.comm.transports.transport import is_on_host
from hybridnn.kernels import numpy_kernels as kernels
from hybridnn.kernels.backend import Array
from hybridnn.kernels.sixteen_bits import WORD_BYTES, CompressedFormat

PIECE_ELEMENTS = 1 << 18
"""Numbers that are summed at a time, so that working memory is small and stays in the cache."""


def piece_sizes(numbers: int, most: int = PIECE_ELEMENTS) -> list[int]:
    """Numbers of the pieces of an array."""
    whole, rest = divmod(numbers, most)
    return [most] * whole + [rest] * (rest > 0)


def compressed_bytes(sizes: Iterable[int], ranks: int, words: CompressedFormat) -> int:
    """Bytes of the words of all blocks of pieces of these sizes; an all-to-all and an all-gather carry as many each."""
    return sum(ranks * _row_words(size, ranks, words) * WORD_BYTES for size in sizes)


def compressed_workspace_bytes(numbers: int, ranks: int, words: CompressedFormat, itemsize: int) -> int:
    """Bytes of the working memory of a sum of a piece."""
    return 2 * compressed_bytes([numbers], ranks, words) + 2 * block_size(numbers, ranks, 0) * itemsize


def _row_words(numbers: int, ranks: int, words: CompressedFormat) -> int:
    """Words of a block; all have as many, so that the shorter ones end with words that nobody reads."""
    return words.head + block_size(numbers, ranks, 0)


class CompressionWorkspace:
    """Working memory of a sum under way.

    Parameters
    ----------
    words : CompressedFormat
    ranks : int
        Of the group.
    numbers : int
        Most numbers of a piece.
    dtype : dtype
        Of the numbers.

    Attributes
    ----------
    numbers : ndarray, shape (2, most numbers of a block)
    """

    def __init__(self, words: CompressedFormat, ranks: int, numbers: int, dtype: DTypeLike) -> None:
        self.words, self.most = words, numbers
        self._flat = np.zeros((2, ranks * _row_words(numbers, ranks, words)), np.uint16)
        self.numbers = kernels.empty((2, block_size(numbers, ranks, 0)), dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        return int(self._flat.nbytes + self.numbers.nbytes)

    def rows(self, ranks: int, numbers: int) -> tuple[Array, Array]:
        """Words that leave and words that arrive of a piece of so many numbers, a row for each rank."""
        width = _row_words(numbers, ranks, self.words)
        leaving, arriving = self._flat[:, : ranks * width]
        return leaving.reshape(ranks, width), arriving.reshape(ranks, width)


class CompressedAllreduce:
    """A sum under way; it answers as `Request` does.

    Parameters
    ----------
    group, gathering : Group
        The ranks, for the first half of the sum and for the second.
    array : ndarray, shape (n,)
        Summed in place.
    room : CompressionWorkspace
    """

    def __init__(self, group: Group, gathering: Group, array: Array, room: CompressionWorkspace) -> None:
        self._gathering, self._words, self._room = gathering, room.words, room
        self._blocks = [array[block_slice(array.size, group.size, rank)] for rank in range(group.size)]
        self._leaving, self._arriving = room.rows(group.size, array.size)
        for block, row in zip(self._blocks, self._leaving, strict=True):
            self._write(block, row)
        self._request = group.ialltoall_rows(self._leaving, self._arriving)
        self._is_summed = self._is_done = False

    def test(self) -> bool:
        """Let MPI make progress; True once the sum is there."""
        if not self._is_done and self._request.test():
            self._go_on()
        return self._is_done

    def wait(self) -> None:
        """Return when the sum is there."""
        while not self._is_done:
            self._request.wait()
            self._go_on()

    def _go_on(self) -> None:
        """What arrived is complete: parts of the own block, or all blocks of the sum."""
        if self._is_summed:
            for row, block in zip(self._leaving, self._blocks, strict=True):
                self._read(row, block)
            self._is_done = True
            return
        own = self._blocks[self._gathering.rank]
        addend = self._room.numbers[0, : own.size]
        first, *others = self._arriving
        self._read(first, own)
        for row in others:
            self._read(row, addend)
            kernels.add(own, addend, own)
        self._write(own, self._leaving[self._gathering.rank])
        self._request = self._gathering.iallgather_rows(self._leaving)
        self._is_summed = True

    def _write(self, block: Array, row: Array) -> None:
        self._words.write(block, row[: self._words.head + block.size], self._room.numbers)

    def _read(self, row: Array, block: Array) -> None:
        self._words.read(row[: self._words.head + block.size], block)


class StagedCompressedAllreduce:
    """A sum under way; it answers as `Request` does, and nobody waits for the device before it is waited for.

    Done means that the sum is on the host: what the current stream is told from then on begins when it is copied back.

    Parameters
    ----------
    device : Device
    array : array of the device, shape (n,)
        Summed in place.
    begin : callable
        Begins the sum of an array of the host. It is called in the order in which these sums are made, on all ranks.
    """

    def __init__(self, device: Device, array: Array, begin: Callable[[Array], CompressedAllreduce]) -> None:
        self._device, self._array, self._begin = device, array, begin
        self._sum: CompressedAllreduce | None = None
        self._is_done = False
        self._memory = device.pinned.acquire(array.nbytes)
        self._host = self._memory[: array.nbytes].view(array.dtype)
        device.copies_wait_for(device.record_event())
        device.deferred_calls.add(device.copy_to_host(array, self._host), self._depart)

    def test(self) -> bool:
        """Let device and messages make progress; True once the sum is there."""
        if self._is_done:
            return True
        self._device.progress()
        if self._sum is not None and self._sum.test():
            copied = self._device.copy_to_device(self._host, self._array)
            self._device.pinned.release(self._memory, copied)
            self._device.stream_waits_for(copied)
            self._is_done = True
        return self._is_done

    def wait(self) -> None:
        """Return when the sum is there; what others need of this rank meanwhile goes on."""
        while not self.test():
            sleep(0)  # ranks may share a core

    def _depart(self) -> None:
        self._sum = self._begin(self._host)


class CompressedReducer:
    """Begins sums over a group.

    Parameters
    ----------
    group : Group
        Making one is collective over it.
    rooms : sequence of CompressionWorkspace
        One for each sum that may be under way at a time; they must end in the order in which they began.
    """

    def __init__(self, group: Group, rooms: Sequence[CompressionWorkspace]) -> None:
        self._device = group.device
        # Words are the host's: they do not stand in line with what waits for a device.
        self._group = group if self._device is None else group.split(0, group.axis, on_device=False)
        # Ranks come to the second half of a sum at different moments, but MPI wants one order in each communicator.
        self._gathering = self._group if len(rooms) == 1 else group.split(0, group.axis, on_device=False)
        self._most, self._rooms = rooms[0].most, cycle(rooms)

    def allreduce(self, array: Array) -> None:
        """Replace `array`, of any size, by its sum over the ranks, in place."""
        for piece in pieces(array, self._most * array.itemsize):
            self.iallreduce(piece).wait()

    def iallreduce(self, piece: Array) -> CompressedAllreduce | StagedCompressedAllreduce:
        """As `allreduce` of a piece, but returns at once; the sum owns it until it is done."""
        if is_on_host(piece):
            return self._begin(piece)
        assert self._device is not None, "somebody carries arrays that are not the host's"
        return StagedCompressedAllreduce(self._device, piece, self._begin)

    def _begin(self, piece: Array) -> CompressedAllreduce:
        return CompressedAllreduce(self._group, self._gathering, piece, next(self._rooms))
