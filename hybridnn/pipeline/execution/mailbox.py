"""Messages between stages: buffers with one owner at a time, receives begun before they are needed.

A channel is one kind of message (activations or gradients) from one chunk to the next; its messages arrive in the order
of the schedule. What is sent is copied to a buffer of the outbox, and what is received is copied out of a buffer of the
inbox, so neither is touched by a layer while MPI owns it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from numpy.typing import DTypeLike

from hybridnn.comm.request import Request
from hybridnn.kernels.backend import Array, Kernels
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.execution.routes import ColumnRoute
from hybridnn.pipeline.schedules.instructions import Instruction

About = tuple[Instruction, int]
"""The instruction that a message belongs to, and the number of its optimizer step."""

Message = tuple[About, int]
"""What a message is about, and the samples of its microbatch over all ranks."""

Routes = Callable[[int], list[ColumnRoute]]
"""From the samples of a microbatch to this rank's pieces."""


class Channel(NamedTuple):
    """One kind of message between two chunks.

    Attributes
    ----------
    tag : int
        Of its messages.
    routes : callable
        From the samples of a microbatch to the pieces that this rank sends, or receives.
    features : int
        Elements per sample.
    capacity : int
        Most samples of a microbatch on this rank.
    depth : int
        Buffers: receives started ahead, or messages packed and not yet sent.
    """

    tag: int
    routes: Routes
    features: int
    capacity: int
    depth: int


class _Buffers:
    """A ring of flat buffers for the messages of a channel.

    Parameters
    ----------
    grid : ProcessGrid
    kernels : Kernels
        Of the device that holds the arrays.
    channel : Channel
    dtype : dtype
    """

    def __init__(self, grid: ProcessGrid, kernels: Kernels, channel: Channel, dtype: DTypeLike) -> None:
        self._group, self._rank_at, self._kernels = grid.world, grid.rank_at, kernels
        self._tag, self._routes, self._features = channel.tag, channel.routes, channel.features
        shape = (channel.features * channel.capacity,)
        self._ring = deque(kernels.empty(shape, dtype) for _ in range(channel.depth))
        self.nbytes = sum(buffer.nbytes for buffer in self._ring)

    def _block(self, buffer: Array, piece: ColumnRoute) -> Array:
        """Contiguous part of a buffer for a piece, shape (features, columns)."""
        features = self._features
        return buffer[features * piece.start : features * piece.stop].reshape(features, piece.stop - piece.start)


class Inbox(_Buffers):
    """Receives the messages of one channel."""

    _expected: Iterator[Message]
    _begun: deque[tuple[Array, list[tuple[ColumnRoute, Request]]]]

    def begin(self, messages: Iterable[Message]) -> None:
        """Expect `messages`, in this order, and start to receive the first."""
        self._expected = iter(messages)
        self._begun = deque()
        for _ in range(len(self._ring)):
            self._begin_next()

    def take(self, out: Array) -> None:
        """Wait for the next message and copy it to `out`, shape (features, columns of this rank)."""
        buffer, pieces = self._begun.popleft()
        for piece, request in pieces:
            request.wait()
            self._kernels.copy(self._block(buffer, piece), out[:, piece.start : piece.stop])
        self._ring.append(buffer)
        self._begin_next()

    def _begin_next(self) -> None:
        message = next(self._expected, None)
        if message is None:
            return
        about, samples = message
        buffer = self._ring.popleft()
        pieces = [
            (
                piece,
                self._group.ireceive(self._block(buffer, piece), self._rank_at(*piece.peer), self._tag, about=about),
            )
            for piece in self._routes(samples)
        ]
        self._begun.append((buffer, pieces))


class Outbox(_Buffers):
    """Sends the messages of one channel.

    Parameters
    ----------
    grid, kernels, channel, dtype
        As for `Inbox`.
    synchronous : bool
        Every send waits until its receiver has started to receive (``MPI_Ssend``), so that nothing depends on messages
        that MPI buffers.
    """

    def __init__(
        self, grid: ProcessGrid, kernels: Kernels, channel: Channel, dtype: DTypeLike, *, synchronous: bool
    ) -> None:
        super().__init__(grid, kernels, channel, dtype)
        self._synchronous = synchronous
        self._packed: deque[tuple[Array, list[ColumnRoute]]] = deque()
        self._sent: deque[tuple[Array, list[Request]]] = deque()

    def pack(self, array: Array, samples: int) -> None:
        """Copy `array`, shape (features, columns of this rank), to a free buffer; `send` sends it later."""
        if not self._ring:
            self._finish_oldest()
        buffer = self._ring.popleft()
        pieces = self._routes(samples)
        for start, stop in {(piece.start, piece.stop) for piece in pieces}:
            self._kernels.copy(array[:, start:stop], self._block(buffer, ColumnRoute(pieces[0].peer, start, stop)))
        self._packed.append((buffer, pieces))

    def send(self, about: About) -> None:
        """Begin to send what was packed first."""
        buffer, pieces = self._packed.popleft()
        requests = [
            self._group.isend(
                self._block(buffer, piece),
                self._rank_at(*piece.peer),
                self._tag,
                synchronous=self._synchronous,
                about=about,
            )
            for piece in pieces
        ]
        self._sent.append((buffer, requests))
        if self._synchronous:
            self._finish_oldest()

    def finish(self) -> None:
        """Return when every message has been sent."""
        while self._sent:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        buffer, requests = self._sent.popleft()
        for request in requests:
            request.wait()
        self._ring.append(buffer)
