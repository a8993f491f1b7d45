"""Formulas of pipelines against schedules that are simulated in unit time, and the numbers of the papers."""

from __future__ import annotations

import pytest

from hybridnn.pipeline.checks.simulated_schedule import Durations, Timeline, simulate
from hybridnn.pipeline.schedules.instructions import COMPUTATIONS
from hybridnn.pipeline.schedules.methods import make_schedule
from hybridnn_papers.pipeline_formulas import (
    KANG_METHODS,
    forward_slots,
    idle_slots,
    minibatch_time,
    stored_states,
    utilisation,
)


def timeline(method: str, stages: int, minibatches: int, microbatches: int = 1, **durations: float) -> Timeline:
    size = {"stages": stages, "minibatches": minibatches, "microbatches": microbatches}
    schedule = make_schedule(method, **size, barriers=method in ("ddg", "fr"))
    return simulate(schedule, Durations(**durations))


@pytest.mark.parametrize("method", KANG_METHODS)
@pytest.mark.parametrize(("stages", "forward", "backward"), [(2, 1.0, 1.0), (3, 4.0, 8.0), (7, 3.0, 1.5)])
def test_a_further_minibatch_takes_the_time_of_table_1(
    method: str, stages: int, forward: float, backward: float
) -> None:
    passes = {"forward": forward / stages, "backward": backward / stages, "weight": 0.0}
    first, second = (timeline(method, stages, count * stages, **passes).makespan for count in (4, 6))
    assert (second - first) / (2 * stages) == pytest.approx(minibatch_time(method, stages, forward, backward))


@pytest.mark.parametrize("method", KANG_METHODS)
@pytest.mark.parametrize("stages", [2, 4, 5])
def test_devices_store_what_their_schedule_needs(method: str, stages: int) -> None:
    plans = timeline(method, stages, 4 * stages).plans
    for device, plan in enumerate(plans, 1):
        peaks = (plan.peak_weight_versions, plan.peak_live_activations, plan.peak_live_inputs)
        assert stored_states(method, device, stages) == peaks


def step_with_blocking_receives(method: str, stages: int) -> float:
    """Time of a minibatch in the middle of Tables 3 and 4 as printed: T_F = 1 and T_B = 2 of a device, no barriers."""
    lists = make_schedule(method, stages=stages, minibatches=8 * stages).orders
    durations = {"forward": 1, "recompute": 1, "backward": 2}
    clocks, places, sent, ends = [0] * stages, [0] * stages, {}, {}
    while any(place < len(order) for place, order in zip(places, lists, strict=True)):
        for stage, order in enumerate(lists):
            while places[stage] < len(order):
                item = order[places[stage]]
                kind, _, what = item.name.partition(" ")
                if kind == "receive":
                    sender = stage + (1 if what == "gradients" else -1)
                    if (sender, what, item.minibatch) not in sent:
                        break
                    clocks[stage] = max(clocks[stage], sent[sender, what, item.minibatch])
                clocks[stage] += durations.get(item.name, 0)
                if kind == "send":
                    sent[stage, what, item.minibatch] = clocks[stage]
                ends[stage, item.name, item.minibatch] = clocks[stage]
                places[stage] += 1
    return (ends[0, "backward", 6 * stages] - ends[0, "backward", 4 * stages]) / (2 * stages)


@pytest.mark.parametrize(("method", "steps"), [("ddg", (4, 4, 4, 4)), ("fr", (4, 5, 5, 5))])
def test_tables_3_and_4_as_printed_do_not_take_the_time_of_table_1(method: str, steps: tuple[int, ...]) -> None:
    assert tuple(step_with_blocking_receives(method, stages) for stages in (2, 3, 4, 11)) == steps
    assert [minibatch_time(method, K, K, 2 * K, formula="paper") for K in (2, 3, 4, 11)] == [4, 5, 6, 13]


def test_without_barriers_ddg_computes_in_the_order_of_pipedream() -> None:
    for stages in (1, 2, 3, 7):
        kept = [
            [[item for item in order if isinstance(item, COMPUTATIONS)] for order in made.orders]
            for made in (
                make_schedule("ddg", stages=stages, minibatches=9),
                make_schedule("pipedream", stages=stages, minibatches=9),
            )
        ]
        assert kept[0] == kept[1]


def test_table_1_as_printed() -> None:
    times = {method: minibatch_time(method, 4, 4.0, 8.0, formula="paper") for method in KANG_METHODS}
    assert times == {"sequential": 12, "ddg": 6, "fr": 6, "pipedream": 3}
    assert minibatch_time("fr", 4, 4.0, 8.0) == 7
    assert minibatch_time("fr", 1, 4.0, 8.0) == 12  # one device recomputes nothing
    assert [stored_states("ddg", device, 4).weights for device in (1, 2, 3, 4)] == [4, 3, 2, 1]


@pytest.mark.parametrize(("stages", "inputs"), [(1, 1), (3, 1), (3, 3), (10, 1), (4, 9)])
def test_slots_are_those_of_a_schedule(stages: int, inputs: int) -> None:
    if stages > 1:
        drawn = timeline("gpipe", stages, 1, inputs, forward=1.0, backward=1.0, weight=0.0)
        assert drawn.makespan == 2 * forward_slots(stages, inputs)
        assert drawn.makespan - drawn.busy[0] == idle_slots(stages, inputs)
        assert drawn.bubble_fraction == pytest.approx(1 - utilisation(stages, inputs))
    assert forward_slots(stages, inputs, pipelined=False) == stages * inputs


def test_numbers_of_the_chapter() -> None:
    assert (forward_slots(3, 3, pipelined=False), forward_slots(3, 3)) == (9, 5)
    assert [idle_slots(gpus) for gpus in (1, 3, 10)] == [0, 4, 18]
    assert [utilisation(gpus) for gpus in (1, 10, 100)] == [1, 0.1, 0.01]
