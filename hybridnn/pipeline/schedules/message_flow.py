"""Message flow of a schedule: which computation produces or consumes a message, and between which stages it travels."""

from __future__ import annotations

from typing import NamedTuple

from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    InputGradient,
    Instruction,
    ReceiveActivations,
    ReceiveGradients,
    SendActivations,
    SendGradients,
)
from hybridnn.pipeline.schedules.schedule import Schedule


class Channel(NamedTuple):
    """Path of one kind of messages.

    Attributes
    ----------
    sender, receiver : int
        Stages.
    gradients : bool
        Gradients of a backward pass, not activations of a forward pass.
    chunk : int
        Chunk of the receiver.
    """

    sender: int
    receiver: int
    gradients: bool
    chunk: int


Message = tuple[Channel, int, int]
"""Channel, minibatch and microbatch; messages sort, so that both ends can agree on an order."""

_Channels = dict[tuple[int, type[Instruction], int], Channel]
"""From stage, kind and chunk of an instruction."""


class MessageFlow:
    """The messages of a schedule, those between two chunks of one rank included."""

    def __init__(self, schedule: Schedule) -> None:
        self._made: _Channels = {}
        self._needed: _Channels = {}
        self._carried: _Channels = {}
        for stage in range(schedule.stages):
            for chunk in range(schedule.chunks):
                if not schedule.is_last(stage, chunk):
                    receiver, receiver_chunk = schedule.after(stage, chunk)
                    self._add(chunk, Channel(stage, receiver, False, receiver_chunk))
                if not schedule.is_first(stage, chunk):
                    receiver, receiver_chunk = schedule.before(stage, chunk)
                    self._add(chunk, Channel(stage, receiver, True, receiver_chunk))

    def _add(self, sender_chunk: int, channel: Channel) -> None:
        computations: tuple[type[Instruction], ...] = (Forward,)
        send: type[Instruction] = SendActivations
        receive: type[Instruction] = ReceiveActivations
        if channel.gradients:
            computations, send, receive = (Backward, InputGradient), SendGradients, ReceiveGradients
        for computation in computations:
            self._made[channel.sender, computation, sender_chunk] = channel
            self._needed[channel.receiver, computation, channel.chunk] = channel
        self._carried[channel.sender, send, sender_chunk] = channel
        self._carried[channel.receiver, receive, channel.chunk] = channel

    def made(self, stage: int, instruction: Instruction) -> Message | None:
        """The message whose content a computation produces."""
        return _message(self._made, stage, instruction)

    def needed(self, stage: int, instruction: Instruction) -> Message | None:
        """The message that a computation consumes."""
        return _message(self._needed, stage, instruction)

    def carried(self, stage: int, instruction: Instruction) -> Message | None:
        """The message that a send sends or a receive receives."""
        return _message(self._carried, stage, instruction)


def _message(channels: _Channels, stage: int, instruction: Instruction) -> Message | None:
    channel = channels.get((stage, type(instruction), instruction.chunk))
    return None if channel is None else (channel, instruction.minibatch, instruction.microbatch)
