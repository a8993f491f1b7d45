"""The benchmark of planning and simulating large machines, on small ones; and slow tests of the large ones."""

from __future__ import annotations

from multiprocessing import get_context
from types import MappingProxyType

import pytest

from benchmarks import planning_scale
from hybridnn import MLP
from hybridnn.cost.planning.layouts import feasible_layouts
from hybridnn.cost.planning.plan import plan
from hybridnn.cost.prediction.workload import Workload
from mpi_runner.slowness import deadline

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


SECONDS = {name: 5 if "1,024 ranks" in name else 60 if "100,000 ranks" in name else 10 for name in planning_scale.TASKS}
"""Seconds that each task may take on an idle machine."""

MOST_BYTES = 4 * 10**9


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", planning_scale.TASKS)
def test_large_machines_take_little_time_and_memory(name: str) -> None:
    """In a process of its own. The deadline is ten times as long, because a test must pass on a busy machine."""
    with get_context("spawn").Pool(1) as pool:
        task = pool.apply_async(planning_scale.measure, (name,))
        _, nbytes, result = task.get(deadline(10 * SECONDS[name]))
    assert nbytes < MOST_BYTES
    assert "best exact: " in result or " s per step, " in result
