"""Placement of sends and receives among the computations of a schedule, free of deadlocks.

The computations are timed with unit durations and messages that take no time. Every message then has a time, the end
of the computation that produces it, and all messages have one order that both of their ends follow: on a stage, a
message stands after the computations that started before its time and before the first that starts at its time or
later. All lists agree with one order of all events, so that no wait can contradict it, even where every send blocks
until it is received.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from hybridnn.pipeline.schedules.compiled_schedule import compile_schedule
from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    InputGradient,
    Instruction,
    Load,
    ReceiveActivations,
    ReceiveGradients,
    Recompute,
    SendActivations,
    SendGradients,
    WeightGradient,
)
from hybridnn.pipeline.schedules.schedule import Message, Schedule

UNIT_DURATIONS: dict[type[Instruction], float] = {
    Forward: 1.0,
    Recompute: 1.0,
    Backward: 2.0,
    InputGradient: 1.0,
    WeightGradient: 1.0,
}


def place_messages(schedule: Schedule) -> Schedule:
    """Add messages to a schedule that lists computations and loads only.

    A send follows the computation that produces its content, before any receive unless several stages send to each
    other in a cycle at one time.
    """
    program = compile_schedule(schedule)
    durations = [UNIT_DURATIONS.get(type(item), 0.0) for item in program.computations]
    times = program.times(durations, [0.0] * len(durations))
    starts = [times.starts[program.of(stage)] for stage in range(schedule.stages)]
    placed: list[list[tuple[int, Instruction]]] = [[] for _ in schedule.orders]
    for time, message in _in_one_order(program.made(times)):
        send, receive = _ends(schedule, message)
        for stage, instruction in ((message[0].sender, send), (message[0].receiver, receive)):
            placed[stage].append((bisect_left(starts[stage], time), instruction))
    orders = tuple(map(_merge, schedule.orders, placed))
    return replace(schedule, orders=orders)


def _in_one_order(made: dict[Message, float]) -> Iterator[tuple[float, Message]]:
    """All messages by time; at one time, a stage's send comes before its receives unless that closes a cycle.

    A stage ends one computation at a time, so that it has one message to send at a time: from any message, the
    receivers' own messages form a chain, whose end goes first. In a cycle the activations go before the gradients, as
    in Kang 2019, Table 5.
    """
    by_time = sorted(made, key=lambda message: (made[message], not message[0].gradients, message))
    for time, simultaneous in groupby(by_time, made.__getitem__):
        left = {message[0].sender: message for message in simultaneous}
        while left:
            chain: list[Message] = []
            sender = next(iter(left))
            while sender in left:
                chain.append(left.pop(sender))
                sender = chain[-1][0].receiver
            yield from ((time, message) for message in reversed(chain))


def _ends(schedule: Schedule, message: Message) -> tuple[Instruction, Instruction]:
    """The send and the receive of a message."""
    channel, t, m = message
    if channel.gradients:
        _, chunk = schedule.after(channel.receiver, channel.chunk)
        return SendGradients(t, m, chunk), ReceiveGradients(t, m, channel.chunk)
    _, chunk = schedule.before(channel.receiver, channel.chunk)
    return SendActivations(t, m, chunk), ReceiveActivations(t, m, channel.chunk)


def _merge(order: tuple[Instruction, ...], placed: list[tuple[int, Instruction]]) -> tuple[Instruction, ...]:
    """The stage's list, with each message before the computation of its index and the load of that."""
    merged: list[Instruction] = []
    index = done = 0  # of computations, and of messages
    for instruction in order:
        while done < len(placed) and placed[done][0] <= index:
            merged.append(placed[done][1])
            done += 1
        merged.append(instruction)
        index += not isinstance(instruction, Load)
    merged += [message for _, message in placed[done:]]
    return tuple(merged)
