"""A schedule compiled into an order in which its computations can run, its times, and the placement of its messages.

The linter runs the messages of a schedule with the same `advance`.

`place_messages` places sends and receives among the computations, free of deadlocks. The computations are timed with
unit durations and messages that take no time. Every message then has a time, the end of the computation that produces
it, and all messages have one order that both of their ends follow: on a stage, a message stands after the computations
that started before its time and before the first that starts at its time or later. All lists agree with one order of
all events, so that no wait can contradict it, even where every send blocks until it is received.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, count, groupby, islice, product
from typing import NamedTuple

from hybridnn.pipeline.schedules.instructions import (
    COMPUTATIONS,
    Backward,
    Barrier,
    Forward,
    InputGradient,
    Instruction,
    Kinds,
    Load,
    ReceiveActivations,
    ReceiveGradients,
    ReduceGradients,
    SendActivations,
    SendGradients,
    Update,
)
from hybridnn.pipeline.schedules.schedule import Schedule, ScheduleError

BARRIER = -1
"""Marks a barrier of all stages in a list of steps; smaller numbers mark further ones, which differ from each other."""

NO_NEED = -1  # marks a step that needs no other one

COMPUTING = frozenset(COMPUTATIONS)


# -- messages ----------------------------------------------------------------------------------------------------------


class Channel(NamedTuple):
    """Path of one kind of messages, from stage `sender` to stage `receiver`."""

    sender: int
    receiver: int
    gradients: bool  # gradients of a backward pass, not activations of a forward pass
    chunk: int  # chunk of the receiver


Message = tuple[Channel, int, int]
"""Channel, minibatch and microbatch; messages sort, so that both ends can agree on an order."""

Channels = dict[tuple[type[Instruction], int], Channel]  # of a stage, from kind and chunk of an instruction

SEND_AND_RECEIVE = ((SendActivations, ReceiveActivations), (SendGradients, ReceiveGradients))


class MessageFlow:
    """The messages of a schedule, those between two chunks of one rank included."""

    def __init__(self, schedule: Schedule) -> None:
        self._made, self._needed, self._carried = ([Channels() for _ in schedule.orders] for _ in range(3))
        for stage, chunk in product(range(schedule.stages), range(schedule.chunks)):
            if not schedule.is_last(stage, chunk):
                receiver, receiver_chunk = schedule.after(stage, chunk)
                self._add(Channel(stage, receiver, False, receiver_chunk), chunk)
            if not schedule.is_first(stage, chunk):
                receiver, receiver_chunk = schedule.before(stage, chunk)
                self._add(Channel(stage, receiver, True, receiver_chunk), chunk)

    def _add(self, channel: Channel, sender_chunk: int) -> None:
        makers: Kinds = (Backward, InputGradient) if channel.gradients else (Forward,)
        for maker in makers:
            self._made[channel.sender][maker, sender_chunk] = channel
            self._needed[channel.receiver][maker, channel.chunk] = channel
        send, receive = SEND_AND_RECEIVE[channel.gradients]
        self._carried[channel.sender][send, sender_chunk] = channel
        self._carried[channel.receiver][receive, channel.chunk] = channel

    def made(self, stage: int, computation: Instruction) -> Message | None:
        """The message whose content a computation produces."""
        return _message(self._made[stage], computation)

    def needed(self, stage: int, computation: Instruction) -> Message | None:
        """The message whose content a computation consumes."""
        return _message(self._needed[stage], computation)

    def carried(self, stage: int, instruction: Instruction) -> Message | None:
        """The message that a send sends or a receive receives."""
        return _message(self._carried[stage], instruction)


def _message(channels: Channels, instruction: Instruction) -> Message | None:
    channel = channels.get((type(instruction), instruction.chunk))
    return None if channel is None else (channel, instruction.minibatch, instruction.microbatch)


# -- order and times ---------------------------------------------------------------------------------------------------


def advance(lists: Sequence[Sequence[int]], needs: Sequence[int]) -> tuple[list[int], list[int]]:
    """Run numbered steps, each after the one that it needs and after the previous one of its stage, as far as possible.

    Parameters
    ----------
    lists : sequence of sequence of int
        Steps of each stage; at `BARRIER` or a smaller number, all stages meet that are at the same number.
    needs : sequence of int
        For each step the one that it needs, or `NO_NEED`. No two steps need the same.

    Returns
    -------
    order : list of int
        The steps that ran.
    reached : list of int
        For each stage the number of steps of its list that ran.
    """
    reached = [0] * len(lists)
    is_done = bytearray(len(needs) + 1)
    waiting: dict[int, int] = {}
    at_barrier: list[int] = []
    order: list[int] = []
    runnable = list(range(len(lists)))
    while runnable:
        stage = runnable.pop()
        steps, position = lists[stage], reached[stage]
        while position < len(steps):
            step = steps[position]
            if step <= BARRIER:
                at_barrier.append(stage)
                break
            need = needs[step]
            if need >= 0 and not is_done[need]:
                waiting[need] = stage
                break
            order.append(step)
            is_done[step] = True
            position += 1
            if step in waiting:
                runnable.append(waiting.pop(step))
        reached[stage] = position
        if len(at_barrier) == len(lists) and len({lists[one][reached[one]] for one in at_barrier}) == 1:
            order.append(BARRIER)
            reached = [number + 1 for number in reached]
            runnable += at_barrier
            at_barrier.clear()
    return order, reached


class Times(NamedTuple):
    """Starts and ends of the computations of a compiled schedule, and ends of its barriers."""

    starts: list[float]
    ends: list[float]
    barriers: list[float]


@dataclass(frozen=True)
class CompiledSchedule:
    """The computations of a schedule, numbered, and an order in which they can run."""

    schedule: Schedule
    flow: MessageFlow
    computations: tuple[Instruction, ...]  # those of stage 0 in the order of its list, then those of stage 1, and so on
    stages: tuple[int, ...]  # stage of each computation
    offsets: tuple[int, ...]  # index of each stage's first computation, and the number of all
    needs: tuple[int, ...]  # index of the computation whose message each computation needs, or `NO_NEED`
    messages: tuple[Message | None, ...]  # that message; None between two chunks of a stage
    # All indices, each after the one it needs and after the previous one of its stage; `BARRIER` where all stages meet.
    order: tuple[int, ...]

    def of(self, stage: int) -> slice:
        """Indices of a stage's computations."""
        return slice(self.offsets[stage], self.offsets[stage + 1])

    def times(
        self,
        durations: Sequence[float],
        transfers: Sequence[float],
        barrier: float = 0.0,
        exposed: float = 0.0,
        occupied: Sequence[float] | None = None,
    ) -> Times:
        """Time the computations.

        A computation that needs a message sent at time m, with transfer time t, starts at ``max(free + exposed t, m +
        t)``, where ``free`` is the end of the previous computation of its stage. A message is sent when its content is
        computed, and when the one before it has left the link.

        Parameters
        ----------
        durations, transfers : sequence of float
            Of each computation, and of the message that it needs.
        barrier : float
            Time of a barrier after its last stage has arrived.
        exposed : float
            Fraction of a message's time that occupies its receiver.
        occupied : sequence of float, optional
            Time in which the message of each computation occupies the link from its sender to its receiver, which
            carries messages in the order in which they are needed; by default none.
        """
        stages, needs = self.stages, self.needs
        clocks = [0.0] * self.schedule.stages
        starts, ends, barriers = [0.0] * len(durations), [0.0] * len(durations), []
        links: dict[tuple[int, int], float] = {}
        for index in self.order:
            if index == BARRIER:
                barriers.append(max(clocks) + barrier)
                clocks = [barriers[-1]] * len(clocks)
                continue
            stage, need = stages[index], needs[index]
            start = clocks[stage]
            if need >= 0:
                transfer, sent = transfers[index], ends[need]
                if occupied is not None:
                    link = stages[need], stage
                    sent = max(sent, links.get(link, 0.0))
                    links[link] = sent + occupied[index]
                start, arrival = start + exposed * transfer, sent + transfer
                if arrival > start:
                    start = arrival
            starts[index] = start
            ends[index] = clocks[stage] = start + durations[index]
        return Times(starts, ends, barriers)

    def made(self, times: Times) -> dict[Message, float]:
        """When the content of each message is computed."""
        pairs = zip(self.messages, self.needs, strict=True)
        return {message: times.ends[need] for message, need in pairs if message is not None}


