"""Stand-in for the module ``mpi4py.MPI`` in ranks of one process: the part of its interface that the library uses.

Names, arguments and buffer specifications are those of mpi4py's upper-case methods: a contiguous array,
``[array, count, datatype]``, or ``[array, counts, displacements, datatype]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hybridnn.in_process.buffers import (
    IN_PLACE,
    Delivers,
    Flat,
    ReceiveBuffer,
    combined,
    flat_of,
    is_in_place,
    operation,
    parts_of,
    reduced,
)
from hybridnn.in_process.errors import CommunicationError
from hybridnn.in_process.matching import ANY_TAG, Context, MessageEngine, Pending

PROC_NULL, ANY_SOURCE, UNDEFINED = -2, -1, -32766
LIBRARY = "ranks of one process"


class MpiRequest:
    """Stand-in for ``MPI.Request``."""

    def __init__(self, engine: MessageEngine, pending: Pending | None) -> None:
        self._engine, self._pending = engine, pending

    def Wait(self, status: object = None) -> bool:
        """Return when it has ended."""
        self._engine.wait(_pendings([self]))
        return True

    def Test(self, status: object = None) -> bool:
        """Whether it has ended; lets the other ranks run."""
        return self.Testall([self])

    @staticmethod
    def Waitall(requests: Sequence[MpiRequest], statuses: object = None) -> bool:
        """Return when all have ended."""
        if requests:
            requests[0]._engine.wait(_pendings(requests))
        return True

    @staticmethod
    def Testall(requests: Sequence[MpiRequest], statuses: object = None) -> bool:
        """Whether all have ended; lets the other ranks run."""
        pendings = _pendings(requests)
        return not pendings or requests[0]._engine.test(pendings)


def _pendings(requests: Sequence[MpiRequest]) -> list[Pending]:
    return [one._pending for one in requests if one._pending is not None]


class MpiGroup:
    """Stand-in for ``MPI.Group``."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self._members = members

    def Translate_ranks(self, ranks: Sequence[int] | None, other: MpiGroup) -> list[int]:
        """Numbers in `other` of these ranks, or of all."""
        chosen = self._members if ranks is None else [self._members[rank] for rank in ranks]
        return [other._members.index(member) for member in chosen]

    def Get_size(self) -> int:
        """Number of ranks."""
        return len(self._members)

    def Free(self) -> None:
        """Nothing to give back."""


