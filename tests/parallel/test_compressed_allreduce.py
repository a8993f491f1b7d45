"""Compressed all-reduce: error bound, equal bits on all ranks, and traffic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.kernels.compressed_formats import COMPRESSED_FORMATS
from hybridnn.parallel.compressed_allreduce import (
    CompressedReducer,
    CompressionWorkspace,
    compressed_bytes,
    piece_sizes,
)
from hybridnn.parallel.gradient_reduction import HOST_BUCKETS, GradientReducer
from hybridnn.parallel.grid import ProcessGrid
from reference.rounding import rounded, rounded_sum

if TYPE_CHECKING:
    from mpi4py import MPI

Array = NDArray[Any]

SIZES = (1, 2, 3, 50, 1001)
PIECE = 400
"""Elements of a piece: the largest array travels in three, of which the last is short."""


def reducer_of(group: Group, name: str, dtype: str, in_flight: int = 1) -> CompressedReducer:
    return CompressedReducer(
        group, [CompressionWorkspace(COMPRESSED_FORMATS[name], group.size, PIECE, dtype) for _ in range(in_flight)]
    )


def arrays_of_ranks(ranks: int, size: int, dtype: str) -> list[Array]:
    """Elements of many magnitudes, some of which cancel in the sum."""
    random = np.random.default_rng(size)
    numbers = random.standard_normal((ranks, size)) * 10.0 ** random.uniform(-6, 2, size)
    numbers[-1, ::3] = -numbers[0, ::3] * (1 + 1e-3 * random.standard_normal(numbers[0, ::3].shape))
    return list(numbers.astype(dtype))


def cases() -> Iterator[tuple[str, str, int]]:
    return ((name, dtype, size) for name in COMPRESSED_FORMATS for dtype in ("float32", "float64") for size in SIZES)


@pytest.mark.in_process(ranks=[2, 3, 4])
def test_sums_are_within_the_error_bound_and_bitwise_equal_on_all_ranks(comm: MPI.Intracomm) -> None:
    world = ProcessGrid(comm).world
    for name, dtype, size in cases():
        numbers, ranks = arrays_of_ranks(comm.size, size, dtype), comm.size
        total = numbers[comm.rank].copy()
        reducer_of(world, name, dtype).allreduce(total)
        exact = np.sum(numbers, axis=0, dtype=np.longdouble)
        magnitude = np.sum(np.abs(numbers), axis=0, dtype=np.longdouble)
        u, s = COMPRESSED_FORMATS[name].roundoff, np.finfo(dtype).eps / 2
        if (name, dtype) == ("bfloat16", "float64"):
            u += 2.0**-24 * (1 + u)  # rounded to float32 first
        bound = u * np.abs(exact) + (1 + u) * (u + (ranks - 1) * s * (1 + u)) * magnitude
        # Underflow of float16: in the message of every rank, and again in that of the sum.
        underflow = (ranks + ranks) * 2.0**-39 * np.max(np.abs(numbers)) if name == "float16" else 0.0
        assert (np.abs(total - exact) <= bound * (1 + 1e-6) + underflow).all(), (name, dtype, size)
        extremes = np.stack([total, -total])
        world.allreduce(extremes, "max")
        assert (extremes[0] == -extremes[1]).all()


def test_the_reference_rounds_to_bfloat16_as_pytorch_does() -> None:
    torch = pytest.importorskip("torch")

    ties = np.ldexp(np.arange(-1025.0, 1026.0), -9)
    for numbers in (ties, *arrays_of_ranks(3, 1001, "float64"), *arrays_of_ranks(3, 1001, "float32")):
        of_torch = torch.from_numpy(numbers).to(torch.float32).to(torch.bfloat16).to(torch.float64).numpy()
        np.testing.assert_array_equal(rounded("bfloat16", numbers), of_torch)


@pytest.mark.in_process(ranks=[2, 3])
def test_sums_equal_those_of_the_reference(comm: MPI.Intracomm) -> None:
    world = ProcessGrid(comm).world
    for name, dtype, size in cases():
        numbers = arrays_of_ranks(comm.size, size, dtype)
        total = numbers[comm.rank].copy()
        reducer_of(world, name, dtype).allreduce(total)
        expected = rounded_sum(name, numbers)
        if name == "bfloat16":
            np.testing.assert_array_equal(total, expected)
        else:
            # Where the addends differ by underflow, the sum may round to the next float16.
            np.testing.assert_allclose(total, expected, rtol=2.0**-10, atol=2.0**-36 * np.max(np.abs(numbers)))
            assert np.mean(total == expected) > 0.9


@pytest.mark.in_process(ranks=[2, 3])
def test_infinities_and_nan_reach_all_ranks(comm: MPI.Intracomm) -> None:
    world = ProcessGrid(comm).world
    for name in COMPRESSED_FORMATS:
        for bad in (np.inf, -np.inf, np.nan):
            numbers = np.ones(10, np.float32)
            if comm.rank == comm.size - 1:
                numbers[7] = bad
            reducer_of(world, name, "float32").allreduce(numbers)
            np.testing.assert_array_equal(numbers[7], bad)
            assert numbers[0] == comm.size


@pytest.mark.in_process(ranks=[2, 4])
def test_bytes_and_messages(comm: MPI.Intracomm) -> None:
    for name, header in (("bfloat16", 0), ("float16", 1)):
        for size in SIZES:
            grid = ProcessGrid(comm)
            reducer_of(grid.world, name, "float32").allreduce(np.ones(size, np.float32))
            totals, pieces = grid.recorder.totals, [min(PIECE, size - start) for start in range(0, size, PIECE)]
            items = sum(header + ceil(piece / comm.size) for piece in pieces)
            assert totals.bytes_sent == 2 * (comm.size - 1) * 2 * items, "a row to and from every other rank"
            assert totals.messages == 2 * len(pieces)
            assert piece_sizes(size, PIECE) == pieces
            expected = compressed_bytes(pieces, comm.size, COMPRESSED_FORMATS[name])
            assert totals.bytes_sent * comm.size == 2 * (comm.size - 1) * expected


@pytest.mark.mpi(ranks=[3])
@pytest.mark.parametrize("checked", [False, True])
def test_overlapped_buckets_equal_blocking_sums_and_the_loss_is_not_rounded(comm: MPI.Intracomm, checked: bool) -> None:
    """Also if ranks arrive at different times and test for completion at different times."""
    group, ends = ProcessGrid(comm, check_collectives=checked).batch_group, [50, 90, 95, 1200]
    numbers = [
        np.append(part, np.float32(1 / 3 + rank)) for rank, part in enumerate(arrays_of_ranks(comm.size, 1200, "f"))
    ]
    for name, compression in COMPRESSED_FORMATS.items():
        expected = rounded_sum(name, [part[:-1] for part in numbers])
        for overlap in (True, False):
            for bucket_bytes in (4 * 60,) if checked else (1, 4 * 60, 1 << 20):
                gradient = numbers[comm.rank].copy()
                config = replace(HOST_BUCKETS, bucket_bytes=bucket_bytes, piece_bytes=4 * 37)
                reducer = GradientReducer(group, gradient, ends, overlap, config, compression)
                for step in range(2):
                    gradient[...] = numbers[comm.rank]
                    for layer in reversed(range(4)):
                        if (comm.rank + step + layer) % 3 == 0:
                            comm.Iprobe()  # lets MPI make progress
                        reducer.ready(layer)
                    reducer.finish()
                    np.testing.assert_allclose(gradient[:-1], expected, rtol=2.0**-7, atol=2.0**-30)
                    if name == "bfloat16":
                        np.testing.assert_array_equal(gradient[:-1], expected)
                    assert gradient[-1] == pytest.approx(sum(part[-1] for part in numbers), rel=1e-6)
