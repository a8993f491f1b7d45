"""Pipelines: messages, partitions by measured times, refused settings, and schedules that the linter accepts."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, Adam, ProcessGrid, Trainer
from hybridnn.errors import HybridnnError, SettingError
from hybridnn.pipeline.checks.lint import ScheduleError, lint
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.partition import LayerSeconds
from hybridnn.pipeline.schedules.instructions import Backward, InputGradient, Instruction, WeightGradient
from hybridnn.pipeline.schedules.methods import METHODS, forward_only, make_schedule
from hybridnn.pipeline.schedules.placements import WAVES
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.training.engine import Engine
from reference.cases import assert_arrays_same
from reference.pipeline_cases import DEEP, MOMENTUM, PipelineCase, run_pipelined
from reference.pipelines import uniform
from reference.ranks import allgather_objects, replace_on_this_rank
from reference.training_list import methods


@pytest.mark.in_process(ranks=[3])
def test_nothing_large_is_sent_but_activations_and_their_gradients_between_stages(comm: MPI.Intracomm) -> None:
    # One number for each sample and output at a boundary, forward and backward: else stages would not be apart.
    minibatches = 4
    for it in (replace(it, case=replace(MOMENTUM, epochs=1)) for it in methods(comm.size).values()):
        ends = np.cumsum(uniform(8, comm.size * it.chunks))[:-1]
        if METHODS[it.method].placement is WAVES:  # where a wave turns, both chunks are on one stage
            ends = [end for number, end in enumerate(ends, 1) if number % comm.size]
        expected = 2 * 8 * MOMENTUM.samples * sum(DEEP[end] for end in ends)
        for record in run_pipelined(it, ProcessGrid(comm, pipeline=comm.size)).history.epochs:
            beside = record.bytes_sent - expected
            assert 0 <= beside <= 64 * minibatches, f"{it}: {record.bytes_sent} bytes, {expected} expected"


@pytest.mark.in_process(ranks=[2])
def test_a_stage_that_updates_alone_waits_for_no_other(comm, monkeypatch) -> None:
    """The loss of each of four minibatches is fetched before its update, or all of them at the end of the epoch."""
    fetched, name, broadcast = [], "broadcast_from_last_stage", Engine.broadcast_from_last_stage
    replace_on_this_rank(monkeypatch, Engine, name, lambda *given: (fetched.append(len(given[1])), broadcast(*given)))
    for method, expected in (("zb-h1", [1] * 8), ("zb-h2", [4, 4]), ("zb-v", [4, 4])):
        fetched.clear()
        it = PipelineCase(method, MOMENTUM, 4, METHODS[method].chunks[0])
        run_pipelined(it, ProcessGrid(comm, pipeline=2), log_every=9)
        assert fetched == expected


def wrong_settings(stages: int) -> dict[str, tuple[dict[str, Any], str]]:
    """What is refused, with the options, and a pattern of what the message says."""
    few = MLP((*DEEP[: stages - 1], 3))
    return {
        "more stages than layers": ({"model": few}, rf"{stages}\b.*\b{stages - 1}|{stages - 1}\b.*\b{stages}"),
        "more chunks than layers": ({"method": "interleaved", "chunks": 5, "microbatches": stages}, "chunks|layers"),
        "no momentum": ({"method": "spectrain", "optimizer": SGD(momentum=0.0)}, "momentum"),
        "sent minibatches": ({"method": "gpipe", "distribution": "scatter"}, "distribution.*scatter"),
        "barriers of pipedream": ({"method": "pipedream", "barriers": True}, "barriers.*pipedream.*only with ddg, fr"),
        "no drain": ({"method": "fr", "drain_every": 0}, r"training\.drain_every.*0"),
    }


@pytest.mark.in_process(ranks=[3])
@pytest.mark.parametrize("name", wrong_settings(2))
def test_wrong_settings_are_refused_in_one_line_on_every_rank(comm: MPI.Intracomm, name: str) -> None:
    options, pattern = wrong_settings(comm.size)[name]
    given: dict[str, Any] = {"model": MLP(DEEP), "optimizer": Adam()} | options
    with pytest.raises(HybridnnError, match=pattern) as caught:
        Trainer(grid=ProcessGrid(comm, pipeline=comm.size), **given)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert len(set(allgather_objects(comm, str(caught.value)))) == 1


def test_one_stage_takes_exact_methods_alone() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 20, 3))

    def trained(**given: Any) -> dict[str, Any]:
        trainer = Trainer(MLP([3, 5, 3]), SGD(0.05), batch_size=5, dtype="float64", **given)
        trainer.fit(x, y, epochs=2)
        return trainer.weights()

    plain = trained()
    for name, method in METHODS.items():
        if method.exact:
            assert_arrays_same(trained(method=name), plain)
        else:
            with pytest.raises(
                SettingError, match=rf"^parallel.method = '{name}': needs a pipeline of at least 2 stages"
            ):
                trained(method=name)


@pytest.mark.in_process(ranks=[4])
def test_a_partition_by_times_gives_a_wide_stage_more_layers(comm, monkeypatch) -> None:
    def by_samples(model: MLP, samples: int, dtype: Any) -> tuple[LayerSeconds, ...]:
        """Equal layers whose time goes with the samples."""
        return tuple(LayerSeconds(samples, samples, samples) for _ in model.layers)

    monkeypatch.setattr("hybridnn.pipeline.partition.time_layers", by_samples)
    model = MLP([6] * 9)
    for stages, layers in (
        ([(3, 1), (1, 1)], (6, 2)),
        ([(1, 1), (3, 1)], (2, 6)),
        ([(1, 3), (1, 1)], (6, 2)),
        ([(2, 1), (2, 1)], (4, 4)),
    ):
        grid = ProcessGrid(comm, stages=stages)
        trainer = Trainer(model, grid=grid, batch_size=600, method="pipedream", partition="profile")
        assert trainer.layout.layers == layers


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
            result.append(InputGradient(*item.part))
            later.append(WeightGradient(*item.part))
        else:
            result.append(item)
    for item in later:
        result.insert(choice.randrange(len(result) - 1), item)
    return result


def disturbed(schedule: Schedule, seed: int) -> Schedule:
    """A schedule that the linter accepts, many random moves away."""
    choice = random.Random(seed)
    schedule = replace(schedule, activation_bound=(MICROBATCHES * schedule.chunks,) * schedule.stages)
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
def test_accepted_schedules_train_as_one_process(comm, seeds, monkeypatch) -> None:
    numbers = np.random.default_rng(0)
    x, y = numbers.standard_normal((22, 5)), numbers.standard_normal((22, 3))

    def trained(grid: ProcessGrid, **options: Any) -> dict[str, np.ndarray]:
        model = MLP([5, 6, 7, 4, 6, 5, 3], "tanh")
        trainer = Trainer(model, SGD(0.1), grid=grid, batch_size=9, dtype="float64", **options)
        trainer.fit(x, y, epochs=1)
        return trainer.weights()

    # Every rank trains the whole network alone, without a pipeline, for comparison.
    alone = trained(ProcessGrid(comm.Split(comm.rank)))
    grid = ProcessGrid(comm, pipeline=comm.size, batch=1)
    seen, schedule, forward = set(), None, None
    for name, new in (("schedule", lambda *_, **__: schedule), ("largest_schedules", lambda _: (schedule, forward))):
        replace_on_this_rank(monkeypatch, Layout, name, new)
    for seed in seeds:
        method = ("gpipe", "1f1b", "hanayo")[seed % 3]
        size = {"microbatches": MICROBATCHES, "chunks": METHODS[method].chunks[0]}
        made = make_schedule(method, stages=comm.size, minibatches=1, **size)
        forward = forward_only(comm.size, 2 * comm.size, made.chunks, made.placement)
        schedule = disturbed(made, seed)
        seen.add(schedule.orders)
        weights = trained(grid, method=method, **size, weight_grad="per-microbatch")
        for name, array in weights.items():
            np.testing.assert_allclose(array, alone[name], rtol=1e-10, atol=1e-13, err_msg=f"seed {seed}: {name}")
    assert len(seen) > 0.8 * len(seeds)
