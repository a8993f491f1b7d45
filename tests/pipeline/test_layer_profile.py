"""Profiles of layers: measured times, bytes, and files."""

from __future__ import annotations

from typing import Any

import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from hybridnn import MLP
from hybridnn.nn.kernels import NUMPY, Kernels
from hybridnn.pipeline import partition
from hybridnn.pipeline.partition import time_layers


def test_each_time_is_the_median_of_its_layer_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock on which every reading is the square of its number: passes take 1, 5, 9, … and a round of two layers
    # reads it twelve times, forward 0 and 1, then backward 1 and 0 with two passes each.
    readings = iter(range(10_000))
    monkeypatch.setattr(partition, "perf_counter", lambda: float(next(readings)) ** 2)
    profile = time_layers(MLP([3, 4, 2]), 2, "float64", repeats=3)

    def seconds(round_number: int, reading: int) -> float:
        start = 12 * round_number + 2 * reading
        return (start + 1) ** 2 - start**2

    # Rounds 1, 2 and 3 count, of which the second is the median.
    assert [layer.forward for layer in profile] == [seconds(2, 0), seconds(2, 1)]
    backward = [seconds(2, 4) + seconds(2, 5), seconds(2, 2) + seconds(2, 3)]
    assert [layer.input_gradient + layer.weight_gradient for layer in profile] == backward


def test_passes_are_a_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    # Sizes of all products of one pass: the first layer has no gradient of its input.
    shapes: list[tuple[int, int, int]] = []
    original, transposed = NUMPY.matmul, NUMPY.matmul_transposed

    def counting(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
        shapes.append((a.shape[0], a.shape[1], b.shape[1]))
        original(a, b, out)

    def counting_transposed(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], room: NDArray[Any] | None) -> None:
        shapes.append((a.shape[1], a.shape[0], b.shape[1]))
        transposed(a, b, out, room)

    monkeypatch.setattr(Kernels, "matmul", staticmethod(counting))
    monkeypatch.setattr(Kernels, "matmul_transposed", staticmethod(counting_transposed))
    time_layers(MLP([3, 4, 2]), 5, "float64", repeats=1)
    forward = [(4, 3, 5), (2, 4, 5)]
    backward = [(4, 2, 5), (2, 5, 4), (4, 5, 3)]
    assert shapes == 2 * (forward + backward)


def test_threads_are_limited_while_timing_and_not_after(monkeypatch: pytest.MonkeyPatch) -> None:
    def threads() -> list[int]:
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    seen: list[list[int]] = []
    monkeypatch.setattr(partition, "perf_counter", lambda: float(seen.append(threads()) or len(seen)))
    before = threads()
    time_layers(MLP([3, 4, 2]), 2, "float64", repeats=1)
    assert seen
    assert all(found == [1] * len(before) for found in seen)
    assert threads() == before
