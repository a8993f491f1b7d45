"""Epochs of a trace, and the breakdown of their time, against epochs made by hand and the definition of the parts."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hybridnn.comm.recorder import Event
from hybridnn.pipeline.execution.point_to_point import StagePosition
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    ReceiveActivations,
    ReceiveGradients,
    SendActivations,
    SendGradients,
    Update,
)
from hybridnn.runs.trace_breakdown import Breakdown, break_down, mean_of, sum_of
from hybridnn.runs.trace_file import RankTrace, Trace
from reference.traces import communication, compute, make_epoch, phase

TWO = [(1, 1), (1, 1)]


def parts(breakdown: Breakdown) -> tuple[float, ...]:
    """Computing, transfer, transfer-induced idle, imbalance-induced idle, other."""
    return tuple(breakdown.parts.values())


def broken_down(
    widths: list[tuple[int, int]], lists: Sequence[Sequence[Event]], stop: float
) -> list[tuple[float, ...]]:
    return [parts(item) for item in break_down(make_epoch(widths, lists, [(0, stop)] * len(lists)))]


def test_communication_within_a_computation_is_not_computing() -> None:
    # Two model ranks: the second comes to the all-gather late, and to the non-blocking all-reduce early.
    first = [
        compute("forward", 0, 10, Forward(0)),
        communication("allgather", 2, 6, axis="model"),
        compute("backward", 10, 20, Backward(0)),
        communication("allreduce", 11, 12, axis="model"),
        communication("allreduce.wait", 15, 19, axis="model"),
    ]
    second = [
        compute("forward", 0, 10, Forward(0)),
        communication("allgather", 5, 6, axis="model"),
        compute("backward", 10, 20, Backward(0)),
        communication("allreduce", 17, 18, axis="model"),
        communication("allreduce.wait", 18, 19, axis="model"),
    ]
    assert broken_down([(1, 2)], [first, second], 20) == [
        (20 - 4 - 1 - 4, 1 + 1 + 2, 0, 3 + 2, 0),
        (20 - 1 - 1 - 1, 3, 0, 0, 0),
    ]


def test_collectives_of_other_groups_do_not_count() -> None:
    # Two stages of two batch ranks, each with an all-reduce of its own; then one of all.
    def one_rank(begin: float, end: float, begin_all: float) -> list[Event]:
        return [communication("allreduce", begin, end, axis="batch"), communication("allreduce", begin_all, 10)]

    lists = [one_rank(0, 3, 4), one_rank(2, 3, 4), one_rank(0, 6, 7), one_rank(5, 6, 8)]
    found = broken_down([(2, 1), (2, 1)], lists, 10)
    assert [item[3] for item in found] == [2 + 4, 4, 5 + 1, 0]
    assert [item[1] for item in found] == [1 + 2, 1 + 2, 1 + 2, 1 + 2]


def test_broadcasts_do_not_wait_for_later_ranks() -> None:
    lists = [[communication("broadcast", *span)] for span in ((0, 2), (1, 3), (5, 6))]
    assert [item[3] for item in broken_down([(1, 1)] * 3, lists, 6)] == [1, 0, 0]


def test_a_message_of_several_senders_is_sent_with_its_last_part() -> None:
    wait = [communication("receive.wait", 0, 10, ReceiveActivations(3, 1))]
    sends = [[communication("send", time, time + 1, SendActivations(3, 1))] for time in (2, 6)]
    # Both ranks of the first stage send a part of the message of the second.
    assert broken_down([(2, 1), (1, 1)], [*sends, wait], 10)[2] == (0, 0, 4, 6, 0)
    # Stages of equal width: every rank receives from its counterpart alone.
    assert [item[2:4] for item in broken_down([(2, 1)] * 2, [*sends, wait, wait], 10)[2:]] == [(8, 2), (4, 6)]
    # One rank of a model group sends to several of a wider one.
    assert [item[2:4] for item in broken_down([(1, 2), (1, 3)], [*sends, wait, wait, wait], 10)[2:]] == [
        (8, 2),
        (4, 6),
        (8, 2),
    ]


def test_sends_after_the_end_of_a_wait_are_ignored() -> None:
    # The wait for the first rank's part ends before the second sends its own.
    waits = [communication("receive.wait", *span, ReceiveActivations(0)) for span in ((0, 5), (5, 10))]
    sends = [[communication("send", time, time + 1, SendActivations(0))] for time in (2, 8)]
    assert broken_down([(2, 1), (1, 1)], [*sends, waits], 10)[2] == (0, 0, 3 + 2, 2 + 3, 0)


def test_waits_for_unsent_messages_are_imbalance() -> None:
    receiver = communication("receive.wait", 0, 5, ReceiveActivations(3, 1))
    for other in (SendActivations(2, 1), SendActivations(3, 0), SendActivations(3, 1, 1), SendGradients(3, 1)):
        assert broken_down(TWO, [[communication("send", 1, 2, other)], [receiver]], 5)[1] == (0, 0, 0, 5, 0)


def test_messages_of_chunks() -> None:
    # Interleaved: the last stage's chunk 0 feeds chunk 1 of the first one, and gets its gradients back.
    first = [
        communication("receive.wait", 0, 6, ReceiveActivations(0, 0, 1)),
        communication("send", 7, 8, SendGradients(0, 0, 1)),
    ]
    last = [
        communication("send", 4, 5, SendActivations(0, 0, 0)),
        communication("receive.wait", 5, 10, ReceiveGradients(0, 0, 0)),
    ]
    assert broken_down(TWO, [first, last], 10) == [(0, 1, 2, 4, 3), (0, 1, 3, 2, 4)]
    # Of two stages with two chunks each, the first feeds chunk 0 of the second from both sides.
    sends = [communication("send", 1, 2, SendActivations(0, 0, 0)), communication("send", 7, 8, SendGradients(0, 0, 1))]
    waits = [
        communication("receive.wait", 0, 9, ReceiveActivations(0, 0, 0)),
        communication("receive.wait", 9, 10, ReceiveGradients(0, 0, 0)),
    ]
    assert broken_down(TWO, [sends, waits], 10)[1] == (0, 0, 8 + 1, 1, 0)


def test_time_outside_the_epoch_of_a_rank_is_imbalance() -> None:
    lists = [[compute("forward", 0, 10, Forward(0))], [compute("forward", 3, 7, Forward(0))]]
    found = break_down(make_epoch(TWO, lists, [(0, 10), (2, 8)]))
    assert [parts(item) for item in found] == [(10, 0, 0, 0, 0), (4, 0, 0, 4, 2)]
    # Of a part of the epoch.
    lists = [
        [compute("forward", 0, 4, Forward(0)), communication("receive.wait", 4, 9, ReceiveGradients(0))],
        [communication("send", 6, 7, SendGradients(0)), compute("update", 7, 9, Update(0))],
    ]
    epoch = make_epoch(TWO, lists, [(0, 10), (0, 8)])
    assert [parts(item) for item in break_down(epoch, 3, 7)] == [(1, 0, 1, 2, 0), (0, 1, 0, 0, 3)]
    assert [parts(item) for item in break_down(epoch, 6.5, 9.5)] == [(0, 0, 2.5, 0, 0.5), (1, 0.5, 0, 1.5, 0)]


def test_sums_and_means() -> None:
    items = [Breakdown(1, 2, 3, 4, 5), Breakdown(3, 2, 1, 0, 9)]
    assert sum_of(items) == Breakdown(4, 4, 4, 4, 14)
    assert mean_of(items) == Breakdown(2, 2, 2, 2, 7)
    assert items[0].span == 15


@st.composite
def rank_events(draw: st.DrawFn) -> tuple[list[Event], float]:
    """One rank's events at integer times, each with at most two nested ones, and the time of a send to it."""
    cuts = sorted(draw(st.sets(st.integers(0, 60), min_size=2, max_size=16)))
    names = st.sampled_from(["forward", "receive.wait", "send", "send.wait", "barrier", "allreduce"])
    events: list[Event] = []
    for start, stop in pairwise(cuts):
        name = draw(names)
        if draw(st.booleans()):
            continue
        if name == "forward":
            events.append(compute(name, start, stop, Forward(0)))
            inner = sorted(draw(st.sets(st.integers(start, stop), max_size=4)))
            nested = zip(inner[::2], inner[1::2], strict=False)
            events += [communication("barrier", begin, end) for begin, end in nested]
        else:
            events.append(communication(name, start, stop, ReceiveActivations(0)))
    return events, draw(st.integers(0, 60))


