"""Deadlock check: messages whose two ends disagree on their order, and stages that wait for each other.

Every send is taken to block until its receive is reached, and every receive until its send (a rendezvous). So no
schedule relies on buffered messages, which MPI guarantees for no size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hybridnn.pipeline.schedules.compiled_schedule import BARRIER, NO_NEED, advance
from hybridnn.pipeline.schedules.instructions import Barrier, SendActivations, SendGradients
from hybridnn.pipeline.schedules.schedule import Message, Schedule


class _Wait(NamedTuple):
    """A position of a stage's list at which it waits: an end of a message, or the barrier of a number."""

    position: int
    meeting: Message | int
    sends: bool


def check_messages(schedule: Schedule) -> None:
    """Run the messages and barriers of a schedule, in which every send has its receive, and refuse it if it stops.

    Raises
    ------
    ScheduleError
        With a message that is received out of order, or the stages that wait for each other in a cycle, or for a stage
        whose list has ended.
    """
    waits = [_waits(schedule, stage) for stage in range(schedule.stages)]
    _check_order(schedule, waits)
    stopped = _stopped(waits)
    if not stopped:
        return
    path = _path_of_waits(stopped, schedule.stages)
    descriptions = [
        f"stage {stage} waits at instruction {position} ({schedule.orders[stage][position]}) for stage {target}"
        for (stage, target), position in ((pair, stopped[pair[0]].position) for pair in pairwise(path))
    ]
    reason = "deadlock where every send blocks until it is received: " + ", ".join(descriptions)
    has_ended = "" if path[-1] in stopped else ", which has ended"
    raise schedule.error(path[0], stopped[path[0]].position, reason + has_ended)


def _waits(schedule: Schedule, stage: int) -> list[_Wait]:
    waits: list[_Wait] = []
    for position, instruction in enumerate(schedule.orders[stage]):
        message = schedule.flow.carried(stage, instruction)
        if message is not None:
            waits.append(_Wait(position, message, isinstance(instruction, (SendActivations, SendGradients))))
        elif isinstance(instruction, Barrier):
            waits.append(_Wait(position, instruction.minibatch, False))
    return waits


def _check_order(schedule: Schedule, waits: Sequence[Sequence[_Wait]]) -> None:
    """Refuse a message that is not received in the order in which its sender sends.

    Such lists always deadlock; this check names the message.
    """
    sent: defaultdict[tuple[int, int], list[Message]] = defaultdict(list)
    for stage, own in enumerate(waits):
        for _, message, sends in own:
            if sends and not isinstance(message, int):
                sent[stage, message[0].receiver].append(message)
    coming = {stages: iter(messages) for stages, messages in sent.items()}
    for stage, own in enumerate(waits):
        for position, message, sends in own:
            if sends or isinstance(message, int) or message[0].sender == stage:
                continue
            following = next(coming[message[0].sender, stage])
            if following != message:
                raise schedule.error(stage, position, f"the next message is {_named(following)}")


def _named(message: Message) -> str:
    channel, minibatch, microbatch = message
    content = "gradients" if channel.gradients else "activations"
    number = f"microbatch {microbatch} of minibatch {minibatch} for chunk {channel.chunk}"
    return f"the {content} of {number}, by the order in which stage {channel.sender} sends"


def _stopped(waits: Sequence[Sequence[_Wait]]) -> dict[int, _Wait]:
    """Where each stage stops that cannot go on.

    Each end of a message is two steps: its stage arrives, and goes on when the other end has arrived. Those of the
    sender have the numbers 4n and 4n + 1, those of the receiver 4n + 2 and 4n + 3.
    """
    numbers: dict[Message, int] = {}
    lists: list[list[int]] = []
    for own in waits:
        lists.append([])
        for _, meeting, sends in own:
            if isinstance(meeting, int):
                lists[-1].append(BARRIER - meeting)
            else:
                arrives = 4 * numbers.setdefault(meeting, len(numbers)) + (0 if sends else 2)
                lists[-1] += [arrives, arrives + 1]
    needs = [need for first in range(0, 4 * len(numbers), 4) for need in (NO_NEED, first + 2, NO_NEED, first)]
    _, reached = advance(lists, needs)
    stopped: dict[int, _Wait] = {}
    for stage, (own, steps, done) in enumerate(zip(waits, lists, reached, strict=True)):
        # A barrier is one step of its list, and the end of a message two, of which the second waits.
        passed = sum(step <= BARRIER or step % 2 for step in steps[:done])
        if passed < len(own):
            stopped[stage] = own[passed]
    return stopped


def _path_of_waits(stopped: dict[int, _Wait], stages: int) -> list[int]:
    """Stages each of which waits for the next: a cycle back to the first, or up to one that has ended."""
    path = [min(stopped)]
    while path[-1] in stopped and path[-1] not in path[:-1]:
        _, meeting, sends = stopped[path[-1]]
        if isinstance(meeting, int):
            absent = (stage for stage in range(stages) if stage not in stopped or stopped[stage].meeting != meeting)
            path.append(next(absent))
        else:
            path.append(meeting[0].receiver if sends else meeting[0].sender)
    return path[path.index(path[-1]) :] if path[-1] in stopped else path
