"""Which groups and sizes are measured, and which sizes are held out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hybridnn.cost.calibration.communication import MeasuredGroup, measured_groups, plan_cases


def sizes_of(groups: tuple[MeasuredGroup, ...], *, spans_nodes: bool) -> list[int]:
    return [len(group.members) for group in groups if group.spans_nodes == spans_nodes]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [(1, []), (2, [2]), (3, [2, 3]), (4, [2, 3, 4]), (6, [2, 3, 4, 6]), (16, [2, 3, 4, 8, 16])],
)
def test_groups_of_one_node_are_of_powers_of_two_three_and_all(ranks: int, expected: list[int]) -> None:
    groups = measured_groups([0] * ranks)
    assert sizes_of(groups, spans_nodes=False) == expected
    assert sizes_of(groups, spans_nodes=True) == []
    assert all(group.members == tuple(range(len(group.members))) for group in groups)


def test_groups_of_several_nodes_are_inside_the_fullest_and_across() -> None:
    groups = measured_groups([5, 5, 0, 0, 0, 0, 9, 9])
    assert [group.members for group in groups if not group.spans_nodes] == [(2, 3), (2, 3, 4), (2, 3, 4, 5)]
    # One rank for each node, and all.
    assert [group.members for group in groups if group.spans_nodes] == [(0, 2), (0, 2, 6), tuple(range(8))]


def test_nodes_of_one_rank_have_no_groups_inside() -> None:
    groups = measured_groups([3, 1, 2])
    assert [group.members for group in groups] == [(0, 1), (0, 1, 2)]
    assert all(group.spans_nodes for group in groups)


@pytest.mark.parametrize("ranks", [2, 3])
def test_sizes_cover_the_range_and_a_third_inside_it_is_held_out(ranks: int) -> None:
    cases = plan_cases(ranks, 60.0, np.random.default_rng(0))
    operations = Counter(case.operation for case in cases)
    assert set(operations) == {"barrier", "allreduce", "iallreduce", "allgather", "broadcast"} | (
        {"send"} if ranks == 2 else set()
    )
    for operation in set(operations) - {"barrier"}:
        own = [case for case in cases if case.operation == operation]
        assert sum(case.held_out for case in own) == len(own) / 3
        fitted = [case.nbytes for case in own if not case.held_out]
        held_out = [case.nbytes for case in own if case.held_out]
        assert not set(fitted) & set(held_out)
        assert min(fitted) < min(held_out)
        assert max(held_out) < max(fitted) <= 2**26 + 4 * ranks
        assert min(fitted) < 32
        assert max(fitted) > 2**24
        assert all(case.nbytes % 4 == 0 and case.nbytes > 0 for case in own)
        # Evenly on a logarithmic scale: between a fifth and a third of the octaves 8 B to 64 MiB in each quarter.
        quarters = Counter(min(int((np.log2(case.nbytes) - 3) / (23 / 4)), 3) for case in own)
        assert all(len(own) / 6 <= quarters[quarter] <= len(own) / 3 for quarter in range(4))


def test_gathered_blocks_are_even_and_uneven() -> None:
    numbers = [
        case.nbytes // 4 for case in plan_cases(3, 60.0, np.random.default_rng(0)) if case.operation == "allgather"
    ]
    even = sum(number % 3 == 0 for number in numbers)
    assert len(numbers) / 2 <= even < len(numbers)


def test_no_size_comes_twice_even_where_the_range_is_short() -> None:
    for seed in range(20):
        cases = plan_cases(3, 0.05, np.random.default_rng(seed))
        assert len(set(cases)) == len(cases) == len({(case.operation, case.nbytes) for case in cases})


def test_a_short_time_has_smaller_messages_and_a_seed_is_a_plan() -> None:
    short = plan_cases(2, 0.05, np.random.default_rng(0))
    assert max(case.nbytes for case in short) <= 2**18 + 8
    assert short == plan_cases(2, 0.05, np.random.default_rng(0))
    assert short != plan_cases(2, 0.05, np.random.default_rng(1))


def test_a_group_of_whole_nodes_says_how_many_ranks_share_each() -> None:
    groups = measured_groups([5, 5, 0, 0, 0, 0, 9, 9])
    assert [group.ranks_per_node for group in groups if group.spans_nodes] == [1, 1, 4]
