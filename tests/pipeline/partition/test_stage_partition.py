"""Partitions against a search through all of them, closed forms and examples worked by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn.errors import SettingError
from hybridnn.pipeline.partition.layer_profile import LayerProfile
from hybridnn.pipeline.partition.stage_partition import (
    LinkCost,
    balanced_counts,
    balanced_partition,
    check_partition,
    plan_partition,
    replicated_partition,
    uniform_partition,
)

# Whole numbers below 2**20 add up exactly in any order, so that equal costs compare as equal.
LAYERS = st.lists(
    st.builds(LayerProfile, *(st.integers(0, most).map(float) for most in (20, 40, 30, 50))), min_size=1, max_size=8
)
LINKS = st.builds(LinkCost, st.integers(0, 5).map(float), st.sampled_from([0.0, 0.5, 1.0, 2.0]))


def layers(*seconds: float, output_bytes: Sequence[float] | None = None) -> list[LayerProfile]:
    """Profile with `seconds` per layer, a third of it forward."""
    outputs = output_bytes or [0] * len(seconds)
    return [LayerProfile(s / 3, s - s / 3, n, 0) for s, n in zip(seconds, outputs, strict=True)]


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as `parts` whole numbers, each 1 or more, in order."""
    for cuts in combinations(range(1, total), parts - 1):
        yield tuple(stop - start for start, stop in zip((0, *cuts), (*cuts, total), strict=True))


def costs(
    profile: Sequence[LayerProfile], counts: Sequence[int], replicas: Sequence[int], link: LinkCost
) -> list[float]:
    """Seconds of every stage and boundary in descending order, layer by layer from the definition."""
    result = []
    end = 0
    for stage, (count, ranks) in enumerate(zip(counts, replicas, strict=True)):
        owned = profile[end : end + count]
        compute = sum(layer.forward_seconds + layer.backward_seconds for layer in owned) / ranks
        summing = link.reduction_seconds(sum(layer.parameter_bytes for layer in owned), ranks) if ranks > 1 else 0.0
        result.append(max(compute, summing))
        if stage > 0:
            result.append(link.message_seconds(profile[end - 1].output_bytes) * 2)
        end += count
    return sorted(result, reverse=True)


@given(st.integers(1, 40), st.data())
def test_uniform_counts_differ_by_one_and_the_larger_come_first(count: int, data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, count))
    counts = uniform_partition(count, parts)
    assert (sum(counts), len(counts)) == (count, parts)
    assert max(counts) - min(counts) <= 1
    assert list(counts) == sorted(counts, reverse=True)
    # 0.1 has no exact value in binary: sums of it must still tie.
    assert balanced_partition(layers(*[0.1] * count), parts) == counts


@given(LAYERS, LINKS, st.data())
def test_balanced_is_the_best_of_all_partitions(
    profile: list[LayerProfile], link: LinkCost, data: st.DataObject
) -> None:
    parts = data.draw(st.integers(1, min(4, len(profile))))
    found = balanced_partition(profile, parts, link=link)

    def rank(counts: tuple[int, ...]) -> list[float]:
        return costs(profile, counts, [1] * parts, link)

    assert len(found) == parts
    assert sum(found) == len(profile)
    assert rank(found) == min(rank(counts) for counts in compositions(len(profile), parts))


def placements(profile: Sequence[LayerProfile], ranks: int, parts: int, link: LinkCost) -> Iterator[list[float]]:
    """Costs of all divisions of layers and ranks into stages."""
    for counts, replicas in product(compositions(len(profile), parts), compositions(ranks, parts)):
        yield costs(profile, counts, replicas, link)


@given(LAYERS.filter(lambda profile: len(profile) <= 6), LINKS, st.integers(1, 6), st.data())
def test_replicated_is_the_best_of_all_placements(
    profile: list[LayerProfile], link: LinkCost, ranks: int, data: st.DataObject
) -> None:
    parts = data.draw(st.integers(1, min(len(profile), ranks)))
    counts, replicas = zip(*replicated_partition(profile, ranks, parts, link=link), strict=True)
    assert (sum(counts), sum(replicas)) == (len(profile), ranks)
    assert costs(profile, counts, replicas, link) == pytest.approx(min(placements(profile, ranks, parts, link)))


@given(LAYERS.filter(lambda profile: len(profile) <= 5), LINKS, st.integers(1, 5))
def test_the_number_of_stages_is_the_fastest_and_then_the_smallest(
    profile: list[LayerProfile], link: LinkCost, ranks: int
) -> None:
    most = min(len(profile), ranks)
    slowest = {parts: min(cost[0] for cost in placements(profile, ranks, parts, link)) for parts in range(1, most + 1)}
    least = min(slowest.values())
    counts, replicas = zip(*replicated_partition(profile, ranks, link=link), strict=True)
    assert costs(profile, counts, replicas, link)[0] == pytest.approx(least)
    assert len(counts) <= min(parts for parts, seconds in slowest.items() if seconds == least)