def compile_schedule(schedule: Schedule) -> CompiledSchedule:
    """Find an order in which all computations of a schedule can run; its loads and messages are ignored.

    Raises `ScheduleError` if a stage waits for something that never happens.
    """
    computations = [[item for item in order if type(item) in COMPUTING] for order in schedule.orders]
    offsets = tuple(accumulate(map(len, computations), initial=0))
    makers: dict[Message, int] = {}
    messages: list[Message | None] = []
    flow = MessageFlow(schedule)
    for stage, items in enumerate(computations):
        for index, computation in enumerate(items, offsets[stage]):
            made = flow.made(stage, computation)
            if made is not None:
                makers[made] = index
            messages.append(flow.needed(stage, computation))
    never = offsets[-1]
    needs = tuple(NO_NEED if message is None else makers.get(message, never) for message in messages)
    sent = (message if message and message[0].sender != message[0].receiver else None for message in messages)
    lists = [_indices(order, first) for order, first in zip(schedule.orders, offsets, strict=False)]
    order, reached = advance(lists, needs)
    for stage, (indices, done) in enumerate(zip(lists, reached, strict=True)):
        if done < len(indices):
            raise _blocked(schedule, stage, done)
    return CompiledSchedule(
        schedule,
        flow,
        tuple(chain.from_iterable(computations)),
        tuple(stage for stage, items in enumerate(computations) for _ in items),
        offsets,
        needs,
        tuple(sent),
        tuple(order),
    )


def _indices(instructions: Sequence[Instruction], first: int) -> list[int]:
    """Indices of a stage's computations, from `first` on, and its barriers."""
    index = count(first)
    kinds = (type(instruction) for instruction in instructions)
    return [BARRIER if kind is Barrier else next(index) for kind in kinds if kind is Barrier or kind in COMPUTING]


def _blocked(schedule: Schedule, stage: int, done: int) -> ScheduleError:
    """The error of a stage that stops after so many computations and barriers."""
    kinds = (Barrier, *COMPUTATIONS)
    kept = (position for position, item in enumerate(schedule.orders[stage]) if isinstance(item, kinds))
    return schedule.error(stage, next(islice(kept, done, None)), "waits for something that never happens")


# -- placement of messages ---------------------------------------------------------------------------------------------


def place_messages(schedule: Schedule) -> Schedule:
    """Add messages to a schedule that lists computations and loads only.

    A send follows the computation that produces its content, before any receive unless several stages send to each
    other in a cycle at one time.
    """
    program = compile_schedule(schedule)
    free = (ReduceGradients, Update)
    durations = [0.0 if isinstance(item, free) else 1.0 + isinstance(item, Backward) for item in program.computations]
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
    _, sender_chunk = (schedule.after if channel.gradients else schedule.before)(channel.receiver, channel.chunk)
    send, receive = SEND_AND_RECEIVE[channel.gradients]
    return send(t, m, sender_chunk), receive(t, m, channel.chunk)


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
