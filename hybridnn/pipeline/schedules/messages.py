"""Loads, sends and receives placed around the computations of a schedule, so that they cannot deadlock.

The computations are timed with unit durations, messages taking no time. That gives every message a moment, the end of
the computation that makes it, and all messages one order that both of their ends follow: on a stage, a message stands
after the computations that began before its moment and before the first that begins at its moment or later. All lists
then agree with one order of everything that happens, which no waiting can contradict, even where every send blocks
until it is received.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    InputGradient,
    Instruction,
    LoadInput,
    LoadTarget,
    ReceiveActivations,
    ReceiveGradients,
    Recompute,
    SendActivations,
    SendGradients,
    WeightGradient,
)
from hybridnn.pipeline.schedules.message_flow import Message
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.pipeline.schedules.timing import time_computations


def place_messages(schedule: Schedule) -> Schedule:
    """Add loads and messages to a schedule that lists computations only.

    Parameters
    ----------
    schedule : Schedule
        Without loads and messages.

    Returns
    -------
    Schedule
        A send follows the computation that makes its content, before any receive unless several stages send to each
        other in a circle at one moment; a load stands directly before the forward pass that uses it.

    Raises
    ------
    ScheduleError
        If the computations wait for each other in a circle.
    """
    times = time_computations(schedule, _unit_duration)
    placed: list[list[tuple[int, Instruction]]] = [[] for _ in schedule.orders]
    for moment, message in _in_one_order(times.made):
        send, receive = _ends(schedule, message)
        for stage, instruction in ((message[0].sender, send), (message[0].receiver, receive)):
            placed[stage].append((bisect_left(times.starts[stage], moment), instruction))
    orders = tuple(_merge(schedule, stage, order, placed[stage]) for stage, order in enumerate(schedule.orders))
    return replace(schedule, orders=orders)


def _in_one_order(made: dict[Message, float]) -> Iterator[tuple[float, Message]]:
    """All messages by moment; of one moment, a stage's send comes before its receives unless that closes a circle.

    A stage ends one computation at a time, so that it has one message to send at a moment: from any message, the
    receivers' own messages form a chain, whose end goes first. In a circle the activations go before the gradients, as
    in Kang 2019, Table 5.
    """
    by_moment = sorted(made, key=lambda message: (made[message], not message[0].gradients, message))
    for moment, together in groupby(by_moment, made.__getitem__):
        left = {message[0].sender: message for message in together}
        while left:
            chain: list[Message] = []
            sender = next(iter(left))
            while sender in left:
                chain.append(left.pop(sender))
                sender = chain[-1][0].receiver
            yield from ((moment, message) for message in reversed(chain))


def _unit_duration(stage: int, instruction: Instruction) -> float:
    if isinstance(instruction, Backward):
        return 2.0
    return 1.0 if isinstance(instruction, Forward | Recompute | InputGradient | WeightGradient) else 0.0


def _ends(schedule: Schedule, message: Message) -> tuple[Instruction, Instruction]:
    """The send and the receive of a message."""
    channel, t, m = message
    if channel.gradients:
        _, chunk = schedule.after(channel.receiver, channel.chunk)
        return SendGradients(t, m, chunk), ReceiveGradients(t, m, channel.chunk)
    _, chunk = schedule.before(channel.receiver, channel.chunk)
    return SendActivations(t, m, chunk), ReceiveActivations(t, m, channel.chunk)


def _merge(
    schedule: Schedule, stage: int, order: tuple[Instruction, ...], placed: list[tuple[int, Instruction]]
) -> tuple[Instruction, ...]:
    """The stage's list with each message before the computation of its number, and the loads."""
    merged: list[Instruction] = []
    done = 0
    for number, instruction in enumerate(order):
        while done < len(placed) and placed[done][0] <= number:
            merged.append(placed[done][1])
            done += 1
        if isinstance(instruction, Forward):
            t, m, chunk = instruction.minibatch, instruction.microbatch, instruction.chunk
            merged += [LoadInput(t, m, chunk)] if schedule.is_first(stage, chunk) else []
            merged += [LoadTarget(t, m, chunk)] if schedule.is_last(stage, chunk) else []
        merged.append(instruction)
    merged += [message for _, message in placed[done:]]
    return tuple(merged)
