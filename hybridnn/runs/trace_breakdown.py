"""Breakdown of the time of a measured epoch, rank by rank: computing, transfer, and idle time by its cause.

The parts are those of Chen et al. 2018 (SpecTrain), section 4.3 and Figure 10. Idle time is transfer-induced while the
data are in flight, and imbalance-induced while they are still being computed. The time at which the sender began to
send, which is in the trace, separates the two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from math import inf

from hybridnn.comm.recorder import Event
from hybridnn.pipeline.checks.simulated_schedule import split_idle
from hybridnn.pipeline.execution.point_to_point import StagePosition
from hybridnn.pipeline.schedules.instructions import Instruction, ReceiveGradients, SendActivations, SendGradients
from hybridnn.runs.trace_file import Epoch


@dataclass(frozen=True)
class Breakdown:
    """Seconds of a span of time."""

    computing: float  # computations, without nested communication; messages that overlap with them are hidden
    transfer: float  # starting sends and receives, and collectives after all ranks have entered them
    transfer_idle: float  # waiting for a message that its sender had begun to send, or for the buffer of a sent one
    # waiting for a message that was not being sent yet, for ranks that had not entered a collective, at a barrier,
    # and before and after the rank's own part of the epoch
    imbalance_idle: float
    other: float  # the rest: loading samples, copying messages and weights, Python between the instructions

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by name of the part."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def activities(self, bubble: float) -> dict[str, float]:
        """Seconds by the names of all reports; `bubble` is the share of the time that the schedule costs."""
        idle = split_idle(self.transfer_idle + self.imbalance_idle, bubble * self.span)
        names = ("compute", "communicate", "bubble", "wait", "overhead")
        return dict(zip(names, (self.computing, self.transfer, *idle, self.other), strict=True))

    @property
    def span(self) -> float:
        """Seconds of all parts."""
        return sum(self.parts.values())


def break_down(epoch: Epoch, start: float | None = None, stop: float | None = None) -> tuple[Breakdown, ...]:
    """Break down the time of every rank, from `start` to `stop` in seconds of the trace's clock; by rank.

    All time belongs to the innermost event around it. A wait for a message is split at the start of its last send,
    among the possible senders, before the wait ended. A collective, or a wait for one, is split when the last rank of
    the group entered it; where several are in flight on an axis, the last that the waiting rank had begun. By default
    the span is from the first rank's start of the epoch to the last rank's end; the parts of each rank add up to it.
    """
    start = epoch.start if start is None else start
    stop = epoch.stop if stop is None else stop
    partners = _Partners(epoch)
    return tuple(_of_rank(epoch, rank, partners, start, stop) for rank in range(len(epoch.ranks)))


def sum_of(breakdowns: Iterable[Breakdown]) -> Breakdown:
    """Add up the parts."""
    return Breakdown(*map(sum, zip(*(item.parts.values() for item in breakdowns), strict=True)))


def mean_of(breakdowns: Sequence[Breakdown]) -> Breakdown:
    """Take the means of the parts."""
    return Breakdown(*(seconds / len(breakdowns) for seconds in sum_of(breakdowns).parts.values()))


MESSAGES = ("send", "receive")

_Message = tuple[bool, int, int, int]
"""Whether it carries gradients, the virtual stage it goes to, minibatch, microbatch."""


class _Partners:
    """Times at which ranks sent messages and entered collectives."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._sends: defaultdict[tuple[StagePosition, _Message], list[float]] = defaultdict(list)
        self._begun: list[defaultdict[str, list[float]]] = []
        for trace in epoch.ranks:
            begun: defaultdict[str, list[float]] = defaultdict(list)
            self._begun.append(begun)
            for event in trace.events:
                if event.name == "send" and isinstance(event.about, Instruction):
                    self._sends[trace.position, self._message(trace.position.stage, event.about)].append(event.start)
                elif event.kind == "communication" and event.name not in MESSAGES and "." not in event.name:
                    begun[event.axis].append(event.start)

    def send_time(self, rank: int, wait: Event) -> float:
        """Last time before the end of a wait at which a part of its message was sent; infinite if none was."""
        if not isinstance(wait.about, Instruction):
            return inf
        position = self._epoch.ranks[rank].position
        message = self._message(position.stage, wait.about)
        sends = [start for sender in self._senders(position, wait.about) for start in self._sends[sender, message]]
        return max((start for start in sends if start <= wait.stop), default=inf)

    def last_entry(self, rank: int, event: Event) -> float:
        """Last time before the end of a collective at which a rank of its group entered it."""
        position = self._epoch.ranks[rank].position
        # Counted from the end of the epoch, as its first events may have been dropped on some ranks.
        own = self._begun[rank][event.axis]
        number = len(own) - bisect_right(own, event.start) + 1
        same = [at for at, axis in enumerate(("pipeline", "batch", "model")) if axis != event.axis]  # in its group
        begun = [
            self._begun[other][event.axis]
            for other, trace in enumerate(self._epoch.ranks)
            if event.axis == "world" or all(position[at] == trace.position[at] for at in same)
        ]
        entries = [times[-number] for times in begun if number <= len(times)]
        return max((time for time in entries if time <= event.stop), default=event.start)

    def _message(self, stage: int, about: Instruction) -> _Message:
        """The message of a send or receive."""
        layout = self._epoch.layout
        virtual = layout.placement.virtual(stage, about.chunk, len(layout.stages))
        virtual += isinstance(about, SendActivations) - isinstance(about, SendGradients)
        gradients = isinstance(about, SendGradients | ReceiveGradients)
        return gradients, virtual, about.minibatch, about.microbatch

    def _senders(self, receiver: StagePosition, about: Instruction) -> Iterator[StagePosition]:
        """Ranks that may send a message to `receiver`: one if both stages have as many batch ranks."""
        widths, placement = self._epoch.layout.stages, self._epoch.layout.placement
        virtual = placement.virtual(receiver.stage, about.chunk, len(widths))
        stage, _ = placement.at(virtual + (1 if isinstance(about, ReceiveGradients) else -1), len(widths))
        batch, model = widths[stage]
        same_width = batch == widths[receiver.stage][0]
        for batch_rank in (receiver.batch_rank,) if same_width else range(batch):
            yield StagePosition(stage, batch_rank, receiver.model_rank % model)


