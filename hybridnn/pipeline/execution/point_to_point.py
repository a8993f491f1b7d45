"""Messages between stages: receiver and sender with a ring of buffers each; receives are started ahead of their use.

A channel is one kind of message (activations or gradients) from one chunk to the next; its messages arrive in the order
of the schedule. Sent arrays are copied to a buffer of the sender and received ones out of a buffer of the receiver, so
the layers never access a buffer that belongs to a started MPI operation.

A stage distributes the samples of a microbatch over its batch ranks by the block partition. Two stages with different
numbers of batch ranks distribute them differently, so a block may be sent in several pieces. All ranks of a model group
hold the same columns of a stage's output and of its input gradient; every model rank of the receiving stage receives
from one model rank of the sending stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

from numpy.typing import DTypeLike

from hybridnn.comm.blocks import block_bounds
from hybridnn.comm.group import Request
from hybridnn.nn.kernels import Array, Kernels
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.pipeline.schedules.instructions import Instruction
from hybridnn.pipeline.schedules.program import ChunkPlan


class StagePosition(NamedTuple):
    """Coordinates of a rank: its stage, and its batch and model rank within the stage."""

    stage: int
    batch_rank: int
    model_rank: int


class ColumnRoute(NamedTuple):
    """Columns ``start`` to ``stop - 1`` of this rank's block of a microbatch, and the rank at the other end."""

    peer: StagePosition
    start: int
    stop: int


def pieces_sent(
    widths: Sequence[tuple[int, int]], sender: StagePosition, stage: int, samples: int
) -> list[ColumnRoute]:
    """Pieces that `sender` sends to `stage`, of a microbatch with so many samples over all ranks.

    `widths` are the numbers of batch and of model ranks of every stage.
    """
    receivers = range(sender.model_rank, widths[stage][1], widths[sender.stage][1])
    return [piece for model_rank in receivers for piece in _pieces(widths, sender, stage, model_rank, samples)]


def pieces_received(
    widths: Sequence[tuple[int, int]], receiver: StagePosition, stage: int, samples: int
) -> list[ColumnRoute]:
    """Pieces that `receiver` receives from `stage`; parameters as for `pieces_sent`."""
    return _pieces(widths, receiver, stage, receiver.model_rank % widths[stage][1], samples)


def _pieces(
    widths: Sequence[tuple[int, int]], own: StagePosition, stage: int, model_rank: int, samples: int
) -> list[ColumnRoute]:
    """Intersections of this rank's block with the blocks of the batch ranks of the other stage."""
    first, end = block_bounds(samples, widths[own.stage][0], own.batch_rank)
    pieces = []
    for batch_rank in range(widths[stage][0]):
        other_first, other_end = block_bounds(samples, widths[stage][0], batch_rank)
        start, stop = max(first, other_first), min(end, other_end)
        if start < stop:
            pieces.append(ColumnRoute(StagePosition(stage, batch_rank, model_rank), start - first, stop - first))
    return pieces


EXTRA_BUFFERS = 1
"""Per channel: receives started ahead of the schedule, and sends in flight while the next message is packed."""

About = tuple[Instruction, int]  # the instruction of a message, and the number of its optimizer step

ExpectedMessage = tuple[About, int]
"""Instruction and step of a message, and the samples of its microbatch over all ranks."""

Routes = Callable[[int], list[ColumnRoute]]
"""Maps the number of samples of a microbatch to the pieces that this rank sends or receives."""


class _Piece(NamedTuple):
    """A part of a message, for one rank of the other stage."""

    block: Array  # contiguous view of a buffer, shape (features, columns)
    peer: int  # rank of the grid
    columns: slice  # of this rank's block of the microbatch
    is_first: bool  # of the pieces with these columns, which several model ranks receive


class _Channel:
    """An end of a channel, with a ring of buffers on the device of `kernels`.

    Parameters
    ----------
    tag : int
        MPI tag of its messages.
    features : int
        Elements per sample.
    capacity : int
        Largest number of samples of a microbatch on this rank.
    depth : int
        Number of buffers: receives started ahead, or messages packed and not yet sent.
    """

    def __init__(
        self,
        grid: ProcessGrid,
        kernels: Kernels,
        dtype: DTypeLike,
        tag: int,
        routes: Routes,
        features: int,
        capacity: int,
        depth: int,
    ) -> None:
        self._group, self._rank_at, self._kernels = grid.world, grid.rank_at, kernels
        self._tag, self._routes, self._features = tag, routes, features
        self._buffers = [kernels.empty((features * capacity,), dtype) for _ in range(depth)]
        self._ring = deque(range(depth))  # numbers of the free buffers
        self._pieces = cache(self._make_pieces)
        self.nbytes = sum(buffer.nbytes for buffer in self._buffers)

    def _make_pieces(self, number: int, samples: int) -> list[_Piece]:
        """The pieces of a message in the buffer of a number, for the samples of a microbatch."""
        array, pieces, columns_before = self._buffers[number], [], set()
        for peer, start, stop in self._routes(samples):
            block = array[self._features * start : self._features * stop].reshape(self._features, stop - start)
            is_first = (start, stop) not in columns_before
            columns_before.add((start, stop))
            pieces.append(_Piece(block, self._rank_at(*peer), slice(start, stop), is_first))
        return pieces


