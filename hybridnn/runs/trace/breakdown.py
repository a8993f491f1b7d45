"""Where the time of a measured epoch went, rank by rank: computing, transfer, and waiting for one or the other.

The parts are those of Chen et al. 2018 (SpecTrain), section 4.3 and Figure 10. There a wait is called transfer-induced
where the data are under way, and imbalance-induced where somebody has not finished the work they come from. The moment
at which the sender began to send, which the trace knows, parts the one from the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from math import inf

from hybridnn.comm.recorder import Event
from hybridnn.pipeline.execution.routes import StagePosition
from hybridnn.pipeline.schedules.instructions import Instruction, ReceiveGradients, SendActivations, SendGradients
from hybridnn.runs.trace.recorded import Epoch


@dataclass(frozen=True)
class Breakdown:
    """Seconds of a span of time.

    Attributes
    ----------
    computing : float
        Inside computations, without the communication nested in them; messages that travel meanwhile are hidden.
    transfer : float
        Beginning to send and to receive, and collectives once all have come to them.
    transfer_idle : float
        Waiting for a message that its sender had begun to send, or until the buffer of a sent one is free again.
    imbalance_idle : float
        Waiting for a message that nobody had begun to send yet, for ranks that had not yet come to a collective, at a
        barrier, and before and after the rank's own part of the epoch.
    other : float
        The rest: loading samples, copying messages and weights, and Python between the instructions.
    """

    computing: float
    transfer: float
    transfer_idle: float
    imbalance_idle: float
    other: float

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by name of the part."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def span(self) -> float:
        """Seconds of all parts."""
        return sum(self.parts.values())


def break_down(epoch: Epoch, start: float | None = None, stop: float | None = None) -> tuple[Breakdown, ...]:
    """Break down the time of every rank.

    Every moment belongs to the innermost event around it. A wait for a message is parted at the last send, among the
    ranks that it can come from, that began before the wait ended. A collective, or a wait for one, is parted when the
    last rank of the group came to it; where several are under way on an axis, to the last that the waiting rank had
    begun.

    Parameters
    ----------
    epoch : Epoch
    start, stop : float, optional
        Span to break down, seconds of the trace's clock; from when the first rank began the epoch until the last one
        ended it by default.

    Returns
    -------
    tuple of Breakdown
        By rank; the parts of each add up to the span.
    """
    start = epoch.start if start is None else start
    stop = epoch.stop if stop is None else stop
    meetings = _Meetings(epoch)
    return tuple(_of_rank(epoch, rank, meetings, start, stop) for rank in range(len(epoch.ranks)))


def sum_of(breakdowns: Iterable[Breakdown]) -> Breakdown:
    """Add up the parts."""
    return Breakdown(*map(sum, zip(*(item.parts.values() for item in breakdowns), strict=True)))


def mean_of(breakdowns: Sequence[Breakdown]) -> Breakdown:
    """Take the means of the parts."""
    return Breakdown(*(seconds / len(breakdowns) for seconds in sum_of(breakdowns).parts.values()))


_Message = tuple[bool, int, int, int]
"""Whether it carries gradients, the virtual stage it goes to, minibatch, microbatch."""


class _Meetings:
    """When the others did what a rank may wait for.

    Parameters
    ----------
    epoch : Epoch
    """

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._sends: defaultdict[tuple[StagePosition, _Message], list[float]] = defaultdict(list)
        self._begun: list[defaultdict[str, list[float]]] = []
        for lane in epoch.ranks:
            begun: defaultdict[str, list[float]] = defaultdict(list)
            self._begun.append(begun)
            for event in lane.events:
                if event.name == "send" and isinstance(event.about, Instruction):
                    self._sends[lane.position, self._message(lane.position.stage, event.about)].append(event.start)
                elif _begins_collective(event):
                    begun[event.axis].append(event.start)

    def sent(self, rank: int, wait: Event) -> float:
        """When the last part of a message that came before the end of a wait was sent; infinite if none was."""
        if not isinstance(wait.about, Instruction):
            return inf
        place = self._epoch.ranks[rank].position
        message = self._message(place.stage, wait.about)
        sends = [start for sender in self._senders(place, wait.about) for start in self._sends[sender, message]]
        return max((start for start in sends if start <= wait.stop), default=inf)

    def complete(self, rank: int, event: Event) -> float:
        """When the last member of its group came to a collective, of those that came before it ended here."""
        place = self._epoch.ranks[rank].position
        # Counted from the end of the epoch, whose beginning may have been dropped on some ranks.
        own = self._begun[rank][event.axis]
        number = len(own) - bisect_right(own, event.start) + 1
        begun = [
            self._begun[other][event.axis]
            for other, lane in enumerate(self._epoch.ranks)
            if other == rank or _share_group(event.axis, place, lane.position)
        ]
        came = [moments[-number] for moments in begun if number <= len(moments)]
        return max((moment for moment in came if moment <= event.stop), default=event.start)

    def _message(self, stage: int, about: Instruction) -> _Message:
        """What the send and the receive of a message have in common."""
        virtual = about.chunk * len(self._epoch.stages) + stage
        virtual += isinstance(about, SendActivations) - isinstance(about, SendGradients)
        gradients = isinstance(about, SendGradients | ReceiveGradients)
        return gradients, virtual, about.minibatch, about.microbatch

    def _senders(self, receiver: StagePosition, about: Instruction) -> Iterator[StagePosition]:
        """Ranks that may send a message to `receiver`; of stages as wide as each other, one."""
        widths = self._epoch.stages
        stage = (receiver.stage + (1 if isinstance(about, ReceiveGradients) else -1)) % len(widths)
        batch, model = widths[stage]
        same_width = batch == widths[receiver.stage][0]
        for batch_rank in (receiver.batch_rank,) if same_width else range(batch):
            yield StagePosition(stage, batch_rank, receiver.model_rank % model)


def _begins_collective(event: Event) -> bool:
    return event.kind == "communication" and event.name not in ("send", "receive") and "." not in event.name


def _share_group(axis: str, one: StagePosition, other: StagePosition) -> bool:
    """Whether two ranks belong to the same group along an axis; not where the trace does not tell."""
    if axis == "world":
        return True
    if axis == "pipeline":
        return one[1:] == other[1:]
    if axis == "batch":
        return (one.stage, one.model_rank) == (other.stage, other.model_rank)
    return axis == "model" and one[:2] == other[:2]


def _of_rank(epoch: Epoch, rank: int, meetings: _Meetings, start: float, stop: float) -> Breakdown:
    first, last = (min(max(moment, start), stop) for moment in epoch.spans[rank])
    seconds = {"computing": 0.0, "transfer": 0.0, "transfer_idle": 0.0, "imbalance_idle": first - start + stop - last}
    for event, begin, end in _innermost(epoch.ranks[rank].events):
        begin, end = max(begin, first), min(end, last)
        if begin < end:
            moment, before, after = _parting(event, rank, meetings)
            moment = min(max(moment, begin), end)
            seconds[before] += moment - begin
            seconds[after] += end - moment
    # Rounding may leave a little less than nothing.
    return Breakdown(**seconds, other=max(0.0, stop - start - sum(seconds.values())))


def _parting(event: Event, rank: int, meetings: _Meetings) -> tuple[float, str, str]:
    """A moment, and the parts to which an event's time before and after it belongs."""
    if event.kind == "compute":
        return inf, "computing", "computing"
    if event.name == "receive.wait":
        return meetings.sent(rank, event), "imbalance_idle", "transfer_idle"
    if event.name == "send.wait":
        return inf, "transfer_idle", "transfer_idle"
    if event.name == "barrier":
        return inf, "imbalance_idle", "imbalance_idle"
    if event.name in ("send", "receive") or event.name.endswith(".test"):
        return inf, "transfer", "transfer"
    return meetings.complete(rank, event), "imbalance_idle", "transfer"


def _innermost(events: Sequence[Event]) -> Iterator[tuple[Event, float, float]]:
    """Spans of time with the innermost event around each, in order; `events` as in `Lane`."""
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