class Comm:
    """Stand-in for ``MPI.Intracomm``.

    Parameters
    ----------
    engine : MessageEngine
    context : Context
    rank : int
        This rank's number in it.
    """

    def __init__(self, engine: MessageEngine, context: Context, rank: int) -> None:
        self._engine, self._context, self._rank = engine, context, rank
        self._entered = 0

    @property
    def engine(self) -> MessageEngine:
        """What all communicators of a program have in common."""
        return self._engine

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self._context.members)

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self._rank

    def Get_size(self) -> int:
        """Number of ranks."""
        return len(self._context.members)

    def Get_rank(self) -> int:
        """This rank's number."""
        return self._rank

    def Get_group(self) -> MpiGroup:
        """Its ranks."""
        return MpiGroup(self._context.members)

    def Free(self) -> None:
        """Nothing to give back."""

    def __getattr__(self, name: str) -> Any:
        """Name the method that is there."""
        upper = name.capitalize()
        there = f": use {upper}, with arrays" if name != upper and hasattr(type(self), upper) else ""
        raise AttributeError(f"a communicator of ranks of one process has no {name!r}{there}")

    def Abort(self, code: int = 1) -> NoReturn:
        """End all ranks."""
        raise SystemExit(code)

    # -- messages ----------------------------------------------------------------------------------------------------

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> MpiRequest:
        """Begin to send."""
        return self._send(buffer, dest, tag, synchronous=False)

    def Issend(self, buffer: Any, dest: int, tag: int = 0) -> MpiRequest:
        """Begin to send, and end only when the receiver has come to its receive."""
        return self._send(buffer, dest, tag, synchronous=True)

    def Irecv(self, buffer: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> MpiRequest:
        """Begin to receive."""
        if source == PROC_NULL:
            return MpiRequest(self._engine, None)
        if source == ANY_SOURCE:
            raise CommunicationError("a receive must name its source: ranks of one process have no ANY_SOURCE")
        self._require_rank(source)
        flat = flat_of(buffer, writable=True)
        return MpiRequest(self._engine, self._engine.receive(self._context, source, self._rank, tag, flat))

    def Send(self, buffer: Any, dest: int, tag: int = 0) -> None:
        """Send."""
        self.Isend(buffer, dest, tag).Wait()

    def Ssend(self, buffer: Any, dest: int, tag: int = 0) -> None:
        """Send, and return when the receiver has come to its receive."""
        self.Issend(buffer, dest, tag).Wait()

    def Recv(self, buffer: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: object = None) -> None:
        """Receive."""
        self.Irecv(buffer, source, tag).Wait()

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: object = None,
    ) -> None:
        """Send and receive at once."""
        receive = self.Irecv(recvbuf, source, recvtag)
        MpiRequest.Waitall([receive, self.Isend(sendbuf, dest, sendtag)])

    def _send(self, buffer: Any, dest: int, tag: int, *, synchronous: bool) -> MpiRequest:
        if dest == PROC_NULL:
            return MpiRequest(self._engine, None)
        self._require_rank(dest)
        flat = flat_of(buffer)
        pending = self._engine.send(self._context, self._rank, dest, tag, flat, synchronous=synchronous)
        return MpiRequest(self._engine, pending)

    def _require_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise CommunicationError(f"rank {rank}: the communicator has ranks 0 to {self.size - 1}")

    # -- collectives -------------------------------------------------------------------------------------------------

    def Ibarrier(self) -> MpiRequest:
        """Begin a barrier."""
        return self._enter(("barrier",), None, lambda given: [None] * len(given))

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Any = "SUM") -> MpiRequest:
        """Begin an all-reduce."""
        op, out = operation(op), flat_of(recvbuf, writable=True)
        given, target, lent = self._taken(sendbuf, out, out)
        act = lambda all_: reduced(all_, op, range(len(all_)))  # noqa: E731 - it needs the name above
        return self._enter(("allreduce", op), (given, target), act, given, lent=lent)

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: Any = "SUM", root: int = 0) -> MpiRequest:
        """Begin a reduction to a root."""
        op = operation(op)
        self._require_rank(root)
        out = flat_of(recvbuf, writable=True) if self._rank == root else None
        given, target, lent = self._taken(sendbuf, out, out)
        act = lambda all_: reduced(all_, op, [root])  # noqa: E731 - it needs the names above
        return self._enter(("reduce", op, root), (given, target), act, given, root, lent=lent)

    def Ireduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int], op: Any = "SUM") -> MpiRequest:
        """Begin a reduction of which every rank gets a block."""
        op = operation(op)
        given, target, lent = self._taken(sendbuf, flat_of(recvbuf, writable=True))
        _, counts, offsets = parts_of([given, recvcounts], self.size)
        if sum(counts) != given.size:
            raise CommunicationError(f"recvcounts {counts} of an array of {given.size:,} elements")

        def act(all_: Sequence[Any]) -> Delivers:
            total = combined([one for one, _ in all_], op)
            return [one.takes(total[at : at + n]) for (_, one), n, at in zip(all_, counts, offsets, strict=True)]

        signature = "reduce_scatter", op, tuple(counts)
        return self._enter(signature, (given, target), act, given, lent=lent)

    def Ibcast(self, buffer: Any, root: int = 0) -> MpiRequest:
        """Begin a broadcast."""
        self._require_rank(root)
        array = flat_of(buffer, writable=self._rank != root)
        given = array.copy()
        target = None if self._rank == root else self._engine.receive_buffer(array)

        def act(all_: Sequence[Any]) -> Delivers:
            return [None if rank == root else one.takes(all_[root][0]) for rank, (_, one) in enumerate(all_)]

        lent = array if self._rank == root else None
        return self._enter(("broadcast", root), (given, target), act, array, root, lent=lent)

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> MpiRequest:
        """Begin an all-gather."""
        out, counts, offsets = parts_of(recvbuf, self.size, writable=True)
        mine = out[offsets[self._rank] : offsets[self._rank] + counts[self._rank]]
        given, target, lent = self._taken(sendbuf, out, mine, may_stay=sum(counts) < out.size)
        if lent is None:
            mine[:] = given

        def act(all_: Sequence[Any]) -> Delivers:
            parts = [part for part, _ in all_]
            return [one.takes_parts(parts, counts, offsets) for _, one in all_]

        return self._enter(("allgather",), (given, target), act, out, lent=lent, part=given)

    Iallgather = Iallgatherv

    def Iscatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MpiRequest:
        """Begin a scatter of the root's array."""
        self._require_rank(root)
        out = flat_of(recvbuf, writable=True)
        given = None
        if self._rank == root:
            whole, counts, offsets = parts_of(sendbuf, self.size)
            given = [whole[at : at + n].copy() for at, n in zip(offsets, counts, strict=True)]
        target = self._engine.receive_buffer(out, may_stay=True)

        def act(all_: Sequence[Any]) -> Delivers:
            return [one.takes(all_[root][0][rank], at_most=True) for rank, (_, one) in enumerate(all_)]

        return self._enter(("scatter", root), (given, target), act, out, root, part=out)

    Iscatter = Iscatterv

    def Igatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MpiRequest:
        """Begin to gather at the root."""
        self._require_rank(root)
        out: Flat | None = None
        mine: Flat | None = None
        places: tuple[list[int], list[int]] = [], []
        if self._rank == root:
            out, counts, offsets = parts_of(recvbuf, self.size, writable=True)
            places = counts, offsets
            mine = out[offsets[root] :][: counts[root]]
        given, target, lent = self._taken(sendbuf, out, mine, may_stay=out is not None and sum(places[0]) < out.size)

        def act(all_: Sequence[Any]) -> Delivers:
            _, (one, (counts, offsets)) = all_[root]
            whole = one.takes_parts([part for part, _ in all_], counts, offsets)
            return [whole if rank == root else None for rank in range(len(all_))]

        return self._enter(("gather", root), (given, (target, places)), act, given, root, lent=lent, part=given)

    Igather = Igatherv

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> MpiRequest:
        """Begin an exchange of equal blocks between all ranks."""
        _, counts, offsets = parts_of(sendbuf, self.size)
        given, target, lent = self._taken(sendbuf, flat_of(recvbuf, writable=True))

        def act(all_: Sequence[Any]) -> Delivers:
            return [
                target.takes_parts([one[at : at + n] for one, _ in all_], counts, offsets)
                for (_, target), n, at in zip(all_, counts, offsets, strict=True)
            ]

        return self._enter(("alltoall", given.size), (given, target), act, given, lent=lent)

    def Barrier(self) -> None:
        """Return when all have come."""
        self.Ibarrier().Wait()

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: str = "SUM") -> None:
        """All-reduce."""
        self.Iallreduce(sendbuf, recvbuf, op).Wait()

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: str = "SUM", root: int = 0) -> None:
        """Reduce to a root."""
        self.Ireduce(sendbuf, recvbuf, op, root).Wait()

    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int], op: str = "SUM") -> None:
        """Reduce, and leave every rank a block."""
        self.Ireduce_scatter(sendbuf, recvbuf, recvcounts, op).Wait()

    def Bcast(self, buffer: Any, root: int = 0) -> None:
        """Broadcast."""
        self.Ibcast(buffer, root).Wait()

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """All-gather."""
        self.Iallgatherv(sendbuf, recvbuf).Wait()

    Allgather = Allgatherv

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Scatter the root's array."""
        self.Iscatterv(sendbuf, recvbuf, root).Wait()

    Scatter = Scatterv

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather at the root."""
        self.Igatherv(sendbuf, recvbuf, root).Wait()

    Gather = Gatherv

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange equal blocks between all ranks."""
        self.Ialltoall(sendbuf, recvbuf).Wait()

    def Split(self, color: int = 0, key: int = 0) -> Comm | None:
        """A communicator of the ranks of one color, ordered by key; None for the color ``MPI.UNDEFINED``."""
        if not isinstance(color, (int, np.integer)) or (color < 0 and color != UNDEFINED):
            raise CommunicationError(f"color = {color!r}: a whole number, 0 or more, or MPI.UNDEFINED")

        def act(all_: Sequence[Any]) -> Delivers:
            for chosen in {color for color, _, _ in all_ if color != UNDEFINED}:
                ranks = sorted(
                    (rank for rank, one in enumerate(all_) if one[0] == chosen), key=lambda r: (all_[r][1], r)
                )
                context = Context(tuple(self._context.members[rank] for rank in ranks))
                for number, rank in enumerate(ranks):
                    all_[rank][2].append(Comm(self._engine, context, number))
            return [None] * len(all_)

        made: list[Comm] = []
        self._enter(("split",), (color, key, made), act).Wait()
        return made[0] if made else None

    def Split_type(self, split_type: int, key: int = 0, info: object = None) -> Comm | None:
        """A communicator of the ranks that share memory: all."""
        return self.Split(0, key)

    def Dup(self, info: object = None) -> Comm | None:
        """A communicator of the same ranks."""
        return self.Split(0, self._rank)

    def _enter(
        self,
        signature: tuple[Any, ...],
        payload: Any,
        act: Callable[[Sequence[Any]], Delivers],
        vector: Flat | None = None,
        root: int = -1,
        *,
        lent: Flat | None = None,
        part: Flat | None = None,
    ) -> MpiRequest:
        """Begin a collective.

        Parameters
        ----------
        signature, payload, act
            As in `MessageEngine.collective`.
        vector, part : ndarray, optional
            Their bytes are those of the full vector, and of this rank's part of it.
        root : int
        lent : ndarray, optional
            The send buffer, of which the first item of `payload` is a copy.
        """
        number, self._entered = self._entered, self._entered + 1
        pending = self._engine.collective(
            self._context,
            self._rank,
            number,
            signature,
            payload,
            act,
            nbytes=0 if vector is None else vector.nbytes,
            part=None if part is None else part.nbytes,
            root=root,
        )
        if lent is not None:
            self._engine.lend(pending, payload[0], lent)
        return MpiRequest(self._engine, pending)

    def _taken(
        self, sendbuf: Any, out: Flat | None, own: Flat | None = None, *, may_stay: bool = False
    ) -> tuple[Flat, ReceiveBuffer | None, Flat | None]:
        """What a rank brings to a collective.

        Parameters
        ----------
        sendbuf : buffer specification
        out : ndarray or None
            Where the result arrives.
        own : ndarray, optional
            What is sent in place of `sendbuf`, where that says so.
        may_stay : bool
            Some of `out` may not be filled.

        Returns
        -------
        given : ndarray
            A copy of what is sent.
        target : ReceiveBuffer or None
            Of `out`, which is unreadable from now on.
        lent : ndarray or None
            The send buffer; None in place.
        """
        in_place = own is not None and is_in_place(sendbuf)
        source = own if own is not None and in_place else flat_of(sendbuf)
        if out is not None and not in_place:
            _require_apart(source, out)
        given = source.copy()
        target = None if out is None else self._engine.receive_buffer(out, may_stay=may_stay)
        return given, target, None if in_place else source