@given(rank_events(), st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted))
def test_parts_agree_with_the_definition_at_every_time(drawn: tuple[list[Event], float], own: list[int]) -> None:
    events, sent = drawn
    sender = [communication("send", sent, sent + 1, SendActivations(0))]
    epoch = make_epoch(TWO, [sender, events], [(0, 60), (own[0], own[1])])
    expected = dict.fromkeys(("computing", "transfer", "transfer_idle", "imbalance_idle", "other"), 0)
    for time in range(60):
        around = [event for event in events[::-1] if event.start <= time < event.stop]
        event = min(around, key=lambda event: event.stop - event.start, default=None)
        expected[part_of(event, time, sent, own)] += 1
    found = break_down(epoch)[1]
    assert found.parts == expected
    assert found.span == 60


def part_of(event: Event | None, time: int, sent: float, own: list[int]) -> str:
    """Part to which the time from `time` on belongs, by definition."""
    if not own[0] <= time < own[1]:
        return "imbalance_idle"
    if event is None:
        return "other"
    if event.name == "receive.wait":
        return "transfer_idle" if sent <= time else "imbalance_idle"
    return {
        "forward": "computing",
        "send": "transfer",
        "send.wait": "transfer_idle",
        "barrier": "imbalance_idle",
        "allreduce": "transfer",  # the other rank does not enter it
    }[event.name]


