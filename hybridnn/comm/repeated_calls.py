"""Communication that a device repeats by itself: calls of a recorded step, noted at every replay as at the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from hybridnn.comm.calls import Call, CallRecord
from hybridnn.comm.recorder import Recorder

__all__ = ["CallsMade", "keep_calls", "repeat_calls"]

CallsMade = Sequence[tuple[CallRecord, int]]
"""Calls in their order, with the bytes that this rank sent."""


def keep_calls(recorder: Recorder, work: Callable[[], None]) -> CallsMade:
    """Do `work`, and return the calls that it began, which are noted as always."""
    kept: list[tuple[CallRecord, int]] = []
    recorder.kept = kept
    try:
        work()
    finally:
        recorder.kept = None
    return kept


def repeat_calls(recorder: Recorder, calls: CallsMade, work: Callable[[], None]) -> None:
    """Do `work`, which makes `calls` once more without this program, and note them.

    They count as any others, in the totals and in how far each group has come; `work` is done in the last of them. The
    time it takes to begin them is that of `work`, so they have none of their own.
    """
    for record, _ in calls:
        call = Call._make(record)._replace(start=perf_counter())
        if call.number:  # messages have none
            call.channel.entered += 1
            call = call._replace(number=call.channel.entered)
            call.channel.recent.append(call)
        recorder.now = call
    work()
    for (name, channel, *_, about), sent in calls:
        recorder.end_communication(name, channel.axis, perf_counter(), sent, 1, about)
