"""The benchmark of planning and simulating large machines, on small ones."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from benchmarks import planning_scale
from hybridnn import MLP
from hybridnn.cost.planning.layouts import feasible_layouts
from hybridnn.cost.planning.plan import plan
from hybridnn.cost.prediction.workload import Workload

SMALL = Workload(MLP([16] * 4), samples=640, batch_size=64)


def test_a_task_states_its_time_its_memory_and_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {"plan 8 ranks": (planning_scale.plan_ranks, (SMALL, 2, 4))}
    monkeypatch.setattr(planning_scale, "TASKS", MappingProxyType(tasks))
    seconds, nbytes, result = planning_scale.measure("plan 8 ranks")
    machine = planning_scale.cluster(2, 4)
    layouts = list(feasible_layouts(SMALL, machine, 8))
    best = plan(SMALL, machine, 8).best_exact
    assert best is not None
    assert result == f"{len(layouts)} layouts; best exact: {best.layout.describe()}, {best.seconds_per_step:.4g} s"
    assert seconds > 0
    assert 10**7 < nbytes < 10**11


def test_tasks_ask_for_the_ranks_that_they_name() -> None:
    for name, (task, arguments) in planning_scale.TASKS.items():
        if task is planning_scale.plan_ranks:
            _, nodes, ranks_per_node = arguments
            assert isinstance(nodes, int)
            assert isinstance(ranks_per_node, int)
            assert f"plan {nodes * ranks_per_node:,} ranks on {nodes:,} nodes" in name
