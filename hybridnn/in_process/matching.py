"""Matching of the calls of all ranks: sends with receives, and the entries of a collective with one another.

Sends wait for their receive (rendezvous) unless they are small and `eager_bytes` allows it. Collectives of a
communicator match by their number. A receive buffer holds NaN until its wait, and a send buffer is compared with its
content at the call. Messages and collectives take time on a virtual clock.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridnn.in_process.buffers import Collective, Contribution, Flat, ReceiveBuffer, equal_bytes
from hybridnn.in_process.communication_errors import BlockedRank, CommunicationError, DeadlockError, describe_deadlock
from hybridnn.in_process.records import Line, Moment, Record, Site, calling_line, describe_line, draw_calls, message_of
from hybridnn.in_process.scheduler import Scheduler
from hybridnn.utils.checks import require_number
from hybridnn.utils.text import name_ranks

if TYPE_CHECKING:
    from hybridnn.cost.machine import Machine

ANY_TAG = -1


class VirtualClock:
    """Communication time of all ranks, exact and repeatable: `now` has seconds since the start, by rank.

    A message begins when both sides have called and the sender's and the receiver's port are free, and takes alpha + n
    beta; a collective begins when its last rank has entered, and takes the time of the cost models (an all-to-all: one
    message to each other rank, in turn). A `machine` replaces alpha and beta, seconds per message and per byte, by its
    links and collectives inside a node. Computing takes no time.
    """

    def __init__(self, size: int, alpha: float = 0.0, beta: float = 0.0, machine: Machine | None = None) -> None:
        self._alpha, self._beta = require_number("alpha", alpha, at_least=0), require_number("beta", beta, at_least=0)
        self._machine = machine
        self.now = [0.0] * size
        self._sending, self._receiving = [0.0] * size, [0.0] * size
        self._collective = lru_cache(maxsize=None)(self._collective_seconds)

    def message(self, source: int, target: int, nbytes: int, sent: float, received: float) -> float:
        """Arrival of a message whose two sides were called at the times `sent` and `received`."""
        begun = max(sent, received, self._sending[source], self._receiving[target])
        end = begun + self._message_seconds(nbytes)
        self._sending[source] = self._receiving[target] = end
        return end

    def collective(self, name: str, nbytes: int, entered: Sequence[float]) -> float:
        """End of a collective on all ranks, which entered it at these times."""
        return max(entered) + self._collective(name, nbytes, len(entered))

    def _message_seconds(self, nbytes: int) -> float:
        if self._machine is None:
            return self._alpha + nbytes * self._beta
        return self._machine.message_seconds(nbytes)

    def _collective_seconds(self, name: str, nbytes: int, ranks: int) -> float:
        if ranks == 1:
            return 0.0
        from hybridnn.cost.collectives import ALGORITHMS, counts  # a single rank without MPI needs no cost model

        if name == "alltoall":
            return (ranks - 1) * self._message_seconds(nbytes // ranks)
        if name not in ALGORITHMS:
            return 0.0
        if self._machine is not None:
            return self._machine.collective_seconds(name, nbytes, ranks)
        return min(
            counts(name, algorithm, nbytes, ranks).seconds(self._alpha, self._beta) for algorithm in ALGORITHMS[name]
        )


@dataclass(slots=True, eq=False)
class Pending:
    """A message or collective that a rank has begun.

    `rank`, `peer` and `members` are ranks of the program, not of the communicator. Fields that a `Message` has too mean
    the same.
    """

    rank: int
    name: str
    nbytes: int
    line: Line
    begun: Moment
    peer: int = -1
    tag: int = 0
    members: tuple[int, ...] = ()  # ranks that take part in a collective
    within: tuple[int, ...] = ()  # ranks of the communicator, where these are not all
    # Entries of the ranks that have entered a collective.
    entries: Mapping[int, CollectiveEntry] = field(default_factory=dict)
    done: bool = False  # whether it is matched
    end: float = 0.0  # end on the virtual clock
    deliver: Any = None  # copies the data that arrived into the buffer; at the wait, or at once with early delivery
    target: ReceiveBuffer | None = None  # buffer of a receive or a collective
    sent: Flat | None = None  # content of the send buffer at the call
    buffer: Flat | None = None  # the send buffer, which must not change before the wait
    number: int = -1
    waited: Moment | None = None  # beginning of the wait, or of a test that succeeded

    @property
    def site(self) -> Site:
        """Line of the call."""
        return Site(*self.line)

    def awaited(self) -> frozenset[int]:
        """Ranks that have to make a call before it can end."""
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
    """A rank's entry into a collective; its signature, operation and arguments, must be equal on all ranks."""

    signature: tuple[Any, ...]
    contribution: Contribution
    pending: Pending


Queues = defaultdict[tuple[int, int], deque[Pending]]  # unmatched messages by (sender, receiver) in the communicator


@dataclass(slots=True, eq=False)
class Context:
    """State that the ranks of one communicator share."""

    members: tuple[int, ...]  # ranks of the program
    entered: Counter[int] = field(default_factory=Counter)  # collectives that each rank of the communicator has entered
    # Collectives that have begun, by number: the entry of each rank of the communicator.
    rounds: dict[int, dict[int, CollectiveEntry]] = field(default_factory=dict)
    sends: Queues = field(default_factory=lambda: defaultdict(deque))
    receives: Queues = field(default_factory=lambda: defaultdict(deque))


