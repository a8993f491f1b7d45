"""Placement of ranks on nodes, without MPI."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn.comm.threads import threads_for
from hybridnn.errors import SettingError
from hybridnn.parallel.grid import fitting_grids, resolve_axes
from hybridnn.parallel.nodes import place_ranks
from reference import placement


def crossing_groups(nodes: list[int], model: int) -> int:
    """Model groups whose ranks are not all on one node."""
    order = place_ranks(nodes, model)
    groups = [order[start : start + model] for start in range(0, len(order), model)]
    return sum(len({nodes[rank] for rank in group}) > 1 for group in groups)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=24), st.integers(1, 6))
def test_placement_is_a_permutation_with_as_few_crossings_as_possible(nodes: list[int], model: int) -> None:
    assert place_ranks(nodes, model) == placement.place_ranks(nodes, model)
    assert sorted(place_ranks(nodes, model)) == list(range(len(nodes)))
    if len(nodes) % model == 0:
        whole = sum(nodes.count(node) // model for node in set(nodes))
        assert crossing_groups(nodes, model) <= len(nodes) // model - whole


def test_fitting_grids() -> None:
    assert fitting_grids(6) == [(6, 1), (3, 2), (2, 3), (1, 6)]
    assert fitting_grids(8, pipeline=2) == [(4, 1), (2, 2), (1, 4)]
    assert fitting_grids(7, pipeline=2) == []


def test_batch_axis_defaults_to_the_remaining_ranks() -> None:
    assert resolve_axes(12, 1, None, 3) == (1, 4, 3)


@pytest.mark.parametrize(
    ("batch", "model", "named"), [(0, 1, "batch = 0"), (4, 0, "model = 0"), (1.0, 1, "batch = 1.0")]
)
def test_axes_must_be_positive_integers(batch: int, model: int, named: str) -> None:
    with pytest.raises(SettingError, match=rf"parallel\.{named}: must be a whole number, at least 1"):
        resolve_axes(4, 1, batch, model)


@pytest.mark.parametrize(
    ("ranks", "node", "own", "threads"), [(2, 8, 8, 4), (8, 8, 8, 1), (16, 8, 8, 1), (3, 8, 8, 2), (4, 8, 1, 1)]
)
def test_ranks_times_threads_fit_the_node(ranks: int, node: int, own: int, threads: int) -> None:
    assert threads_for(ranks, node, own) == threads
    assert threads == 1 or ranks * threads <= node