def test_one_slow_layer_is_a_stage() -> None:
    # 10 is the slowest in any partition; the rest, 1 1 1 and 2 2, is divided as evenly as the order allows.
    assert balanced_partition(layers(1, 1, 1, 10, 2, 2), 3) == (3, 1, 2)
    assert balanced_partition(layers(10, 1, 1, 1, 1), 3) == (1, 2, 2)


def test_an_expensive_message_moves_the_boundary() -> None:
    profile = layers(3, 3, 3, 3, output_bytes=[1, 10, 12, 1])
    assert balanced_partition(profile, 2) == (2, 2)
    # At 0.5 s per byte the boundaries take 1, 10 and 12 s, the larger stages 9, 6 and 9 s.
    link = LinkCost(alpha=0.0, beta=0.5)
    assert balanced_partition(profile, 2, link=link) == (1, 3)
    plan = plan_partition(profile, (2, 2), link=link)
    assert plan.message_seconds == (10.0,)
    assert plan.bottleneck == 10.0


def test_a_slow_first_stage_is_replicated() -> None:
    # The shape of VGG16 in the papers: nearly all work in the first layers, nearly all parameters in the last ones.
    profile = [LayerProfile(2.0, 4.0, 100, 10), LayerProfile(1.0, 2.0, 50, 10), LayerProfile(0.5, 1.0, 10, 10_000)]
    link = LinkCost(alpha=0.0, beta=0.001)
    found = replicated_partition(profile, 4, link=link)
    assert found == ((2, 3), (1, 1))
    counts, replicas = zip(*found, strict=True)
    plan = plan_partition(profile, counts, replicas, link=link)
    assert plan.stage_seconds == (3.0, 1.5)
    assert plan.message_seconds == (pytest.approx(2 * 0.001 * 50),)
    # All four ranks on all layers would sum 10,020 bytes: 2 * 3/4 * 10.02 s.
    everything = plan_partition(profile, (3,), (4,), link)
    assert everything.bottleneck == pytest.approx(15.03)


def test_without_costs_of_messages_replication_is_perfect() -> None:
    assert replicated_partition(layers(4, 4, 4), 6) == ((3, 6),)
    assert replicated_partition(layers(4, 8), 6, 2) == ((1, 2), (1, 4))
    assert replicated_partition(layers(1, 2, 3), 3, 3) == ((1, 1), (1, 1), (1, 1))


def test_a_link_costs_what_the_formulas_say() -> None:
    link = LinkCost(alpha=3.0, beta=0.5)
    assert link.message_seconds(8) == 7.0
    # A ring of 4: 6 messages of a quarter each.
    assert link.reduction_seconds(8, 4) == 6 * (3.0 + 0.5 * 2)
    assert link.reduction_seconds(8, 1) == 0.0


def test_a_plan_sums_layers_and_compares_stages() -> None:
    plan = plan_partition(layers(3, 6, 9, output_bytes=[4, 5, 6]), (2, 1), link=LinkCost(beta=1.0))
    assert (plan.stages, plan.replicas) == ((2, 1), (1, 1))
    assert plan.stage_seconds == (9.0, 9.0)
    assert plan.message_seconds == (10.0,)
    assert plan.bottleneck == 10.0
    assert plan.balance == 1.0
    assert plan_partition(layers(3, 6, 9), (1, 2)).balance == pytest.approx((3 + 15) / 2 / 15)
    assert plan_partition(layers(0, 0), (1, 1)).balance == 1.0
    assert plan_partition(layers(5), (1,)).bottleneck == 5.0


@pytest.mark.parametrize("counts", [(2, 2), (2, 2, 1), (3, 0, 3), (3, 4, -1), (2.0, 2, 2), (True, 4, 1)])
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
        (lambda: balanced_partition(layers(1, 2), 3), "parallel.pipeline = 3: at most 2"),
        (lambda: replicated_partition(layers(1, 2), 9, 3), "parallel.pipeline = 3: at most 2"),
        (lambda: uniform_partition(3, 0), "parallel.pipeline = 0: a whole number, 1 or more"),
        (lambda: replicated_partition(layers(1, 2), 1, 2), "ranks = 1: at least 2, one for each stage"),
        (lambda: replicated_partition(layers(1, 2), 0), "ranks = 0: a whole number, 1 or more"),
        (lambda: LinkCost(alpha=-1.0), "alpha = -1.0: a finite number of seconds, 0 or more"),
        (lambda: LinkCost(beta=float("nan")), "beta = nan: a finite number of seconds, 0 or more"),
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