def _of_rank(epoch: Epoch, rank: int, partners: _Partners, start: float, stop: float) -> Breakdown:
    first, last = (min(max(time, start), stop) for time in epoch.spans[rank])
    seconds = {"computing": 0.0, "transfer": 0.0, "transfer_idle": 0.0, "imbalance_idle": first - start + stop - last}
    for event, begin, end in _innermost(epoch.ranks[rank].events):
        begin, end = max(begin, first), min(end, last)
        if begin < end:
            time, before, after = _split(event, rank, partners)
            time = min(max(time, begin), end)
            seconds[before] += time - begin
            seconds[after] += end - time
    # Rounding may leave a negative rest.
    return Breakdown(**seconds, other=max(0.0, stop - start - sum(seconds.values())))


def _split(event: Event, rank: int, partners: _Partners) -> tuple[float, str, str]:
    """A time, and the parts to which an event belongs before and after it."""
    if event.kind == "compute":
        return inf, "computing", "computing"
    if event.name == "receive.wait":
        return partners.send_time(rank, event), "imbalance_idle", "transfer_idle"
    if event.name == "send.wait":
        return inf, "transfer_idle", "transfer_idle"
    if event.name == "barrier":
        return inf, "imbalance_idle", "imbalance_idle"
    if event.name in MESSAGES or event.name.endswith(".test"):
        return inf, "transfer", "transfer"
    return partners.last_entry(rank, event), "imbalance_idle", "transfer"


def _innermost(events: Sequence[Event]) -> Iterator[tuple[Event, float, float]]:
    """Spans of time with the innermost event around each, in order; `events` as in `RankTrace`."""
    around: list[Event] = []
    now = -inf

    def leave(until: float) -> Iterator[tuple[Event, float, float]]:
        nonlocal now
        while around and around[-1].stop <= until:
            event = around.pop()
            if now < event.stop:
                yield event, now, event.stop
                now = event.stop

    for event in events:
        yield from leave(event.start)
        if around and now < event.start:
            yield around[-1], now, event.start
        now = max(now, event.start)
        around.append(event)
    yield from leave(inf)


MINIBATCHES_PER_STAGE = 4  # minibatches, or microbatches, per stage that are drawn by default: warm-up and steady state


def span_of_minibatches(epoch: Epoch, minibatches: range) -> tuple[float, float]:
    """Start of the first computation of some minibatches, and end of the last one."""
    computed = [event for event, about in epoch.computed if about.minibatch in minibatches]
    return min(event.start for event in computed), max(event.stop for event in computed)


def readable_minibatches(epoch: Epoch) -> range:
    """The first minibatches of an epoch, as many as make a readable drawing."""
    wanted = MINIBATCHES_PER_STAGE * len(epoch.layout.stages) // epoch.layout.microbatches
    return epoch.minibatches[: max(wanted, 1)]