class MessageEngine:
    """Carries out the calls of all ranks, in the order of the `seed` (see `Scheduler`).

    Sends of up to `eager_bytes` end without their receive. If `late`, data arrive at the wait, and buffers are checked
    until then. The last `keep` records of ended calls are kept.
    """

    def __init__(
        self,
        size: int,
        clock: VirtualClock,
        *,
        seed: int | None = None,
        eager_bytes: int = -1,
        late: bool = False,
        keep: int = 0,
    ) -> None:
        self.size, self.clock, self._eager, self._late = size, clock, eager_bytes, late
        self.scheduler = Scheduler(size, seed, self._deadlock)
        self.records: deque[Record] = deque(maxlen=keep)
        self._count = 0
        self._begun: dict[Pending, None] = {}
        self._unreceived: dict[Pending, None] = {}
        self._waiting: dict[int, list[Pending]] = {}
        self._receives: tuple[dict[Pending, None], ...] = tuple({} for _ in range(size))

    # -- messages ----------------------------------------------------------------------------------------------------

    def send(self, context: Context, source: int, target: int, tag: int, buffer: Flat, *, synchronous: bool) -> Pending:
        """Begin to send; `source` and `target` are ranks of the communicator."""
        pending = self._begin(context, source, "send", buffer.nbytes, context.members[target], tag)
        self._lend(pending, buffer.copy(), buffer)
        queue = context.receives[source, target]
        for receive in queue:
            if receive.tag in (tag, ANY_TAG):
                queue.remove(receive)
                self._match(pending, receive)
                return pending
        context.sends[source, target].append(pending)
        self._unreceived[pending] = None
        if not synchronous and buffer.nbytes <= self._eager:
            self._end(pending, self.clock.now[pending.rank])
        return pending

    def receive(self, context: Context, source: int, target: int, tag: int, buffer: Flat) -> Pending:
        """Begin to receive; `source` and `target` are ranks of the communicator."""
        pending = self._begin(context, target, "receive", buffer.nbytes, context.members[source], tag)
        pending.target = self.receive_buffer(buffer, may_stay=True)
        self._receives[pending.rank][pending] = None
        queue = context.sends[source, target]
        for send in queue:
            if tag in (send.tag, ANY_TAG):
                queue.remove(send)
                self._match(send, pending)
                return pending
        context.receives[source, target].append(pending)
        return pending

    def _match(self, send: Pending, receive: Pending) -> None:
        self._unreceived.pop(send, None)
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
        send.number = receive.number = self._count
        if not send.done:
            self._end(send, end)
        self._end(receive, end)

    # -- collectives -------------------------------------------------------------------------------------------------

    def collective(
        self,
        context: Context,
        rank: int,
        signature: tuple[Any, ...],
        contribution: Contribution,
        carry_out: Collective,
        root: int = -1,
    ) -> Pending:
        """Enter the next collective of a communicator; `rank` and `root` (-1 for none) are ranks of it.

        `signature` has the operation, and the arguments that must be the same on all ranks; the last rank that enters
        calls `carry_out`.
        """
        name = signature[0]
        peer = context.members[root] if root >= 0 else -1
        pending = self._begin(context, rank, name, contribution.nbytes, peer)
        number = context.entered[rank]
        context.entered[rank] += 1
        entries = context.rounds.setdefault(number, {})
        for other in entries.values():
            if other.signature != signature:
                raise CommunicationError(
                    f"ranks entered different collectives: rank {other.pending.rank} {_call(other.signature)} "
                    f"({other.pending.site}), rank {pending.rank} {_call(signature)} ({pending.site})"
                )
        entries[rank] = CollectiveEntry(signature, contribution, pending)
        pending.members, pending.entries = context.members, entries
        if len(entries) == len(context.members):
            del context.rounds[number]
            self._carry_out(name, [entries[member] for member in range(len(entries))], carry_out)
        if name != "allgather":  # which writes the own block at once
            pending.target = contribution.target
        if contribution.lent is not None:
            self._lend(pending, contribution.sent, contribution.lent)
        return pending

    def _carry_out(self, name: str, entries: Sequence[CollectiveEntry], carry_out: Collective) -> None:
        try:
            deliveries = carry_out([entry.contribution for entry in entries])
        except (ValueError, IndexError, TypeError) as error:
            places = "; ".join(f"rank {entry.pending.rank}: {entry.pending.site}" for entry in entries)
            raise CommunicationError(f"the arrays of a {name} do not fit: {error} ({places})") from error
        parts = [entry.contribution.part for entry in entries if entry.contribution.part is not None]
        nbytes = sum(parts) if parts else max(entry.contribution.nbytes for entry in entries)
        end = self.clock.collective(name, nbytes, [entry.pending.begun[1] for entry in entries])
        for entry, deliver in zip(entries, deliveries, strict=True):
            entry.pending.deliver = deliver
            self._end(entry.pending, end)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait(self, pendings: Sequence[Pending]) -> None:
        """Return when all calls, which are of one rank, have ended."""
        if not pendings:
            return
        rank = pendings[0].rank
        began = self._count, self.clock.now[rank]
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
        """Whether all calls have ended; where they have not, the other ranks run first."""
        rank = pendings[0].rank
        if not all(pending.done for pending in pendings):
            self._waiting[rank] = [pending for pending in pendings if not pending.done]
            self.scheduler.poll(rank)
            del self._waiting[rank]
        if not all(pending.done for pending in pendings):
            return False
        self.wait(pendings)
        return True

    def waiting(self) -> dict[int, tuple[str, ...]]:
        """Calls that each waiting rank waits for, with their lines."""
        return {
            rank: tuple(f"waits in {item}, at {item.site}" for item in pendings if not item.done)
            for rank, pendings in self._waiting.items()
        }

    def receive_buffer(self, array: Flat, *, may_stay: bool = False) -> ReceiveBuffer:
        """A receive buffer; with late delivery it is unreadable until the data arrive."""
        return ReceiveBuffer(array, unreadable=self._late, may_stay=may_stay)

    def _lend(self, pending: Pending, sent: Flat, buffer: Flat) -> None:
        """Note what a call sends and, with late delivery, the buffer that must not change before its wait."""
        pending.sent, pending.buffer = sent, buffer if self._late else None
        for receive in self._receives[pending.rank] if self._late else ():
            if receive.target is not None and np.may_share_memory(receive.target.array, buffer):
                raise CommunicationError(
                    f"rank {pending.rank} sends what its {receive} has not brought yet: sent at {pending.site}, "
                    f"received at {receive.site}; wait for that first"
                )

    def _begin(self, context: Context, member: int, name: str, nbytes: int, peer: int, tag: int = 0) -> Pending:
        self.scheduler.progress()
        self._count += 1
        rank = context.members[member]
        pending = Pending(rank, name, nbytes, calling_line(), (self._count, self.clock.now[rank]), peer, tag)
        if len(context.members) < self.size:
            pending.within = context.members
        self._begun[pending] = None
        return pending

    def _end(self, pending: Pending, end: float) -> None:
        """Mark a call as matched."""
        pending.done, pending.end = True, end
        if not self._late and pending.deliver is not None:
            pending.deliver()
            pending.deliver = None
        waiting = self._waiting.get(pending.rank)
        if waiting is not None and any(pending is other for other in waiting):
            self.scheduler.done(pending.rank)

    def _finish(self, pending: Pending, began: Moment) -> None:
        """After the wait: deliver the data, advance the clock of the rank, check the buffers."""
        if pending not in self._begun:
            return
        del self._begun[pending]
        now = self.clock.now
        now[pending.rank] = max(now[pending.rank], pending.end)
        if pending.name == "receive":
            self._receives[pending.rank].pop(pending, None)
        if pending.target is not None and self._late and pending.target.is_touched:
            raise CommunicationError(
                f"rank {pending.rank} wrote to the buffer of its {pending} before the wait: "
                f"{'received' if pending.name == 'receive' else 'begun'} at {pending.site}, "
                f"waited for at {Site(*calling_line())}"
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
        ended = self._count, self.clock.now[pending.rank]
        call = pending.rank, pending.name, pending.peer, pending.nbytes
        return (*call, pending.begun, began, ended, pending.line, pending.number, arrived)

    # -- errors ------------------------------------------------------------------------------------------------------

    def require_all_ended(self) -> None:
        """Refuse messages that were not received, and calls without a wait, when all ranks have ended."""
        lost = [f"rank {item.rank}: {item} was not received ({item.site})" for item in self._unreceived]
        open_ = [item for item in self._begun if item not in self._unreceived]
        left = lost + [f"rank {item.rank}: no wait for its {item} ({item.site})" for item in open_]
        if left:
            raise CommunicationError("\n".join(["all ranks have ended, and left calls behind:", *left]))

    def _deadlock(self) -> DeadlockError:
        blocked = {}
        self._count += 1  # calls that never end last longer than those that have ended
        for rank, pendings in self._waiting.items():
            unmatched = [pending for pending in pendings if not pending.done]
            awaited = frozenset().union(*(pending.awaited() for pending in unmatched))
            frame = self.scheduler.frame_of(rank) or sys._getframe()
            calls = tuple((str(pending), describe_line(pending.site, frame)) for pending in unmatched)
            others = [item for item in self._begun if item.rank == rank and not item.done and item not in unmatched]
            begun = tuple((str(item), str(item.site)) for item in others)
            blocked[rank] = BlockedRank(calls, awaited, begun)
            self.records += [self._record(item, item.waited or item.begun, arrived=False) for item in unmatched]
        text = describe_deadlock(blocked, self.scheduler.ended, self._count - 1)
        return DeadlockError(text, draw_calls(self.size, tuple(map(message_of, self.records))))


def _call(signature: tuple[Any, ...]) -> str:
    name, *arguments = signature
    return f"{name}({', '.join(map(str, arguments))})" if arguments else str(name)
