from __future__ import annotations

import pytest

from hybridnn.comm.recorder import Event
from hybridnn.pipeline.execution.routes import StagePosition
from hybridnn.pipeline.schedules.instructions import Backward, Forward, Instruction, SendGradients, Update
from hybridnn.runs.trace.recorded import RankTrace, Trace, count_updates, number_minibatches, places_of
from reference.traces import communication, compute


def phase(epoch: int, start: float, stop: float) -> Event:
    return Event("phase", "training", "", start, stop, 0, epoch)


def runs(count: int, start: float) -> list[Event]:
    """What an exact method records of minibatches of two microbatches, one run of its schedule each; ten per run."""
    events: list[Event] = []
    for first in (start + 10 * run for run in range(count)):
        events += [
            compute("forward", first, first + 1, Forward(0, 0)),
            compute("forward", first + 1, first + 2, Forward(0, 1)),
            compute("backward", first + 2, first + 4, Backward(0, 1)),
            communication("send", first + 4, first + 5, SendGradients(0, 1)),
            communication("broadcast", first + 6, first + 7),
            compute("update", first + 6, first + 8, Update(0)),
            communication("send.wait", first + 8, first + 9, SendGradients(0, 1)),
        ]
    return events


def numbers(events: list[Event]) -> list[int]:
    return [event.about.minibatch for event in events if isinstance(event.about, Instruction)]


def test_minibatches_of_exact_methods_are_counted_through() -> None:
    evaluation = [compute("forward", 31, 32, Forward(0)), compute("forward", 32, 33, Forward(1))]
    events = [*runs(3, 0), phase(1, 0, 30), *evaluation, *runs(2, 40), phase(2, 40, 60)]
    updates = count_updates(events)
    assert updates == {1: 3, 2: 2}
    numbered = list(number_minibatches(events, updates))
    assert numbers(numbered) == [0] * 6 + [1] * 6 + [2] * 6 + [0, 1] + [0] * 6 + [1] * 6
    assert [event._replace(about=None) for event in numbered] == [event._replace(about=None) for event in events]


def test_ranks_that_dropped_events_count_as_the_others() -> None:
    kept = [*runs(3, 0), phase(1, 0, 30)][10:]
    assert count_updates(kept) == {1: 2}
    assert numbers(list(number_minibatches(kept, {1: 3}))) == [1] * 3 + [2] * 6


def test_numbers_of_one_long_run_stay() -> None:
    events = [
        compute("forward", 0, 1, Forward(0)),
        compute("forward", 1, 2, Forward(1)),
        compute("backward", 2, 3, Backward(0)),
        communication("send", 3, 4, SendGradients(0)),
        compute("update", 4, 5, Update(0)),
        compute("forward", 5, 6, Forward(2)),
        communication("send.wait", 6, 7, SendGradients(0)),
        phase(1, 0, 10),
    ]
    assert list(number_minibatches(events, count_updates(events))) == events
    # The send, and so its number, may be what was dropped.
    assert list(number_minibatches(events[4:], {1: 1})) == events[4:]
    assert list(number_minibatches(events[5:], {1: 1})) == events[5:]


def trace(complete_since: float) -> Trace:
    lanes = []
    for late in (0.0, 0.5):
        events = [phase(n, 20 * n + late, 20 * n + 10 + late) for n in (1, 2)]
        events += [
            compute("forward", 20 * n + step, 20 * n + step + 1, Forward(step)) for n in (1, 2) for step in range(1, 9)
        ]
        events.append(compute("forward", 13, 14, Forward(77)))  # between the epochs
        lanes.append(RankTrace(StagePosition(len(lanes), 0, 0), tuple(sorted(events, key=lambda event: event.start))))
    return Trace("pipedream", ((1, 1), (1, 1)), tuple(lanes), complete_since)


def test_epochs_hold_what_lies_in_their_phases() -> None:
    assert trace(0).epochs == (1, 2)
    epoch = trace(0).epoch(2)
    assert (epoch.number, epoch.method, epoch.stages) == (2, "pipedream", ((1, 1), (1, 1)))
    assert epoch.spans == ((40, 50), (40.5, 50.5))
    assert (epoch.start, epoch.stop) == (40, 50.5)
    assert (epoch.minibatches, epoch.microbatches, epoch.chunks) == (range(1, 9), 1, 1)
    assert [len(lane.events) for lane in epoch.ranks] == [8, 8]
    assert epoch.is_complete


@pytest.mark.parametrize(
    ("complete_since", "epochs"), [(20, (1, 2)), (29.9, (1, 2)), (30, (2,)), (49.9, (2,)), (50, ())]
)
def test_epochs_that_a_rank_has_dropped_are_not_there(complete_since: float, epochs: tuple[int, ...]) -> None:
    # The first rank ends epoch 1 at 30 and epoch 2 at 50.
    assert trace(complete_since).epochs == epochs


def test_the_end_of_an_epoch_begins_where_no_rank_has_dropped_anything() -> None:
    epoch = trace(43.5).epoch(2)
    assert not epoch.is_complete
    assert epoch.spans == ((43.5, 50), (43.5, 50.5))
    assert epoch.minibatches == range(4, 9)


def test_places_follow_the_process_grid() -> None:
    assert places_of([(2, 1), (1, 2)]) == (
        StagePosition(0, 0, 0),
        StagePosition(0, 1, 0),
        StagePosition(1, 0, 0),
        StagePosition(1, 0, 1),
    )
