"""A7: the reference solutions against independent computations."""

from __future__ import annotations

from itertools import combinations, pairwise, product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn.comm.blocks import block_size
from hybridnn.cost.calibration.fit import fit_linear
from hybridnn.cost.collectives import counts
from hybridnn.pipeline.partition import balanced_counts
from hybridnn_course.exercises.a7_cost.calls import slowest_part
from hybridnn_course.exercises.a7_cost.predictions import MAP, calibrated, map_of
from hybridnn_course_staff.assignments.a7_cost import solution
from hybridnn_course_staff.assignments.a7_cost.assignment import ASSIGNMENT
from hybridnn_course_staff.assignments.a7_cost.solution import (
    cuts_solution,
    fit_solution,
    fitting_grids,
    grid_solution,
    knomial_tree,
    neighbour_exchange,
    ring_counts,
    step_counts,
    two_level,
)
from hybridnn_course_staff.handout import render_handout
from hybridnn_course_staff.task_key import TaskKey
from hybridnn_papers.formulas import best_grid, integrated_step


def test_the_handout_has_the_numbers_of_its_examples():
    text = render_handout(ASSIGNMENT, ASSIGNMENT.standard)
    features = np.array([[1, 1000]] * 3 + [[1, 64000]] * 3, float)
    seconds = np.array([4.1, 3.8, 60, 18, 19, 18.5]) * 1e-6
    for choice in ("median", "least"):
        alpha, beta = fit_solution({"repetitions": choice})(features, seconds)
        assert f"{alpha * 1e6:.3f}, {beta * 1e9:.4f}" in text
    for grid in fitting_grids([64, 512, 10], 100, 4):
        row = [f"{grid[0]} x {grid[1]}"]
        row += ["{}, {:,}".format(*map(round, step_counts([64, 512, 10], 100, grid, passes))) for passes in (2, 3)]
        assert f"| {' | '.join(row)} |" in text
    for weights in ("replicated", "sharded"):
        (batch, model), found = grid_solution({"weights": weights})([64, 512, 10], 100, 4, 2e-6, 1e-10)
        assert f"{batch} x {model}, {found * 1e6:.2f} µs" in text
    for count in range(1, 5):
        own = [
            slowest_part({"messages": choice}, [1, 2, 1, 1, 1], [0, 5, 3, 2], [count, 5 - count])
            for choice in ("overlapped", "waited for")
        ]
        assert f"| {count}, {5 - count} |" in text
        assert f"| {own[0]:g} | {own[1]:g} |" in text
    assert ", ".join(str(knomial_tree(1, ranks)[0]) for ranks in (2, 4, 5, 7, 10, 16, 17)) in text
    assert ring_counts(10, 4) == (6, 18, 9)
    assert [two_level(1000, ranks) for ranks in (10, 4)] == [(8, 5336, 2668), (4, 4000, 2000)]


# -- fit --------------------------------------------------------------------------------------------------------------


def _best_of_all_supports(rows, values):
    """Non-negative least squares by trying every set of columns that may differ from 0."""
    best, least = np.zeros(rows.shape[1]), np.inf
    for size in range(1, rows.shape[1] + 1):
        for columns in map(list, combinations(range(rows.shape[1]), size)):
            found = np.linalg.lstsq(rows[:, columns], values, rcond=None)[0]
            error = float(((rows[:, columns] @ found - values) ** 2).sum())
            if (found >= 0).all() and error < least:
                best, least = np.zeros(rows.shape[1]), error
                best[columns] = found
    return best


@pytest.mark.parametrize("choice", ["median", "least"])
def test_the_fit_is_the_best_of_all_sets_of_coefficients(choice):
    random = np.random.default_rng(3)
    for _ in range(30):
        different = random.uniform(1, 1000, (6, 3))
        different[:, 2] *= random.integers(0, 2)
        measured = random.uniform(1, 1000, 6)
        repeated = measured[:, None] * np.exp(random.normal(0, 0.3, (6, 3)))
        features, seconds = np.repeat(different, 3, axis=0), repeated.ravel()
        order = random.permutation(18)
        summary = (np.median if choice == "median" else np.min)(repeated, axis=1)
        found = fit_solution({"repetitions": choice})(features[order], seconds[order])
        expected = _best_of_all_supports(different / summary[:, None], np.ones(6))
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-12)


def test_only_one_set_of_coefficients_is_best_in_every_case():
    task = ASSIGNMENT.task("fit")
    for number in range(10):
        for case in TaskKey(ASSIGNMENT, task, ASSIGNMENT.standard, bytes([number] * 16)).cases:
            features, seconds = case.inputs[0]["features"], case.inputs[0]["seconds"]
            rows = (features / seconds[:, None])[:, features.any(axis=0)]
            assert np.linalg.cond(rows / np.linalg.norm(rows, axis=0)) < 100


def test_the_fit_without_repetitions_is_that_of_the_library():
    random = np.random.default_rng(4)
    features, seconds = random.uniform(1, 1000, (20, 3)), random.uniform(1, 1000, 20)
    np.testing.assert_allclose(solution.fit_costs(features, seconds), fit_linear(features, seconds).coefficients)


@pytest.mark.slow
def test_the_whole_run_of_the_fit_meets_sizes_that_were_held_out():
    errors = [values[2]["mean error on held-out sizes"] for values in calibrated().values()]
    assert max(errors) <= 0.08  # as the handout says


