"""Epochs in a trace: their events, incomplete epochs, and the places of ranks in the grid."""

from __future__ import annotations

from hybridnn.pipeline.execution.point_to_point import StagePosition
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.instructions import Forward
from hybridnn.runs.trace_file import RankTrace, Trace
from reference.traces import compute, phase

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
