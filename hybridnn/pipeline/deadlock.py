"""Messages that never meet: both ends of a channel in different orders, and stages that wait for each other.

Every send is taken to block until its receive is reached, and every receive until its send. So nothing relies on a
message being buffered on its way, which MPI promises for no size.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridnn.pipeline.instructions import Barrier
from hybridnn.pipeline.message_flow import Message, MessageFlow
from hybridnn.pipeline.schedule import Schedule
from hybridnn.pipeline.schedule_error import ScheduleError

__all__ = ["check_messages"]


_Meeting = tuple[int, Message | int]
"""A place where a stage waits, for the other end of a message, or for all stages at the barrier of a number."""


def check_messages(schedule: Schedule) -> None:
    """Run the messages and barriers of a schedule, and refuse it if it comes to a stop.

    Parameters
    ----------
    schedule : Schedule
        Every send has its receive.

    Raises
    ------
    ScheduleError
        Naming a message that is received out of turn, or the stages that wait for each other in a circle, or one that
        has ended and is waited for.
    """
    flow = MessageFlow(schedule)
    meetings = [_meetings(schedule, flow, stage) for stage in range(schedule.stages)]
    _check_channels(schedule, meetings)
    _check_deadlock(schedule, meetings)


def _meetings(schedule: Schedule, flow: MessageFlow, stage: int) -> list[_Meeting]:
    meetings: list[_Meeting] = []
    for place, instruction in enumerate(schedule.orders[stage]):
        message = flow.carried(stage, instruction)
        if message is not None:
            meetings.append((place, message))
        elif isinstance(instruction, Barrier):
            meetings.append((place, instruction.minibatch))
    return meetings


def _check_channels(schedule: Schedule, meetings: list[list[_Meeting]]) -> None:
    """Refuse messages from one stage to another that are not received in the order in which they are sent.

    Such lists always deadlock; this names the message.
    """
    sent: dict[tuple[int, int], list[Message]] = {}
    for stage, own in enumerate(meetings):
        for _, about in own:
            if not isinstance(about, int) and about[0].sender == stage:
                sent.setdefault((stage, about[0].receiver), []).append(about)
    coming = {stages: iter(messages) for stages, messages in sent.items()}
    for stage, own in enumerate(meetings):
        for place, about in own:
            if isinstance(about, int) or about[0].receiver != stage or about[0].sender == stage:
                continue
            channel, minibatch, microbatch = turn = next(coming[about[0].sender, stage])
            if turn != about:
                what = "gradients" if channel.gradients else "activations"
                number = f"microbatch {microbatch} of minibatch {minibatch} for chunk {channel.chunk}"
                reason = f"the next message that stage {channel.sender} sends here is the {what} of {number}"
                raise ScheduleError(stage, place, schedule.orders[stage][place], reason)


def _check_deadlock(schedule: Schedule, meetings: list[list[_Meeting]]) -> None:
    """Take all meetings for which everybody has come, until there is none."""
    # The next meeting of each stage is the last of its list.
    left = [own[::-1] for own in meetings]
    runnable = list(range(schedule.stages))
    while runnable:
        stage = runnable.pop()
        if left[stage] and _absent(left, left[stage][-1][1]) is None:
            present = _invited(left, left[stage][-1][1])
            for other in present:
                left[other].pop()
            runnable += present
    if any(left):
        _refuse(schedule, left)


def _invited(left: list[list[_Meeting]], about: Message | int) -> Sequence[int]:
    return range(len(left)) if isinstance(about, int) else about[0][:2]


def _absent(left: list[list[_Meeting]], about: Message | int) -> int | None:
    """A stage that has not come to a meeting; None when all have."""
    for stage in _invited(left, about):
        if not left[stage] or left[stage][-1][1] != about:
            return stage
    # A stage that sends to itself never comes to the receive.
    return None if isinstance(about, int) or about[0].sender != about[0].receiver else about[0].sender


def _refuse(schedule: Schedule, left: list[list[_Meeting]]) -> None:
    """Follow who waits for whom from the first stage that waits, until the circle closes or a stage has ended."""
    stage: int | None = next(stage for stage, meetings in enumerate(left) if meetings)
    path: list[int] = []
    while stage is not None and stage not in path and left[stage]:
        path.append(stage)
        stage = _absent(left, left[stage][-1][1])
    closed = stage in path
    circle = path[path.index(stage) :] if stage is not None and closed else path
    places = [left[waiting][-1][0] for waiting in circle]
    waits = [
        f"stage {waiting} waits at instruction {place} ({schedule.orders[waiting][place]}) for stage {target}"
        for waiting, place, target in zip(circle, places, [*circle[1:], stage], strict=True)
    ]
    reason = "deadlock where every send blocks until it is received: " + ", ".join(waits)
    reason += "" if closed else ", which has ended"
    raise ScheduleError(circle[0], places[0], schedule.orders[circle[0]][places[0]], reason)