# -- collectives ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**7), st.integers(1, 300))
def test_the_ring_is_that_of_the_library(nbytes, ranks):
    own = counts("allreduce", "ring", nbytes, ranks)
    assert ring_counts(nbytes, ranks) == (own.messages, own.nbytes, own.reduced)


@given(st.integers(0, 1000), st.integers(1, 24).map(lambda half: 2 * half))
def test_neighbour_exchange_brings_every_block_to_every_rank(nbytes, ranks):
    size = [block_size(nbytes, ranks, number) for number in range(ranks)]
    owned = [{rank} for rank in range(ranks)]
    last = [{rank} for rank in range(ranks)]
    sent = 0
    for step in range(ranks // 2):
        first_side = 1 if step % 2 == 0 else -1
        peers = [(rank + (first_side if rank % 2 == 0 else -first_side)) % ranks for rank in range(ranks)]
        travelling = last if step else [set(own) for own in owned]
        if step == 1:
            travelling = [set(own) for own in owned]  # the own block and that of the pair
        sent += max(sum(size[number] for number in blocks) for blocks in travelling)
        last = [set(travelling[peer]) for peer in peers]
        owned = [own | got for own, got in zip(owned, last, strict=True)]
    assert all(own == set(range(ranks)) for own in owned)
    assert neighbour_exchange(nbytes, ranks) == (ranks // 2, sent, 0)


@given(st.integers(1, 700))
def test_the_tree_reaches_every_rank_in_its_rounds(ranks):
    reached, rounds = 1, 0
    while reached < ranks:
        left = min(ranks - reached, 3 * reached)
        messages = [left // reached + (sender < left % reached) for sender in range(reached)]
        rounds, reached = rounds + max(messages), reached + left
    assert knomial_tree(5, ranks) == (rounds, 5 * rounds, 0)


@given(st.integers(0, 10**6), st.integers(1, 60))
def test_two_levels_are_the_librarys_collectives_one_after_another(nbytes, ranks):
    inside, nodes = min(ranks, 4), -(-ranks // 4)
    parts = [("reduce", "binomial", inside), ("allreduce", "ring", nodes), ("broadcast", "binomial", inside)]
    found = [counts(operation, name, nbytes, size) for operation, name, size in parts]
    expected = found[0] + found[1] + found[2]
    assert two_level(nbytes, ranks) == (expected.messages, expected.nbytes, expected.reduced)


# -- cuts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["overlapped", "waited for"])
def test_no_cuts_are_better(choice):
    random = Random(5)
    for _ in range(100):
        layers = random.randint(1, 8)
        stages = random.randint(1, layers)
        seconds = [float(random.randint(0, 9)) for _ in range(layers)]
        boundaries = [float(random.randint(0, 12)) for _ in range(layers - 1)]

        def slowest(counts, seconds=seconds, boundaries=boundaries):
            ends = [0, *np.cumsum(counts).tolist()]
            times = [sum(seconds[first:end]) for first, end in pairwise(ends)]
            at = [0.0, *(boundaries[end - 1] for end in ends[1:-1]), 0.0]
            if choice == "overlapped":
                return max(*times, *at)
            return max(before + own + after for before, own, after in zip(at[:-1], times, at[1:], strict=True))

        inner = combinations(range(1, layers), stages - 1)
        best = min(slowest([end - first for first, end in pairwise([0, *cuts, layers])]) for cuts in inner)
        found = cuts_solution({"messages": choice})(seconds, boundaries, stages)
        assert len(found) == stages
        assert min(found) >= 1
        assert slowest(found) == best == slowest_part({"messages": choice}, seconds, boundaries, found)
        if choice == "overlapped":
            library = balanced_counts(lambda _, first, end, s=seconds: sum(s[first:end]), boundaries, stages)
            assert slowest(library) == best


# -- grid -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 6, 8, 30])
def test_the_grid_is_that_of_the_library(ranks):
    for widths, batch, alpha in product(([64, 512, 10], [40, 40, 40, 40]), (7, 100), (1e-6, 1e-4)):
        grid, seconds = grid_solution({"weights": "replicated"})(widths, batch, ranks, alpha, 1e-9)
        assert grid == best_grid(widths, batch, ranks, alpha, 1e-9)
        assert seconds == pytest.approx(integrated_step(widths, batch, *grid).seconds(alpha, 1e-9))


def test_sharded_weights_pass_the_batch_axis_once_more():
    widths, batch, grid = [64, 512, 10], 100, (4, 2)
    replicated, sharded = (step_counts(widths, batch, grid, passes) for passes in (2, 3))
    weights = (64 * 512 + 512 * 10) / 2 * 4
    assert sharded[0] - replicated[0] == 2 * 2
    assert sharded[1] - replicated[1] == pytest.approx(weights * 3 / 4)


@pytest.mark.slow
def test_the_expected_map_is_that_of_the_library():
    layers, widths, batches, ranks, alpha, beta = MAP
    grids = [[best_grid([width] * (layers + 1), batch, ranks, alpha, beta) for batch in batches] for width in widths]
    names = {(ranks, 1): "batch", (1, ranks): "model"}
    assert map_of(grid_solution(ASSIGNMENT.standard)) == {
        "map": [[names.get(grid, f"{grid[0]} x {grid[1]}") for grid in row] for row in grids]
    }
