"""Partitions against a search through all of them, closed forms and examples worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn import MLP
from hybridnn.errors import SettingError
from hybridnn.pipeline.partition import (
    balanced_counts,
    check_partition,
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
def test_a_partition_by_typical_costs_equals_the_best_of_all(
    sizes: list[int], stages: int, samples: int, itemsize: int
) -> None:
    model = MLP(sizes)
    stages = min(stages, len(model.layers))
    found = typical_partition(model, ((1, 1),) * stages, 1, samples, itemsize)
    possible = [c for c in product(range(1, len(sizes)), repeat=stages) if sum(c) == len(model.layers)]
    best = min(slowest_of(counts, model, samples, itemsize) for counts in possible)
    assert slowest_of(found, model, samples, itemsize) == pytest.approx(best, rel=1e-9)


def test_partitions_by_typical_costs() -> None:
    wide_input = MLP([784, 128, 127, 126, 125, 124, 123, 10])
    assert typical_partition(wide_input, ((1, 1),) * 2, 1, 128, 4) == (2, 5)  # the first layer has half of the work
    equal = MLP([512] * 9)
    assert typical_partition(equal, ((2, 1), (1, 1)), 1, 400, 4) == (6, 2)
    assert typical_partition(equal, ((1, 1), (1, 3)), 1, 400, 4) == (2, 6)
    assert typical_partition(equal, ((1, 1),) * 2, 2, 400, 4) == (2, 2, 2, 2)  # two chunks of each stage
