"""Deadlock check: messages whose two ends disagree on their order, and stages that wait for each other.

Every send is taken to block until its receive is reached, and every receive until its send (a rendezvous). So no
schedule relies on buffered messages, which MPI guarantees for no size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hybridnn.pipeline.schedules.instructions import Barrier
from hybridnn.pipeline.schedules.message_flow import Message, MessageFlow
from hybridnn.pipeline.schedules.schedule import Schedule

_Meeting = Message | int
"""A rendezvous: of the two ends of a message, or of all stages at the barrier of a number."""

_Waits = list[tuple[int, _Meeting]]
"""Positions of a stage's list at which it waits, and the rendezvous there."""


def check_messages(schedule: Schedule) -> None:
    """Run the messages and barriers of a schedule, and refuse it if it stops.

    Parameters
    ----------
    schedule : Schedule
        Every send has its receive.

    Raises
    ------
    ScheduleError
        With a message that is received out of order, or the stages that wait for each other in a cycle, or for a stage
        whose list has ended.
    """
    flow = MessageFlow(schedule)
    waits = [_waits(schedule, flow, stage) for stage in range(schedule.stages)]
    _check_order(schedule, waits)
    left = _remaining(waits)
    if not any(left):
        return
    stages, closed = _follow(left)
    positions = [left[stage][-1][0] for stage in stages[:-1]]
    descriptions = [
        f"stage {stage} waits at instruction {position} ({schedule.orders[stage][position]}) for stage {target}"
        for stage, position, target in zip(stages[:-1], positions, stages[1:], strict=True)
    ]
    reason = "deadlock where every send blocks until it is received: " + ", ".join(descriptions)
    raise schedule.error(stages[0], positions[0], reason + ("" if closed else ", which has ended"))


def _waits(schedule: Schedule, flow: MessageFlow, stage: int) -> _Waits:
    waits: _Waits = []
    for position, instruction in enumerate(schedule.orders[stage]):
        message = flow.carried(stage, instruction)
        if message is not None:
            waits.append((position, message))
        elif isinstance(instruction, Barrier):
            waits.append((position, instruction.minibatch))
    return waits


def _check_order(schedule: Schedule, waits: list[_Waits]) -> None:
    """Refuse a message that is not received in the order in which its sender sends.

    Such lists always deadlock; this check names the message.
    """
    sent: defaultdict[tuple[int, int], list[Message]] = defaultdict(list)
    for stage, own in enumerate(waits):
        for _, meeting in own:
            if not isinstance(meeting, int) and meeting[0].sender == stage:
                sent[stage, meeting[0].receiver].append(meeting)
    coming = {stages: iter(messages) for stages, messages in sent.items()}
    for stage, own in enumerate(waits):
        for position, meeting in own:
            if isinstance(meeting, int) or meeting[0].receiver != stage or meeting[0].sender == stage:
                continue
            following = next(coming[meeting[0].sender, stage])
            if following != meeting:
                raise schedule.error(stage, position, f"the next message is {_named(following)}")


def _named(message: Message) -> str:
    channel, minibatch, microbatch = message
    content = "gradients" if channel.gradients else "activations"
    number = f"microbatch {microbatch} of minibatch {minibatch} for chunk {channel.chunk}"
    return f"the {content} of {number}, by the order in which stage {channel.sender} sends"


def _remaining(waits: list[_Waits]) -> list[_Waits]:
    """Complete all rendezvous at which all parties arrive, and return those left of each stage, the next one last."""
    left = [own[::-1] for own in waits]
    runnable = list(range(len(left)))
    while runnable:
        stage = runnable.pop()
        if left[stage] and _absent(left, left[stage][-1][1]) is None:
            parties = _parties(left, left[stage][-1][1])
            for party in parties:
                left[party].pop()
            runnable += parties
    return left


def _parties(left: list[_Waits], meeting: _Meeting) -> Sequence[int]:
    return range(len(left)) if isinstance(meeting, int) else meeting[0][:2]


def _absent(left: list[_Waits], meeting: _Meeting) -> int | None:
    """A stage that has not arrived at a rendezvous; None when all have."""
    for stage in _parties(left, meeting):
        if not left[stage] or left[stage][-1][1] != meeting:
            return stage
    # A stage that sends to itself never reaches the receive.
    return None if isinstance(meeting, int) or meeting[0].sender != meeting[0].receiver else meeting[0].sender


def _follow(left: list[_Waits]) -> tuple[list[int], bool]:
    """Stages each of which waits for the next: a cycle back to the first and True, or up to one that has ended."""
    path = [next(stage for stage, own in enumerate(left) if own)]
    while left[path[-1]]:
        target = _absent(left, left[path[-1]][-1][1])
        assert target is not None, "a rendezvous at which all have arrived is complete"
        if target in path:
            return [*path[path.index(target) :], target], True
        path.append(target)
    return path, False
