"""Random schedules that the linter accepts, and that no method defines, train what one process trains."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.pipeline.checks.lint import ScheduleError, lint
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.instructions import Backward, InputGradient, Instruction, WeightGradient
from hybridnn.pipeline.schedules.methods import forward_only, make_schedule
from hybridnn.pipeline.schedules.schedule import Schedule
from reference.ranks import replace_on_this_rank

MICROBATCHES = 4


def accepted(schedule: Schedule) -> bool:
    try:
        lint(schedule)
    except ScheduleError:
        return False
    return True


def with_split_passes(order: list[Instruction], choice: random.Random) -> list[Instruction]:
    """Some backward passes in two parts, the second anywhere later in front of the reduction."""
    result: list[Instruction] = []
    later: list[Instruction] = []
    for item in order:
        if isinstance(item, Backward) and choice.random() < 0.5:
            result.append(InputGradient(item.minibatch, item.microbatch))
            later.append(WeightGradient(item.minibatch, item.microbatch))
        else:
            result.append(item)
    for item in later:
        result.insert(choice.randrange(len(result) - 1), item)
    return result


def disturbed(schedule: Schedule, seed: int) -> Schedule:
    """A schedule that the linter accepts, many random moves away."""
    choice = random.Random(seed)
    schedule = replace(schedule, activation_bound=(MICROBATCHES,) * schedule.stages)
    orders = [list(order) for order in schedule.orders]
    for _ in range(50):  # until the parts of the passes stand in a possible order
        split = tuple(tuple(with_split_passes(order, choice)) for order in orders)
        if accepted(replace(schedule, orders=split)):
            schedule = replace(schedule, orders=split)
            break
    for _ in range(60):
        stage = choice.randrange(schedule.stages)
        order = list(schedule.orders[stage])
        order.insert(choice.randrange(len(order)), order.pop(choice.randrange(len(order))))
        orders = [*schedule.orders]
        orders[stage] = tuple(order)
        changed = replace(schedule, orders=tuple(orders))
        if accepted(changed):
            schedule = changed
    return schedule


@pytest.mark.in_process(ranks=[2, 3])
@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 32), marks=pytest.mark.slow)])
def test_accepted_schedules_train_as_one_process(
    comm: MPI.Intracomm, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = np.random.default_rng(0)
    x, y = numbers.standard_normal((22, 5)), numbers.standard_normal((22, 3))

    def trained(grid: ProcessGrid, **options: Any) -> dict[str, np.ndarray]:
        model = MLP([5, 6, 7, 4, 3], "tanh")
        trainer = Trainer(model, SGD(0.1), grid=grid, batch_size=9, dtype="float64", **options)
        trainer.fit(x, y, epochs=1)
        return trainer.weights()

    # Every rank trains the whole network alone, without a pipeline, for comparison.
    alone = trained(ProcessGrid(comm.Split(comm.rank)))
    grid = ProcessGrid(comm, pipeline=comm.size, batch=1)
    seen, schedule, forward = set(), None, forward_only(comm.size, 2 * comm.size)
    for name, new in (("schedule", lambda *_, **__: schedule), ("largest_schedules", lambda _: (schedule, forward))):
        replace_on_this_rank(monkeypatch, Layout, name, new)
    for seed in seeds:
        method = ("gpipe", "1f1b")[seed % 2]
        made = make_schedule(method, stages=comm.size, minibatches=1, microbatches=MICROBATCHES)
        schedule = disturbed(made, seed)
        seen.add(schedule.orders)
        weights = trained(grid, method=method, microbatches=MICROBATCHES, weight_grad="per-microbatch")
        for name, array in weights.items():
            np.testing.assert_allclose(array, alone[name], rtol=1e-10, atol=1e-13, err_msg=f"seed {seed}: {name}")
    assert len(seen) > 0.8 * len(seeds)
