"""The recorder: bounded memory, right totals."""

from __future__ import annotations

from time import perf_counter

from hybridnn.comm.recorder import Recorder


def test_memory_is_bounded_and_totals_are_not() -> None:
    recorder = Recorder(capacity=10)
    for number in range(25):
        recorder.end_communication("allreduce", "batch", perf_counter(), number)
    assert len(recorder.events) == 10
    assert [event.nbytes for event in recorder.events] == list(range(15, 25))
    assert recorder.totals.bytes_sent == sum(range(25))
    assert recorder.totals.messages == 25


def test_compute_is_recorded_but_not_counted_as_communication() -> None:
    recorder = Recorder()
    start = perf_counter()
    recorder.end_compute("forward", start)
    (event,) = recorder.events
    assert (event.kind, event.name, event.start) == ("compute", "forward", start)
    assert event.stop >= start
    assert recorder.totals.communication_seconds == 0


def test_totals_of_a_span_are_a_difference() -> None:
    recorder = Recorder()
    recorder.end_communication("send", "model", perf_counter(), 100)
    before = recorder.totals
    recorder.end_communication("send", "model", perf_counter(), 11)
    span = recorder.totals - before
    assert (span.bytes_sent, span.messages) == (11, 1)
    assert 0 <= span.communication_seconds <= recorder.totals.communication_seconds
