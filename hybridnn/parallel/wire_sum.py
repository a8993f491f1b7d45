"""Sums over a group whose numbers travel as words of 16 bits: ``parallel.wire_dtype``.

MPI adds up what it knows the type of, and it knows neither bfloat16 nor float16 everywhere. So the ranks do what a
large all-reduce is made of. Every rank rounds its numbers, and sends each of the others the words of that one's block:
an all-to-all. Then it adds up its own block, in the precision of the training and in the order of the ranks, rounds
the sum once, and all gather the words of all blocks. Every rank reads the same words, so all hold the same bits.

With u the roundoff of a word, s of the sum as the training computes it, and p ranks with the numbers g_r, a sum is off
by at most

    u |sum g_r| + (1 + u) (u + (p - 1) s (1 + u)) sum |g_r|

up to terms of s^2, and up to what `hybridnn.kernels.sixteen_bits` says of numbers that are small beside others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.group import Group
from hybridnn.comm.partition import block_size, block_slice
from hybridnn.kernels import numpy_kernels as kernels
from hybridnn.kernels.sixteen_bits import WORD_BYTES, WordFormat

__all__ = ["PIECE_NUMBERS", "WireRoom", "WireSum", "piece_sizes", "wire_bytes", "wire_room_bytes"]

Array = NDArray[Any]

PIECE_NUMBERS = 1 << 18
"""Numbers that are summed at a time, so that working memory is small and stays in the cache."""


def piece_sizes(numbers: int, most: int = PIECE_NUMBERS) -> list[int]:
    """Numbers of the pieces of an array."""
    whole, rest = divmod(numbers, most)
    return [most] * whole + [rest] * (rest > 0)


def wire_bytes(sizes: Iterable[int], ranks: int, words: WordFormat) -> int:
    """Bytes of the words of all blocks of pieces of these sizes; an all-to-all and an all-gather carry as many each."""
    return sum(ranks * _row_words(size, ranks, words) * WORD_BYTES for size in sizes)


def wire_room_bytes(numbers: int, ranks: int, words: WordFormat, itemsize: int) -> int:
    """Bytes of the working memory of a sum of a piece."""
    return 2 * wire_bytes([numbers], ranks, words) + 2 * block_size(numbers, ranks, 0) * itemsize


def _row_words(numbers: int, ranks: int, words: WordFormat) -> int:
    """Words of a block; all have as many, so that the shorter ones end with words that nobody reads."""
    return words.head + block_size(numbers, ranks, 0)


class WireRoom:
    """Working memory of a sum under way.

    Parameters
    ----------
    words : WordFormat
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

    def __init__(self, words: WordFormat, ranks: int, numbers: int, dtype: DTypeLike) -> None:
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


class WireSum:
    """A sum under way; it answers as `Request` does.

    Parameters
    ----------
    group, gathering : Group
        The ranks, for the first half of the sum and for the second.
    array : ndarray, shape (n,)
        Summed in place.
    room : WireRoom
    """

    def __init__(self, group: Group, gathering: Group, array: Array, room: WireRoom) -> None:
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