LAYOUT = Layout(((1, 1), (1, 1)), (1, 1), method="pipedream")


def trace(complete_since: float) -> Trace:
    lanes = []
    for late in (0.0, 0.5):
        events = [phase(n, 20 * n + late, 20 * n + 10 + late) for n in (1, 2)]
        events += [
            compute("forward", 20 * n + step, 20 * n + step + 1, Forward(step)) for n in (1, 2) for step in range(1, 9)
        ]
        events.append(compute("forward", 13, 14, Forward(77)))  # between the epochs
        lanes.append(RankTrace(StagePosition(len(lanes), 0, 0), tuple(sorted(events, key=lambda event: event.start))))
    return Trace(LAYOUT, tuple(lanes), complete_since)


def test_epochs_hold_what_lies_in_their_phases() -> None:
    assert trace(0).epochs == (1, 2)
    epoch = trace(0).epoch(2)
    assert (epoch.number, epoch.layout) == (2, LAYOUT)
    assert epoch.spans == ((40, 50), (40.5, 50.5))
    assert (epoch.start, epoch.stop) == (40, 50.5)
    assert epoch.minibatches == range(1, 9)
    assert [len(lane.events) for lane in epoch.ranks] == [8, 8]
    assert epoch.is_complete


def test_epochs_that_a_rank_has_dropped_are_not_there() -> None:
    # The first rank ends epoch 1 at 30 and epoch 2 at 50.
    for complete_since, epochs in ((20, (1, 2)), (29.9, (1, 2)), (30, (2,)), (49.9, (2,)), (50, ())):
        assert trace(complete_since).epochs == epochs


def test_the_end_of_an_epoch_begins_where_no_rank_has_dropped_anything() -> None:
    epoch = trace(43.5).epoch(2)
    assert not epoch.is_complete
    assert epoch.spans == ((43.5, 50), (43.5, 50.5))
    assert epoch.minibatches == range(4, 9)
