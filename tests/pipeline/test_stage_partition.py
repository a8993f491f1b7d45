"""Layers of the stages, and the times of layers that they are chosen by."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from hybridnn import MLP
from hybridnn.errors import SettingError
from hybridnn.nn.kernels import NUMPY, Kernels
from hybridnn.pipeline import partition
from hybridnn.pipeline.partition import (
    balanced_counts,
    check_partition,
    time_layers,
    typical_partition,
    uniform_partition,
)


@pytest.mark.parametrize("counts", [(2, 2), (2, 2, 1)])
def test_wrong_partitions_are_refused(counts: tuple[int, ...]) -> None:
    with pytest.raises(SettingError) as error:
        check_partition(counts, 6, 3)
    assert (error.value.setting, error.value.value) == ("parallel.partition", list(counts))
    check_partition((1, 4, 1), 6, 3)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: uniform_partition(3, 4), "parallel.pipeline = 4: at most 3, the number of layers"),
        (lambda: check_partition((1, 1, 1, 0), 3, 4), "parallel.pipeline = 4: at most 3"),
        (lambda: uniform_partition(3, 0), "parallel.pipeline = 0: must be a whole number, at least 1"),
    ],
)
def test_wrong_numbers_are_refused(action: Callable[[], object], message: str) -> None:
    with pytest.raises(SettingError) as error:
        action()
    assert str(error.value).startswith(message)


@given(st.data())
def test_counts_for_unequal_stages_equal_the_best_of_all(data: st.DataObject) -> None:
    layers = data.draw(st.integers(1, 7), "layers")
    stages = data.draw(st.integers(1, min(layers, 4)), "stages")
    whole = st.integers(0, 9).map(float)
    costs = data.draw(st.lists(st.lists(whole, min_size=layers, max_size=layers), min_size=stages, max_size=stages))
    boundaries = data.draw(st.lists(whole, min_size=layers - 1, max_size=layers - 1))

    def slowest(counts: tuple[int, ...]) -> tuple[float, float]:
        """Of all parts, and of the stages."""
        ends = [sum(counts[: stage + 1]) for stage in range(stages)]
        slowest_stage = max(sum(costs[stage][end - counts[stage] : end]) for stage, end in enumerate(ends))
        return max([slowest_stage, *(boundaries[end - 1] for end in ends[:-1])]), slowest_stage

    possible = [c for c in product(range(1, layers + 1), repeat=stages) if sum(c) == layers]
    found = balanced_counts(lambda stage, first, end: sum(costs[stage][first:end]), boundaries, stages)
    assert found in possible
    assert slowest(found) == min(map(slowest, possible))


def test_slow_boundaries_do_not_unbalance_the_stages() -> None:
    """Equal layers, and boundaries that all take longer than the whole network."""
    assert balanced_counts(lambda _, first, end: end - first, [100.0] * 7, 2) == (4, 4)
    assert balanced_counts(lambda _, first, end: end - first, [100.0] * 8, 3) == (3, 3, 3)


def slowest_of(counts: tuple[int, ...], model: MLP, samples: int, itemsize: int) -> float:
    """Seconds of the slowest stage or boundary, by the costs that the constants of the module state."""
    times = []
    for layer in model.layers:
        weights, elements = layer.inputs * layer.outputs, layer.inputs + layer.outputs
        product = weights * 140e-12 + samples * (weights * 22e-12 + elements * 200e-12)
        times.append((3 if layer.index else 2) * (6e-6 + product * itemsize / 4))
    ends = [sum(counts[: stage + 1]) for stage in range(len(counts))]
    boundaries = [2 * (5e-6 + 2e-10 * model.sizes[end] * samples * itemsize) for end in ends[:-1]]
    return max([*(sum(times[end - count : end]) for count, end in zip(counts, ends, strict=True)), *boundaries])


@given(
    st.lists(st.integers(1, 3000), min_size=3, max_size=8),
    st.integers(1, 3),
    st.integers(1, 300),
    st.sampled_from([4, 8]),
)
def test_a_partition_by_typical_costs_equals_the_best_of_all(sizes, stages, samples, itemsize) -> None:
    model = MLP(sizes)
    stages = min(stages, len(model.layers))
    found = typical_partition(model, ((1, 1),) * stages, samples, itemsize)
    possible = [c for c in product(range(1, len(sizes)), repeat=stages) if sum(c) == len(model.layers)]
    best = min(slowest_of(counts, model, samples, itemsize) for counts in possible)
    assert slowest_of(found, model, samples, itemsize) == pytest.approx(best, rel=1e-9)


def test_partitions_by_typical_costs() -> None:
    wide_input = MLP([784, 128, 127, 126, 125, 124, 123, 10])
    assert typical_partition(wide_input, ((1, 1),) * 2, 128, 4) == (2, 5)  # the first layer has half of the work
    equal = MLP([512] * 9)
    assert typical_partition(equal, ((2, 1), (1, 1)), 400, 4) == (6, 2)
    assert typical_partition(equal, ((1, 1), (1, 3)), 400, 4) == (2, 6)
    assert typical_partition(equal, ((1, 1),) * 4, 400, 4) == (2, 2, 2, 2)  # two chunks of each stage


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
