"""Messages that never meet: both ends of a channel in different orders, and stages that wait for each other.

Every send is taken to block until its receive is reached, and every receive until its send. So nothing relies on a
message being buffered on its way, which MPI promises for no size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hybridnn.pipeline.schedules.instructions import Barrier
from hybridnn.pipeline.schedules.message_flow import Message, MessageFlow
from hybridnn.pipeline.schedules.schedule import Schedule, ScheduleError

_Meeting = Message | int
"""What stages wait for: the other end of a message, or all stages at the barrier of a number."""


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
    meetings = [[about for _, about in _waits(schedule, flow, stage)] for stage in range(schedule.stages)]
    out_of_turn = _find_out_of_turn(meetings)
    if out_of_turn is not None:
        stage, number, turn = out_of_turn
        place, _ = list(_waits(schedule, flow, stage))[number]
        raise ScheduleError(stage, place, schedule.orders[stage][place], f"the next message is {_named(turn)}")
    left = _meet(meetings)
    if any(left):
        done = [len(all_of_stage) - len(rest) for all_of_stage, rest in zip(meetings, left, strict=True)]
        stages, closed = _follow(left)
        places = [list(_waits(schedule, flow, stage))[done[stage]][0] for stage in stages[:-1]]
        waits = [
            f"stage {stage} waits at instruction {place} ({schedule.orders[stage][place]}) for stage {target}"
            for stage, place, target in zip(stages[:-1], places, stages[1:], strict=True)
        ]
        reason = "deadlock where every send blocks until it is received: " + ", ".join(waits)
        reason += "" if closed else ", which has ended"
        raise ScheduleError(stages[0], places[0], schedule.orders[stages[0]][places[0]], reason)


def _waits(schedule: Schedule, flow: MessageFlow, stage: int) -> Iterator[tuple[int, _Meeting]]:
    """Places of a list at which the stage waits, and what for."""
    for place, instruction in enumerate(schedule.orders[stage]):
        message = flow.carried(stage, instruction)
        if message is not None:
            yield place, message
        elif isinstance(instruction, Barrier):
            yield place, instruction.minibatch


def _find_out_of_turn(meetings: list[list[_Meeting]]) -> tuple[int, int, Message] | None:
    """The first message that is not received in the order in which its sender sends, and what comes in its place.

    Such lists always deadlock; this finds the message.
    """
    sent: dict[tuple[int, int], list[Message]] = {}
    for stage, own in enumerate(meetings):
        for about in own:
            if not isinstance(about, int) and about[0].sender == stage:
                sent.setdefault((stage, about[0].receiver), []).append(about)
    coming = {stages: iter(messages) for stages, messages in sent.items()}
    for stage, own in enumerate(meetings):
        for number, about in enumerate(own):
            if isinstance(about, int) or about[0].receiver != stage or about[0].sender == stage:
                continue
            turn = next(coming[about[0].sender, stage])
            if turn != about:
                return stage, number, turn
    return None


def _named(message: Message) -> str:
    channel, minibatch, microbatch = message
    what = "gradients" if channel.gradients else "activations"
    number = f"microbatch {microbatch} of minibatch {minibatch} for chunk {channel.chunk}"
    return f"the {what} of {number}, by the order in which stage {channel.sender} sends"


def _meet(meetings: list[list[_Meeting]]) -> list[list[_Meeting]]:
    """Hold all meetings to which everybody comes, and return those that are left of each stage, the next one last."""
    left = [own[::-1] for own in meetings]
    runnable = list(range(len(left)))
    while runnable:
        stage = runnable.pop()
        if left[stage] and _absent(left, left[stage][-1]) is None:
            present = _invited(left, left[stage][-1])
            for other in present:
                left[other].pop()
            runnable += present
    return left


def _invited(left: list[list[_Meeting]], about: _Meeting) -> Sequence[int]:
    return range(len(left)) if isinstance(about, int) else about[0][:2]


def _absent(left: list[list[_Meeting]], about: _Meeting) -> int | None:
    """A stage that has not come to a meeting; None when all have."""
    for stage in _invited(left, about):
        if not left[stage] or left[stage][-1] != about:
            return stage
    # A stage that sends to itself never comes to the receive.
    return None if isinstance(about, int) or about[0].sender != about[0].receiver else about[0].sender


def _follow(left: list[list[_Meeting]]) -> tuple[list[int], bool]:
    """Who waits for whom, up to a stage that has ended or, True, around a circle back to the first."""
    path = [next(stage for stage, meetings in enumerate(left) if meetings)]
    while left[path[-1]]:
        target = _absent(left, left[path[-1]][-1])
        assert target is not None, "what everybody has come to has been held"
        if target in path:
            return [*path[path.index(target) :], target], True
        path.append(target)
    return path, False