def _require_apart(source: Flat, target: Flat) -> None:
    if np.may_share_memory(source, target):
        raise CommunicationError("the send and the receive buffer overlap: use two arrays, or MPI.IN_PLACE")


class MpiWindow:
    """Stand-in for a window of ``MPI.Win.Allocate_shared``: memory that all ranks see, as they are one process."""

    def __init__(self, memory: NDArray[np.uint8], item: int) -> None:
        self._memory, self._item = memory, item

    @classmethod
    def Allocate_shared(cls, size: int, disp_unit: int = 1, info: object = None, comm: Any = None) -> MpiWindow:
        """Collective: memory of the sum of the sizes."""

        def act(all_: Sequence[Any]) -> Delivers:
            memory = np.zeros(sum(nbytes for nbytes, _ in all_), np.uint8)
            for _, made in all_:
                made.append(memory)
            return [None] * len(all_)

        made: list[NDArray[np.uint8]] = []
        comm._enter(("window",), (size, made), act).Wait()
        return cls(made[0], disp_unit)

    def Shared_query(self, rank: int) -> tuple[memoryview, int]:
        """The memory from the first rank's part on."""
        if rank:
            raise CommunicationError("ranks of one process share windows whose memory rank 0 has brought")
        return self._memory.data, self._item

    def Lock_all(self, assertion: int = 0) -> None:
        """Nothing to lock."""

    def Sync(self) -> None:
        """Memory of one process is in order."""

    def Unlock_all(self) -> None:
        """Nothing to unlock."""

    def Free(self) -> None:
        """The memory goes with its arrays."""


