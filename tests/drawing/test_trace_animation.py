"""A measured epoch that went as planned is shown as the plan; of others only what was measured is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from hybridnn.comm.recorder import Event
from hybridnn.drawing.animation import Animation, Stored
from hybridnn.drawing.timelines import schedule
from hybridnn.drawing.trace_picture import animate_epoch, draw_epoch
from hybridnn.pipeline.checks.simulated_schedule import TimedInstruction, Timeline
from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    InputGradient,
    ReceiveActivations,
    ReceiveGradients,
    Recompute,
    SendActivations,
    SendGradients,
    Update,
    WeightGradient,
)
from hybridnn.runs.trace_file import Epoch
from reference.traces import communication, compute, make_epoch

COMPUTED = (Forward, Recompute, Backward, InputGradient, WeightGradient, Update)
SENT, RECEIVED = (SendActivations, SendGradients), (ReceiveActivations, ReceiveGradients)
SECOND = 1.0 / 1000  # of the plan: a millisecond, the unit of drawings of epochs


def events_of(items: tuple[TimedInstruction, ...], earlier: int = 0) -> list[Event]:
    """What a stage records that computes at the times of a plan, after so many minibatches of earlier epochs."""
    found = []
    for item in items:
        about = item.instruction.of_minibatch(item.instruction.minibatch + earlier)
        start, end = item.start * SECOND, item.end * SECOND
        if isinstance(about, COMPUTED):
            found.append(compute(about.name, start, end, about))
        elif isinstance(about, SENT):
            found.append(communication("send", start, start, about, "pipeline"))
        elif isinstance(about, RECEIVED):
            found.append(communication("receive.wait", start, end, about, "pipeline"))
    return sorted(found, key=lambda event: event.start)


def recorded(timeline: Timeline, earlier: int = 0) -> Epoch:
    lanes = [events_of(items, earlier) for items in timeline.stages]
    spans = [(0.0, timeline.makespan * SECOND)] * len(lanes)
    merges = any(event.about == WeightGradient(0, -1) for lane in lanes for event in lane)
    return make_epoch([(1, 1)] * len(lanes), lanes, spans, method=timeline.schedule.method, merges=merges)


def animated(epoch: Epoch) -> Animation:
    return animate_epoch(epoch, draw_epoch(epoch, epoch.start, epoch.stop, ""), epoch.start)


def reads(animation: Animation) -> list[list[tuple[str, str]]]:
    """Kind and version of the passes of every stage."""
    return [
        [(box.kind, box.version) for box in row.boxes if box.kind not in ("update", "send", "wait")]
        for row in animation.drawing.rows
    ]


def times(items: Iterable[Stored]) -> list[float]:
    """Starts and ends."""
    return [time for item in items for time in (item.start, item.end)]


@pytest.mark.parametrize(
    ("method", "sizes"),
    [
        ("spectrain", {"message": 0.25}),
        ("fr", {}),
        ("gpipe", {"minibatches": 2, "microbatches": 4, "weight_grad": "merged"}),
        ("zb-h1", {"minibatches": 2, "microbatches": 4}),
        ("interleaved", {"minibatches": 2, "microbatches": 6}),
    ],
)
def test_a_run_that_went_as_planned_is_shown_as_the_plan(method: str, sizes: dict[str, float]) -> None:
    made = schedule(method, stages=3, **sizes)  # type: ignore[arg-type]
    planned, measured = made.animation, animated(recorded(made.timeline))
    assert reads(measured) == reads(planned)
    for found, expected in zip(measured.stages, planned.stages, strict=True):
        for items, wanted in ((found.weights, expected.weights), (found.activations, expected.activations)):
            assert times(items) == pytest.approx(times(wanted))
        assert [item.label for item in found.weights] == [item.label for item in expected.weights]
    assert len(measured.messages) == len(planned.messages)
    for sent, message in zip(measured.messages, planned.messages, strict=True):
        assert (sent.sender, sent.receiver, sent.gradients) == (message.sender, message.receiver, message.gradients)
        assert (sent.start, sent.arrival, sent.use) == pytest.approx((message.start, message.arrival, message.use))


def test_a_later_epoch_has_the_numbers_of_its_minibatches_and_versions_of_its_own() -> None:
    made = schedule("pipedream", stages=3, minibatches=6)
    measured = animated(recorded(made.timeline, earlier=12))
    assert reads(measured) == reads(made.animation)
    assert [box.label for box in measured.drawing.rows[2].boxes if box.kind == "forward"] == list(
        map(str, range(13, 19))
    )
    assert measured.drawing.versions == "v2: weights after 2 updates of the epoch"


def test_another_order_than_planned_shows_no_versions() -> None:
    epoch = recorded(schedule("pipedream", stages=2, minibatches=4).timeline)
    lane = epoch.ranks[0]
    swapped = replace(lane, events=(lane.events[2], *lane.events[:2], *lane.events[3:]))
    found = animated(replace(epoch, ranks=(swapped, epoch.ranks[1])))
    assert found.stages[0].weights == found.stages[0].activations == ()
    assert found.stages[1].weights != ()
    assert {box.version for box in found.drawing.rows[0].boxes} == {""}


def test_a_stage_of_several_ranks_is_shown_as_its_first_one_does_it() -> None:
    made = schedule("1f1b", stages=2, minibatches=1, microbatches=4)
    lanes = [events_of(items) for items in made.timeline.stages for _ in range(2)]
    epoch = make_epoch([(2, 1), (2, 1)], lanes, [(0.0, made.makespan * SECOND)] * 4, method="1f1b")
    found = animated(epoch)
    assert [stage.row for stage in found.stages] == [0, 2]
    assert len(found.drawing.rows) == 4
    assert len(found.messages) == 2 * 4