class Receiver(_Channel):
    """Receives the messages of one channel."""

    _expected: Iterator[ExpectedMessage]
    _in_flight: deque[tuple[int, list[tuple[_Piece, Request]]]]

    def begin(self, messages: Iterable[ExpectedMessage]) -> None:
        """Set the sequence of messages and start the first receives."""
        self._expected, self._in_flight = iter(messages), deque()
        for _ in range(len(self._ring)):
            self._begin_next()

    def receive(self, out: Array) -> None:
        """Wait for the next message and copy it to `out`, shape (features, columns of this rank)."""
        buffer, pieces = self._in_flight.popleft()
        for piece, request in pieces:
            request.wait()
            self._kernels.copy(piece.block, out[:, piece.columns])
        self._ring.append(buffer)
        self._begin_next()

    def _begin_next(self) -> None:
        message = next(self._expected, None)
        if message is None:
            return
        about, samples = message
        buffer = self._ring.popleft()
        pieces = [
            (piece, self._group.ireceive(piece.block, piece.peer, self._tag, about=about))
            for piece in self._pieces(buffer, samples)
        ]
        self._in_flight.append((buffer, pieces))


class Sender(_Channel):
    """Sends the messages of one channel; parameters as for `_Channel`."""

    def __init__(self, *channel: Any) -> None:
        super().__init__(*channel)
        self._packed: deque[tuple[int, list[_Piece]]] = deque()
        self._sent: deque[tuple[int, list[Request]]] = deque()

    def pack(self, array: Array, samples: int) -> None:
        """Copy `array`, shape (features, columns of this rank), to a free buffer; `send` sends it later."""
        if not self._ring:
            self._finish_oldest()
        buffer = self._ring.popleft()
        pieces = self._pieces(buffer, samples)
        for piece in pieces:
            if piece.is_first:
                self._kernels.copy(array[:, piece.columns], piece.block)
        self._packed.append((buffer, pieces))

    def send(self, about: About) -> None:
        """Start to send the oldest packed message."""
        buffer, pieces = self._packed.popleft()
        requests = [self._group.isend(piece.block, piece.peer, self._tag, about=about) for piece in pieces]
        self._sent.append((buffer, requests))

    def finish(self) -> None:
        """Wait for all sends."""
        while self._sent:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        buffer, requests = self._sent.popleft()
        for request in requests:
            request.wait()
        self._ring.append(buffer)


End = TypeVar("End", Receiver, Sender)

Channels = tuple[Receiver | None, Receiver | None, Sender | None, Sender | None]
"""Those of a chunk: of its input, of the gradient of its output, of its output, and of the gradient of its input."""


def make_channels(plan: ChunkPlan, grid: ProcessGrid, chunk: ModelChunk, capacity: int) -> Channels:
    """The channels of a chunk; parameters as for `hybridnn.pipeline.execution.chunk_runtime.ChunkRuntime`."""
    own_position = StagePosition(grid.pipeline_rank, grid.batch_rank, grid.model_rank)
    first, last = chunk.shards[0].layer, chunk.shards[-1].layer

    def end(kind: type[End], to_chunk: int, gradients: bool, neighbor: int, features: int, depth: int) -> End:
        """The sender or receiver of a channel to a chunk."""
        pieces = pieces_sent if kind is Sender else pieces_received
        routes, tag = partial(pieces, grid.stages, own_position, neighbor), 2 * to_chunk + gradients
        depth += EXTRA_BUFFERS
        return kind(grid, chunk.kernels, chunk.weights.dtype, tag, routes, features, capacity, depth)

    input_receiver = gradient_receiver = output_sender = gradient_sender = None
    if plan.before is not None:
        before, chunk_before = plan.before
        input_receiver = end(Receiver, plan.index, False, before, first.inputs, plan.depths.input_receiver)
        gradient_sender = end(Sender, chunk_before, True, before, first.inputs, plan.depths.gradient_sender)
    if plan.after is not None:
        after, chunk_after = plan.after
        gradient_receiver = end(Receiver, plan.index, True, after, last.outputs, plan.depths.gradient_receiver)
        output_sender = end(Sender, chunk_after, False, after, last.outputs, plan.depths.output_sender)
    return input_receiver, gradient_receiver, output_sender, gradient_sender