class Error(Exception):
    """Stand-in for ``MPI.Exception``, which is never raised."""


class Namespace:
    """Stand-in for ``mpi4py.MPI`` in one rank.

    Parameters
    ----------
    world, alone : Comm
        Of all ranks, and of this one.
    library : str
        Its name.
    """

    IN_PLACE, PROC_NULL, ANY_SOURCE, ANY_TAG = IN_PLACE, PROC_NULL, ANY_SOURCE, ANY_TAG
    UNDEFINED, COMM_NULL = UNDEFINED, None
    SUM, MAX, MIN, PROD = "SUM", "MAX", "MIN", "PROD"
    COMM_TYPE_SHARED, MODE_NOCHECK = 0, 0
    THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
    Intracomm, Request, Group, Win, Exception = Comm, MpiRequest, MpiGroup, MpiWindow, Error

    def __init__(self, world: Comm, alone: Comm, library: str = LIBRARY) -> None:
        self.COMM_WORLD, self.COMM_SELF, self._library = world, alone, library

    def Is_initialized(self) -> bool:
        """True."""
        return True

    def Is_finalized(self) -> bool:
        """False."""
        return False

    def Query_thread(self) -> int:
        """Any thread may call."""
        return self.THREAD_MULTIPLE

    def Get_library_version(self) -> str:
        """What this is."""
        return self._library

    def get_vendor(self) -> tuple[str, tuple[int, ...]]:
        """What this is, as mpi4py says it."""
        return self._library, (1, 0, 0)
