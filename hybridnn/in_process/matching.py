"""Messages and collectives among ranks of one process: which calls meet, what they deliver, and when.

The scheduler lets one rank at a time in. Sends wait for their receive (rendezvous) unless
they are small and `eager_bytes` says otherwise. Collectives of a communicator meet by their number. A receive buffer
is filled with NaN until its wait, and a send buffer is compared with what it was when its send began.
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybridnn.in_process.buffers import Flat, ReceiveBuffer, equal_bytes
from hybridnn.in_process.deadlock import BlockedRank, deadlock
from hybridnn.in_process.drawing import draw
from hybridnn.in_process.errors import CommunicationError, DeadlockError
from hybridnn.in_process.records import Moment, Record, message_of
from hybridnn.in_process.scheduler import Scheduler
from hybridnn.in_process.source_lines import Line, Site, calling_line, with_caller
from hybridnn.in_process.virtual_clock import Clock
from hybridnn.utils.text import name_ranks

ANY_TAG = -1


@dataclass(slots=True, eq=False)
class Pending:
    """A message or collective that a rank has begun.

    Attributes
    ----------
    rank : int
        Of the program.
    name : str
        The operation.
    nbytes : int
    line : tuple
        Where it was begun.
    begun : tuple
        When: calls of all ranks before it, and seconds of its rank.
    peer : int
        The other rank of a message, the root of a collective, or -1.
    members : tuple of int
        Ranks that take part in a collective.
    within : tuple of int
        Ranks of the communicator, where these are not all.
    entries : mapping
        What the ranks that have entered it brought.
    done : bool
        Whether it has met its other side.
    end : float
        When it ended on the virtual clock.
    deliver : callable or None
        Copies what arrived into its buffer; at the wait, or at once with early delivery.
    target : ReceiveBuffer or None
        Of a receive.
    sent, buffer : ndarray or None
        What a send or a collective began with, and its send buffer, which must not change before its wait.
    number : int
        The same for a send and its receive; -1 before they meet, and for collectives.
    waited : tuple or None
        When its wait, or a test that succeeded, began; as `begun`.
    """

    rank: int
    name: str
    nbytes: int
    line: Line
    begun: Moment
    peer: int = -1
    tag: int = 0
    members: tuple[int, ...] = ()
    within: tuple[int, ...] = ()
    entries: Mapping[int, CollectiveEntry] = field(default_factory=dict)
    done: bool = False
    end: float = 0.0
    deliver: Callable[[], None] | None = None
    target: ReceiveBuffer | None = None
    sent: Flat | None = None
    buffer: Flat | None = None
    number: int = -1
    waited: Moment | None = None

    @property
    def site(self) -> Site:
        """Where it was begun."""
        return Site(*self.line)

    def awaited(self) -> frozenset[int]:
        """Ranks that have to arrive before it can end."""
        if not self.members:
            return frozenset([self.peer])
        return frozenset(self.members) - {entry.pending.rank for entry in self.entries.values()}

    def __str__(self) -> str:
        size = f" of {self.nbytes:,} bytes" if self.nbytes else ""
        tag = f" with tag {self.tag}" if self.tag not in (0, ANY_TAG) else ""
        of = f", in the communicator of {name_ranks(self.within)}" if self.within else ""
        if self.name in ("send", "receive"):
            return f"{self.name}{size} {'to' if self.name == 'send' else 'from'} rank {self.peer}{tag}{of}"
        return f"{self.name}{size}{of}"


@dataclass(slots=True, eq=False)
class CollectiveEntry:
    """What a rank brings to a collective.

    Attributes
    ----------
    signature : tuple
        What must be equal on all ranks: the operation, its root, how it combines.
    payload : object
        Arrays or values for the function that carries the collective out.
    pending : Pending
    part : int or None
        Bytes of this rank's part, where the whole is the sum of them.
    """

    signature: tuple[Any, ...]
    payload: Any
    pending: Pending
    part: int | None = None


def _queues() -> defaultdict[tuple[int, int], deque[Pending]]:
    return defaultdict(deque)


@dataclass(slots=True, eq=False)
class Context:
    """What the ranks of one communicator have in common.

    Attributes
    ----------
    members : tuple of int
        Ranks of the program.
    rounds : dict
        Collectives that have begun, by number: what each rank of the communicator brought.
    sends, receives : dict
        Messages that have not met, by (sender, receiver) in the communicator.
    """

    members: tuple[int, ...]
    rounds: dict[int, dict[int, CollectiveEntry]] = field(default_factory=dict)
    sends: defaultdict[tuple[int, int], deque[Pending]] = field(default_factory=_queues)
    receives: defaultdict[tuple[int, int], deque[Pending]] = field(default_factory=_queues)


class MessageEngine:
    """Carries out the calls of all ranks.

    Parameters
    ----------
    size : int
        Ranks.
    clock : Clock
    seed : int or None
        Of the order of ranks, see `Scheduler`.
    eager_bytes : int
        Sends up to this size end without their receive.
    late : bool
        Whether data arrive at the wait, and buffers are checked until then.
    keep : int
        How many ended messages are kept.
    """

    def __init__(self, size: int, clock: Clock, *, seed: int | None, eager_bytes: int, late: bool, keep: int) -> None:
        self.size, self.clock, self._eager, self.late = size, clock, eager_bytes, late
        self.scheduler = Scheduler(size, seed, self._verdict)
        self.records: deque[Record] = deque(maxlen=keep)
        self.count = 0
        self.begun: dict[Pending, None] = {}
        self.unreceived: dict[Pending, None] = {}
        self._waiting: dict[int, list[Pending]] = {}
        self._receives: tuple[dict[Pending, None], ...] = tuple({} for _ in range(size))

    # -- messages ----------------------------------------------------------------------------------------------------

    def send(self, context: Context, source: int, target: int, tag: int, buffer: Flat, *, synchronous: bool) -> Pending:
        """Begin to send; `source` and `target` are numbers in the communicator."""
        pending = self._begin(context, source, "send", buffer.nbytes, context.members[target], tag)
        self.lend(pending, buffer.copy(), buffer)
        queue = context.receives[source, target]
        for receive in queue:
            if receive.tag in (tag, ANY_TAG):
                queue.remove(receive)
                self._meet(pending, receive)
                return pending
        context.sends[source, target].append(pending)
        self.unreceived[pending] = None
        if not synchronous and buffer.nbytes <= self._eager:
            self._end(pending, self.clock.now[pending.rank])
        return pending

    def receive(self, context: Context, source: int, target: int, tag: int, buffer: Flat) -> Pending:
        """Begin to receive; `source` and `target` are numbers in the communicator."""
        pending = self._begin(context, target, "receive", buffer.nbytes, context.members[source], tag)
        pending.target = self.receive_buffer(buffer, may_stay=True)
        self._receives[pending.rank][pending] = None
        queue = context.sends[source, target]
        for send in queue:
            if tag in (send.tag, ANY_TAG):
                queue.remove(send)
                self._meet(send, pending)
                return pending
        context.receives[source, target].append(pending)
        return pending

    def _meet(self, send: Pending, receive: Pending) -> None:
        self.unreceived.pop(send, None)
        data, target = send.sent, receive.target
        assert data is not None
        assert target is not None
        buffer = target.array
        if data.dtype != buffer.dtype or data.size > buffer.size:
            raise CommunicationError(
                f"rank {send.rank} sends {data.size:,} elements of {data.dtype} ({send.site}), but rank {receive.rank} "
                f"receives up to {buffer.size:,} of {buffer.dtype} ({receive.site})"
            )
        end = self.clock.message(send.rank, receive.rank, data.nbytes, send.begun[1], receive.begun[1])
        receive.deliver, receive.nbytes = target.takes(data, at_most=True), data.nbytes
        send.number = receive.number = self.count
        if not send.done:
            self._end(send, end)
        self._end(receive, end)

    # -- collectives -------------------------------------------------------------------------------------------------

    def collective(
        self,
        context: Context,
        rank: int,
        number: int,
        signature: tuple[Any, ...],
        payload: Any,
        act: Callable[[Sequence[Any]], Sequence[Callable[[], None] | None]],
        *,
        nbytes: int = 0,
        part: int | None = None,
        root: int = -1,
    ) -> Pending:
        """Enter the collective `number` of a communicator.

        Parameters
        ----------
        context : Context
        rank, number : int
            This rank in the communicator, and how many collectives it has entered there before.
        signature : tuple
            The operation, and what else must be the same on all ranks.
        payload : object
        act : callable
            Carries it out with everybody's payload; returns for each rank what delivers its result.
        nbytes : int
            Of the full vector.
        part : int, optional
            Bytes of this rank's part, where the full vector is made of such.
        root : int
            Number in the communicator, or -1.
        """
        name = signature[0]
        pending = self._begin(context, rank, name, nbytes, context.members[root] if root >= 0 else -1)
        entries = context.rounds.setdefault(number, {})
        for other in entries.values():
            if other.signature != signature:
                raise CommunicationError(
                    f"ranks entered different collectives: rank {other.pending.rank} {_words(other.signature)} "
                    f"({other.pending.site}), rank {pending.rank} {_words(signature)} ({pending.site})"
                )
        entries[rank] = CollectiveEntry(signature, payload, pending, part)
        pending.members, pending.entries = context.members, entries
        if len(entries) == len(context.members):
            del context.rounds[number]
            self._carry_out(name, [entries[one] for one in range(len(entries))], act)
        return pending

    def _carry_out(
        self,
        name: str,
        entries: Sequence[CollectiveEntry],
        act: Callable[[Sequence[Any]], Sequence[Callable[[], None] | None]],
    ) -> None:
        try:
            delivers = act([entry.payload for entry in entries])
        except (ValueError, IndexError, TypeError) as error:
            places = "; ".join(f"rank {entry.pending.rank}: {entry.pending.site}" for entry in entries)
            raise CommunicationError(f"the arrays of a {name} do not fit: {error} ({places})") from error
        parts = [entry.part for entry in entries if entry.part is not None]
        nbytes = sum(parts) if parts else max(entry.pending.nbytes for entry in entries)
        end = self.clock.collective(name, nbytes, [entry.pending.begun[1] for entry in entries])
        for entry, deliver in zip(entries, delivers, strict=True):
            entry.pending.deliver = deliver
            self._end(entry.pending, end)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait(self, pendings: Sequence[Pending]) -> None:
        """Return when all have ended; they are of one rank."""
        if not pendings:
            return
        rank = pendings[0].rank
        began = self.count, self.clock.now[rank]
        missing = [pending for pending in pendings if not pending.done]
        if missing:
            for pending in missing:
                pending.waited = began
            self._waiting[rank] = missing
            self.scheduler.block(rank, len(missing))
            del self._waiting[rank]
        for pending in pendings:
            self._finish(pending, began)

    def test(self, pendings: Sequence[Pending]) -> bool:
        """Whether all have ended, after the other ranks had their turn where they have not."""
        rank = pendings[0].rank
        if not all(pending.done for pending in pendings):
            self._waiting[rank] = [pending for pending in pendings if not pending.done]
            self.scheduler.poll(rank)
            del self._waiting[rank]
        if not all(pending.done for pending in pendings):
            return False
        self.wait(pendings)
        return True

    def receive_buffer(self, array: Flat, *, may_stay: bool = False) -> ReceiveBuffer:
        """An array that data will arrive in; with late delivery it is unreadable until then."""
        return ReceiveBuffer(array, unreadable=self.late, may_stay=may_stay)

    def lend(self, pending: Pending, sent: Flat, buffer: Flat) -> None:
        """Note what a call sends, and with late delivery the buffer that must not change before its wait.

        Raises
        ------
        CommunicationError
            If data have yet to arrive in that buffer.
        """
        pending.sent, pending.buffer = sent, buffer if self.late else None
        for receive in self._receives[pending.rank] if self.late else ():
            if receive.target is not None and np.may_share_memory(receive.target.array, buffer):
                raise CommunicationError(
                    f"rank {pending.rank} sends what its {receive} has not brought yet: sent at {pending.site}, "
                    f"received at {receive.site}; wait for that first"
                )

    def _begin(self, context: Context, number: int, name: str, nbytes: int, peer: int, tag: int = 0) -> Pending:
        self.scheduler.progress()
        self.count += 1
        rank = context.members[number]
        pending = Pending(rank, name, nbytes, calling_line(), (self.count, self.clock.now[rank]), peer, tag)
        if len(context.members) < self.size:
            pending.within = context.members
        self.begun[pending] = None
        return pending

    def _end(self, pending: Pending, end: float) -> None:
        """Both sides have come."""
        pending.done, pending.end = True, end
        if not self.late and pending.deliver is not None:
            pending.deliver()
            pending.deliver = None
        waiting = self._waiting.get(pending.rank)
        if waiting is not None and any(pending is one for one in waiting):
            self.scheduler.done(pending.rank)

    def _finish(self, pending: Pending, began: Moment) -> None:
        """The rank has waited: the data are there, and its clock goes on."""
        if pending not in self.begun:
            return
        del self.begun[pending]
        now = self.clock.now
        now[pending.rank] = max(now[pending.rank], pending.end)
        if pending.name == "receive":
            self._receives[pending.rank].pop(pending, None)
            if pending.target is not None and self.late and pending.target.is_touched:
                raise CommunicationError(
                    f"rank {pending.rank} wrote to the buffer of its {pending} before the wait: received at "
                    f"{pending.site}, waited for at {Site(*calling_line())}"
                )
        if pending.deliver is not None:
            pending.deliver()
        if pending.sent is not None and pending.buffer is not None and not equal_bytes(pending.sent, pending.buffer):
            raise CommunicationError(
                f"rank {pending.rank} changed the buffer of its {pending} before the wait: "
                f"{'sent' if pending.name == 'send' else 'begun'} at {pending.site}, "
                f"waited for at {Site(*calling_line())}"
            )
        pending.buffer = pending.target = pending.deliver = None
        self.records.append(self._record(pending, began, arrived=True))

    def _record(self, pending: Pending, began: Moment, *, arrived: bool) -> Record:
        rank = pending.rank
        ended = self.count, self.clock.now[rank]
        call = rank, pending.name, pending.peer, pending.nbytes
        return (*call, pending.begun, began, ended, pending.line, pending.number, arrived)

    def leftovers(self) -> list[str]:
        """Messages that were not received and calls without a wait, once all ranks have ended."""
        lost = [f"rank {one.rank}: {one} was not received ({one.site})" for one in self.unreceived]
        open_ = [one for one in self.begun if one not in self.unreceived]
        return lost + [f"rank {one.rank}: no wait for its {one} ({one.site})" for one in open_]

    # -- verdicts ----------------------------------------------------------------------------------------------------

    def _verdict(self) -> DeadlockError:
        waiting = {}
        self.count += 1  # what waits for ever lasts longer than what has ended
        for rank, pendings in self._waiting.items():
            unmet = [pending for pending in pendings if not pending.done]
            awaited = frozenset().union(*(pending.awaited() for pending in unmet))
            frame = self.scheduler.frame_of(rank) or sys._getframe()
            waiting[rank] = BlockedRank(rank, tuple((str(one), with_caller(one.site, frame)) for one in unmet), awaited)
            self.records += [self._record(one, one.waited or one.begun, arrived=False) for one in unmet]
        return deadlock(
            waiting, self.scheduler.ended, self.count - 1, draw(self.size, tuple(map(message_of, self.records)))
        )


def _words(signature: tuple[Any, ...]) -> str:
    name, *rest = signature
    return f"{name}({', '.join(map(str, rest))})" if rest else str(name)
