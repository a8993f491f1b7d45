"""Buffers of a stage: their published numbers, and no overlapping lifetimes in one buffer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from hybridnn.pipeline.schedules.instructions import ALL_MICROBATCHES
from hybridnn.pipeline.schedules.methods import METHODS, forward_only, make_schedule
from hybridnn.pipeline.schedules.program import MemoryPlan, plan_memory
from hybridnn.pipeline.schedules.schedule import Schedule
from reference.schedules import forms, small

STAGES = (1, 2, 3, 4, 6)


def plans(schedule: Schedule) -> list[MemoryPlan]:
    return [plan_memory(schedule, stage) for stage in range(schedule.stages)]


@pytest.mark.parametrize("m", [1, 2, 3, 7, 12])
def test_live_activations_of_exact_methods(m: int) -> None:
    """All m at every stage with gpipe, min(K - k, m) with 1f1b, at most K everywhere with zb-h1."""
    for stages in STAGES:
        found = {
            method: [
                plan.peak_live_activations
                for plan in plans(make_schedule(method, stages=stages, minibatches=2, microbatches=m))
            ]
            for method in ("gpipe", "1f1b", "zb-h1")
        }
        assert found["gpipe"] == [m] * stages
        assert found["1f1b"] == [min(stages - k, m) for k in range(stages)]
        assert max(found["zb-h1"]) <= stages


@pytest.mark.parametrize("method", ["sequential", "ddg", "pipedream", "fr"])
def test_memory_of_kang_table_1(method: str) -> None:
    """1 minibatch; K - k + 1 at device k, from 1, with ddg and pipedream; only the inputs with fr."""
    for stages, minibatches in product(STAGES, (1, 2, 3, 11)):
        stored = [min(stages - k, minibatches) for k in range(stages)]
        found = plans(make_schedule(method, stages=stages, minibatches=minibatches))
        activations = [plan.peak_live_activations for plan in found]
        inputs = [plan.peak_live_inputs for plan in found]
        versions = [plan.peak_weight_versions for plan in found]
        assert activations == ([1] * stages if method in ("sequential", "fr") else stored)
        assert inputs == ([1] * stages if method == "sequential" else stored)
        if method in ("sequential", "fr"):
            assert versions == [1] * stages
        elif minibatches >= 2 * stages - 1:  # long enough for the versions to differ: K - k
            assert versions == [stages - k for k in range(stages)]
        else:
            assert all(count <= stages - k for k, count in enumerate(versions))


def test_merged_weight_gradients_keep_everything() -> None:
    """Activations wait for the product over all microbatches, but their buffers are free after the input gradient."""
    found = plans(make_schedule("1f1b", stages=3, minibatches=2, microbatches=5, weight_grad="merged"))
    assert [plan.peak_live_activations for plan in found] == [5, 5, 5]
    assert [plan.activations for plan in found] == [(3,), (2,), (1,)]


def test_position_of_the_peak() -> None:
    """1f1b, K = 3, stage 1, M = 4: the second forward pass; pipedream, stage 0: the update that makes version 2."""
    schedule = make_schedule("1f1b", stages=3, minibatches=1, microbatches=4)
    assert str(schedule.orders[1][plan_memory(schedule, 1).peak_activations_at]) == "forward 0.1"
    schedule = make_schedule("pipedream", stages=3, minibatches=9)
    assert str(schedule.orders[0][plan_memory(schedule, 0).peak_versions_at]) == "update 1"


def schedules_of(method: str) -> Iterator[Schedule]:
    """Schedules of a method of several sizes, or evaluations."""
    if method == "evaluation":
        yield from (forward_only(3, minibatches, chunks) for minibatches, chunks in product((1, 5), (1, 2)))
        return
    for stages, minibatches, form in product((1, 2, 4), (1, 3, 6), list(forms(method))):
        yield small(method, stages, minibatches, 3, **form)


@pytest.mark.parametrize("method", [*METHODS, "evaluation"])
def test_buffers_hold_the_data_that_are_read(method: str) -> None:
    """Each read of a buffer returns the data that were written for its microbatch."""
    for schedule, stage in ((one, stage) for one in schedules_of(method) for stage in range(one.stages)):
        plan = plan_memory(schedule, stage)
        inputs: dict[tuple[int, int], Any] = {}
        activations: dict[tuple[int, int], Any] = {}
        last_pass: dict[Any, int] = {}
        splits = {i.minibatch for i in schedule.orders[stage] if i.microbatch == ALL_MICROBATCHES}
        for i in schedule.orders[stage]:
            part, c = (i.minibatch, i.microbatch, i.chunk), i.chunk
            if i.name in ("load", "forward", "recompute"):
                slot = plan.input_slots[part]
                assert slot < plan.inputs[c]
                loaded = i.name == "load" or (i.name == "forward" and not schedule.is_first(stage, c))
                if loaded:
                    inputs[c, slot] = part
                assert inputs[c, slot] == part
            if i.name in ("forward", "recompute"):
                last_pass[part] = plan.activation_slots[i]
                assert last_pass[part] < plan.activations[c]
                activations[c, last_pass[part]] = part
            own_weights = i.name == "weight gradient" and i.minibatch not in splits
            if i.name in ("backward", "input gradient") or own_weights:
                assert inputs[c, plan.input_slots[part]] == part
                assert activations[c, last_pass[part]] == part


@pytest.mark.parametrize("method", [*METHODS, "evaluation"])
def test_last_readers(method: str) -> None:
    """A version that is read after its update is kept exactly until its last reader, counted by brute force."""
    for schedule, stage in ((one, stage) for one in schedules_of(method) for stage in range(one.stages)):
        plan = plan_memory(schedule, stage)
        order = schedule.orders[stage]
        reads = [
            (position, read.version)
            for position, i in enumerate(order)
            if (read := schedule.weights_read(stage, i)) is not None
        ]
        updates = [position for position, i in enumerate(order) if i.name == "update"]
        late = {v: position for position, v in reads if v < len(updates) and position > updates[v]}
        assert plan.last_readers == late
        stashed = [sum(updates[v] <= position <= last for v, last in late.items()) for position in range(len(order))]
        assert plan.peak_weight_versions == 1 + max(stashed)
