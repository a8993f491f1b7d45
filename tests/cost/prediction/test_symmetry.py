"""Costs computed once for equal ranks, stages, layers and microbatches, against costs computed for each of them."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn import MLP
from hybridnn.cost.collectives import Crossings
from hybridnn.cost.machine import Machine
from hybridnn.cost.machine_file import read_machine
from hybridnn.cost.plan import StepBounds, feasible_layouts
from hybridnn.cost.prediction import Workload, groups, stage_costs
from hybridnn.cost.prediction.groups import GridPlaces, Groups, StagePlace
from hybridnn.cost.prediction.predict import Prediction, predict, simulate_layout
from hybridnn.cost.prediction.stage_costs import ChunkCosts
from hybridnn.cost.prediction.times import pipeline_of
from hybridnn.pipeline.layout import Layout
from reference.machines import place_ranks

CLUSTER = read_machine("cluster-1024")
UNEVEN = Workload(MLP([32, 32, 32, 24, 24, 24, 24, 40, 32, 10]), 2000, 61)
EVEN = Workload(MLP([32] * 13, activation="identity"), 2000, 64, classification=False)


def cluster(nodes: int, ranks_per_node: int) -> Machine:
    return CLUSTER.model_copy(
        update={"nodes": nodes, "ranks_per_node": ranks_per_node, "name": f"{nodes} x {ranks_per_node}"}
    )


CACHES = (groups._axis_crossings, groups._flows, groups.grid_places, groups._batch_group_placements)


def clear_caches() -> None:
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """For `compute_all`, within a context; caches that machines have in common are empty afterwards."""
    yield monkeypatch
    clear_caches()


def compute_all(patch: pytest.MonkeyPatch) -> None:
    """Compute every stage, layer, microbatch, group and placement by itself."""
    clear_caches()
    shared = stage_costs._unscheduled_costs

    def each_stage(machine: Machine, workload: Workload, layout: Layout) -> stage_costs.UnscheduledCosts:
        costs = shared(machine, workload, layout)
        return costs._replace(equal_stages=tuple(range(len(layout.stages))))

    def where_they_are(places: GridPlaces, *stages: int) -> tuple[StagePlace, ...]:
        return tuple(StagePlace(places.filling, places.firsts[stage], *places.stages[stage]) for stage in stages)

    def every_row(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return rows, np.ones(len(rows), np.int64)

    patch.setattr(stage_costs, "_unscheduled_costs", each_stage)
    patch.setattr(ChunkCosts, "_different", property(lambda costs: tuple((split, 1) for split in costs.splits)))
    patch.setattr(Layout, "equal_microbatches", lambda layout, batch_size: tuple(range(layout.microbatches)))
    patch.setattr(GridPlaces, "of", where_they_are)
    patch.setattr(groups, "_different_model_groups", lambda place: place.batch)
    patch.setattr(groups, "distinct_neighbours", every_row)


def figures(prediction: Prediction) -> dict[str, Any]:
    return asdict(replace(prediction, layout=pipeline_of(prediction.layout)))


def assert_equal(found: Any, expected: Any) -> None:
    """Equal but for the rounding of times."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_equal(found[key], value)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)
    else:
        assert found == expected


@pytest.mark.parametrize(("workload", "ranks", "ranks_per_node"), [(EVEN, 12, 4), (UNEVEN, 24, 5)])
def test_predictions_and_bounds(workload, ranks, ranks_per_node, one_by_one) -> None:
    generator = np.random.default_rng(ranks)
    feasible = list(feasible_layouts(workload, cluster(40, ranks_per_node), ranks))
    chosen = [feasible[number] for number in generator.choice(len(feasible), 20, replace=False)]
    assert len({layout.method for layout in chosen}) > 4

    def everything() -> list[dict[str, Any]]:
        machine = cluster(40, ranks_per_node)  # whose caches are empty
        bounds = [StepBounds(workload, layout, machine) for layout in chosen]
        return [
            figures(predict(workload, layout, machine)) | {"rough": bound.rough, "tight": bound.tight}
            for layout, bound in zip(chosen, bounds, strict=True)
        ]

    clear_caches()
    once = everything()
    with one_by_one.context() as patch:
        compute_all(patch)
        each = everything()
    for found, expected in zip(once, each, strict=True):
        assert_equal(found, expected)


@pytest.mark.parametrize("ranks_per_node", [5, 99])
def test_simulated_steps_of_unequal_stages(ranks_per_node: int, one_by_one: pytest.MonkeyPatch) -> None:
    layout = Layout(
        ((3, 2), (3, 2), (4, 2), (2, 2), (3, 2)),
        (2, 2, 2, 2, 4),
        "alternating",
        method="1f1b",
        microbatches=8,
        shared_replicas=True,
        node_ranks=ranks_per_node,
    )
    clear_caches()
    once = simulate_layout(EVEN, layout, cluster(6, ranks_per_node))
    with one_by_one.context() as patch:
        compute_all(patch)
        each = simulate_layout(EVEN, layout, cluster(6, ranks_per_node))
    np.testing.assert_allclose(once.times.starts, each.times.starts, rtol=1e-12)
    np.testing.assert_allclose(once.times.ends, each.times.ends, rtol=1e-12)
    for found, expected in zip(once.stages, each.stages, strict=True):
        assert_equal(asdict(found), asdict(expected))


@pytest.mark.parametrize(
    ("ranks_per_node", "shape"),
    [(8, (2500, 10)), (10, (6250, 4)), (8, (5000, 5)), (12, (9, 3)), (5, (4, 7)), (10, (25, 1000))],
)
def test_groups_of_a_hundred_thousand_ranks(ranks_per_node: int, shape: tuple[int, int]) -> None:
    """Against the nodes of all ranks, one after another, as the trainer places them; and of few ranks."""
    ranks = 4 * shape[0] * shape[1]
    machine = cluster(-(-ranks // ranks_per_node), ranks_per_node)
    nodes = np.array(place_ranks((np.arange(ranks) // ranks_per_node).tolist(), shape[1])) // ranks_per_node
    stages = nodes.reshape(4, *shape)
    found = Groups(Layout((shape,) * 4, (1,) * 4), machine)
    for stage, grid in enumerate(stages):
        for axis, rows in (("batch", grid.T), ("model", grid)):
            crossings = Crossings(rows)
            seconds = machine.collective_seconds("allreduce", 40_000, rows.shape[1], crossings=crossings)
            assert getattr(found, axis)(stage).collective("allreduce", 40_000).seconds == pytest.approx(
                seconds, rel=1e-12
            )
    for stage in range(3):
        sender, receiver = stages[stage].ravel(), stages[stage + 1].ravel()
        crossing = sender != receiver
        leaving, coming = np.bincount(sender[crossing]), np.bincount(receiver[crossing])
        assert found.flows(stage, stage + 1) == max(leaving.max(initial=0), coming.max(initial=0))
