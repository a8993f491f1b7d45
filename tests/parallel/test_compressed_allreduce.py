"""Sums whose numbers travel in 16 bits: how far off they are, the same on all ranks, and what they send."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.kernels.sixteen_bits import COMPRESSED_FORMATS
from hybridnn.parallel.compressed_allreduce import (
    CompressedReducer,
    CompressionWorkspace,
    compressed_bytes,
    piece_sizes,
)
from hybridnn.parallel.gradient_reduction import HOST_BUCKETS, GradientReducer
from hybridnn.parallel.grid import ProcessGrid
from reference.rounding import rounded_sum

if TYPE_CHECKING:
    from mpi4py import MPI

Array = NDArray[Any]

SIZES = (1, 2, 3, 50, 1001)
MOST = 400
"""Numbers of a piece: the largest array travels in three, of which the last is short."""


def sums_over(group: Group, name: str, dtype: str, in_flight: int = 1) -> CompressedReducer:
    return CompressedReducer(
        group, [CompressionWorkspace(COMPRESSED_FORMATS[name], group.size, MOST, dtype) for _ in range(in_flight)]
    )


def everyone(ranks: int, size: int, dtype: str) -> list[Array]:
    """Numbers of many sizes, which cancel here and there."""
    random = np.random.default_rng(size)
    numbers = random.standard_normal((ranks, size)) * 10.0 ** random.uniform(-6, 2, size)
    numbers[-1, ::3] = -numbers[0, ::3] * (1 + 1e-3 * random.standard_normal(numbers[0, ::3].shape))
    return list(numbers.astype(dtype))


def cases() -> Iterator[tuple[str, str, int]]:
    return ((name, dtype, size) for name in COMPRESSED_FORMATS for dtype in ("float32", "float64") for size in SIZES)


@pytest.mark.in_process(ranks=[2, 3, 4])
def test_sums_are_as_near_as_stated_and_the_same_bits_everywhere(comm: MPI.Intracomm) -> None:
    world = ProcessGrid(comm).world
    for name, dtype, size in cases():
        numbers, ranks = everyone(comm.size, size, dtype), comm.size
        total = numbers[comm.rank].copy()
        sums_over(world, name, dtype).allreduce(total)
        exact = np.sum(numbers, axis=0, dtype=np.longdouble)
        apart = np.sum(np.abs(numbers), axis=0, dtype=np.longdouble)
        u, s = COMPRESSED_FORMATS[name].roundoff, np.finfo(dtype).eps / 2
        if (name, dtype) == ("bfloat16", "float64"):
            u += 2.0**-24 * (1 + u)  # rounded to float32 first
        bound = u * np.abs(exact) + (1 + u) * (u + (ranks - 1) * s * (1 + u)) * apart
        # Small numbers of float16: of a message of every rank, and once more of the sum.
        small = (ranks + ranks) * 2.0**-39 * np.max(np.abs(numbers)) if name == "float16" else 0.0
        assert (np.abs(total - exact) <= bound * (1 + 1e-6) + small).all(), (name, dtype, size)
        alike = np.stack([total, -total])
        world.allreduce(alike, "max")
        assert (alike[0] == -alike[1]).all()


@pytest.mark.in_process(ranks=[2, 3])
def test_sums_are_those_of_numbers_rounded_by_others(comm: MPI.Intracomm) -> None:
    world = ProcessGrid(comm).world
    for name, dtype, size in cases():
        numbers = everyone(comm.size, size, dtype)
        total = numbers[comm.rank].copy()
        sums_over(world, name, dtype).allreduce(total)
        expected = rounded_sum(name, numbers)
        if name == "bfloat16":
            np.testing.assert_array_equal(total, expected)
        else:
            # Where a rounding differs by the little that small numbers lose, the sum may be the next float16.
            np.testing.assert_allclose(total, expected, rtol=2.0**-10, atol=2.0**-36 * np.max(np.abs(numbers)))
            assert np.mean(total == expected) > 0.9


@pytest.mark.in_process(ranks=[2, 3])
def test_what_is_not_finite_reaches_all(comm: MPI.Intracomm) -> None:
    world = ProcessGrid(comm).world
    for name in COMPRESSED_FORMATS:
        for bad in (np.inf, -np.inf, np.nan):
            numbers = np.ones(10, np.float32)
            if comm.rank == comm.size - 1:
                numbers[7] = bad
            sums_over(world, name, "float32").allreduce(numbers)
            np.testing.assert_array_equal(numbers[7], bad)
            assert numbers[0] == comm.size


@pytest.mark.in_process(ranks=[2, 4])
def test_bytes_and_calls(comm: MPI.Intracomm) -> None:
    for name, head in (("bfloat16", 0), ("float16", 1)):
        for size in SIZES:
            grid = ProcessGrid(comm)
            sums_over(grid.world, name, "float32").allreduce(np.ones(size, np.float32))
            totals, pieces = grid.recorder.totals, [min(MOST, size - start) for start in range(0, size, MOST)]
            words = sum(head + ceil(piece / comm.size) for piece in pieces)
            assert totals.bytes_sent == 2 * (comm.size - 1) * 2 * words, "to every other rank a row, and one from it"
            assert totals.messages == 2 * len(pieces)
            assert piece_sizes(size, MOST) == pieces
            expected = compressed_bytes(pieces, comm.size, COMPRESSED_FORMATS[name])
            assert totals.bytes_sent * comm.size == 2 * (comm.size - 1) * expected


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("checked", [False, True])
def test_overlapped_buckets_are_the_blocking_sums_and_the_loss_is_not_rounded(
    comm: MPI.Intracomm, checked: bool
) -> None:
    """Whoever comes late, and however often it is asked whether a sum is there."""
    group, ends = ProcessGrid(comm, check_collectives=checked).batch_group, [50, 90, 95, 1200]
    numbers = [np.append(part, np.float32(1 / 3 + rank)) for rank, part in enumerate(everyone(comm.size, 1200, "f"))]
    for name, words in COMPRESSED_FORMATS.items():
        expected = rounded_sum(name, [part[:-1] for part in numbers])
        for overlap in (True, False):
            for bucket_bytes in (1, 4 * 60, 1 << 20):
                gradient = numbers[comm.rank].copy()
                pace = replace(HOST_BUCKETS, bucket_bytes=bucket_bytes, piece_bytes=4 * 37)
                reducer = GradientReducer(group, gradient, ends, overlap, pace, words)
                for step in range(3):
                    gradient[...] = numbers[comm.rank]
                    for layer in reversed(range(4)):
                        if (comm.rank + step + layer) % 3 == 0:
                            comm.Iprobe()  # lets messages arrive
                        reducer.ready(layer)
                    reducer.finish()
                    np.testing.assert_allclose(gradient[:-1], expected, rtol=2.0**-7, atol=2.0**-30)
                    if name == "bfloat16":
                        np.testing.assert_array_equal(gradient[:-1], expected)
                    assert gradient[-1] == pytest.approx(sum(part[-1] for part in numbers), rel=1e-6)
