"""Which message an instruction makes, sends, receives or needs, and between which stages it travels."""

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
    """Where messages of a kind travel.

    Attributes
    ----------
    sender, receiver : int
        Stages.
    gradients : bool
        Gradients of a backward pass, not activations of a forward pass.
    chunk : int
        Of the receiver.
    """

    sender: int
    receiver: int
    gradients: bool
    chunk: int


Message = tuple[Channel, int, int]
"""Channel, minibatch and microbatch; messages sort, so that both ends can agree on an order."""

_Channels = dict[tuple[type[Instruction], int], Channel]
"""From kind and chunk of an instruction."""


class MessageFlow:
    """The messages of a schedule; those between two chunks of one rank included.

    Parameters
    ----------
    schedule : Schedule
        Of which only stages and chunks are looked at.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._made: list[_Channels] = [{} for _ in range(schedule.stages)]
        self._needed: list[_Channels] = [{} for _ in range(schedule.stages)]
        self._carried: list[_Channels] = [{} for _ in range(schedule.stages)]
        for stage in range(schedule.stages):
            for chunk in range(schedule.chunks):
                if not schedule.is_last(stage, chunk):
                    after, chunk_after = schedule.after(stage, chunk)
                    self._join((stage, chunk), Channel(stage, after, False, chunk_after))
                if not schedule.is_first(stage, chunk):
                    before, chunk_before = schedule.before(stage, chunk)
                    self._join((stage, chunk), Channel(stage, before, True, chunk_before))

    def _join(self, source: tuple[int, int], channel: Channel) -> None:
        """Note a channel at its source, given as stage and chunk, and at its end."""
        stage, chunk = source
        computations = (Backward, InputGradient) if channel.gradients else (Forward,)
        send, receive = (
            (SendGradients, ReceiveGradients) if channel.gradients else (SendActivations, ReceiveActivations)
        )
        for computation in computations:
            self._made[stage][computation, chunk] = channel
            self._needed[channel.receiver][computation, channel.chunk] = channel
        self._carried[stage][send, chunk] = channel
        self._carried[channel.receiver][receive, channel.chunk] = channel

    def made(self, stage: int, instruction: Instruction) -> Message | None:
        """The message whose content a computation makes."""
        return _message(self._made[stage], instruction)

    def needed(self, stage: int, instruction: Instruction) -> Message | None:
        """The message that a computation needs."""
        return _message(self._needed[stage], instruction)

    def carried(self, stage: int, instruction: Instruction) -> Message | None:
        """The message that a send sends or a receive receives."""
        return _message(self._carried[stage], instruction)


def _message(channels: _Channels, instruction: Instruction) -> Message | None:
    channel = channels.get((type(instruction), instruction.chunk))
    return None if channel is None else (channel, instruction.minibatch, instruction.microbatch)
