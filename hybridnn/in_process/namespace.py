"""Stand-in for the module ``mpi4py.MPI`` in ranks of one process: the part of its interface that the library uses.

Names, arguments and buffer specifications are those of mpi4py's upper-case methods: a contiguous array, or
``[array, counts, displacements, datatype]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hybridnn.in_process.buffers import (
    IN_PLACE,
    Delivers,
    Flat,
    combined,
    copies,
    flat_of,
    is_in_place,
    parts_of,
    places,
    reduced,
)
from hybridnn.in_process.engine import ANY_TAG, Context, Engine, Pending
from hybridnn.in_process.problems import CommunicationError

__all__ = ["Comm", "Namespace"]

PROC_NULL, ANY_SOURCE = -2, -1
LIBRARY = "ranks as threads of one process"


class Request:
    """Stand-in for ``MPI.Request``."""

    def __init__(self, engine: Engine, pending: Pending | None) -> None:
        self._engine, self._pending = engine, pending

    def Wait(self, status: object = None) -> bool:
        """Return when it has ended."""
        self._engine.wait(_pendings([self]))
        return True

    def Test(self, status: object = None) -> bool:
        """Whether it has ended; lets the other ranks run."""
        return self.Testall([self])

    @staticmethod
    def Waitall(requests: Sequence[Request], statuses: object = None) -> bool:
        """Return when all have ended."""
        if requests:
            requests[0]._engine.wait(_pendings(requests))
        return True

    @staticmethod
    def Testall(requests: Sequence[Request], statuses: object = None) -> bool:
        """Whether all have ended; lets the other ranks run."""
        pendings = _pendings(requests)
        return not pendings or requests[0]._engine.test(pendings)


def _pendings(requests: Sequence[Request]) -> list[Pending]:
    return [one._pending for one in requests if one._pending is not None]


class Group:
    """Stand-in for ``MPI.Group``."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self._members = members

    def Translate_ranks(self, ranks: Sequence[int] | None, other: Group) -> list[int]:
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
    engine : Engine
    context : Context
    rank : int
        This rank's number in it.
    """

    def __init__(self, engine: Engine, context: Context, rank: int) -> None:
        self._engine, self._context, self._rank = engine, context, rank
        self._entered = 0

    @property
    def engine(self) -> Engine:
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

    def Get_group(self) -> Group:
        """Its ranks."""
        return Group(self._context.members)

    def Free(self) -> None:
        """Nothing to give back."""

    def Abort(self, code: int = 1) -> NoReturn:
        """End all ranks."""
        raise SystemExit(code)

    # -- messages ----------------------------------------------------------------------------------------------------

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> Request:
        """Begin to send."""
        return self._send(buffer, dest, tag, synchronous=False)

    def Issend(self, buffer: Any, dest: int, tag: int = 0) -> Request:
        """Begin to send, and end only when the receiver has come to its receive."""
        return self._send(buffer, dest, tag, synchronous=True)

    def Irecv(self, buffer: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Begin to receive."""
        if source == PROC_NULL:
            return Request(self._engine, None)
        if source == ANY_SOURCE:
            raise CommunicationError("a receive must name its source: ranks as threads have no ANY_SOURCE")
        self._require_rank(source)
        flat = flat_of(buffer)
        return Request(self._engine, self._engine.receive(self._context, source, self._rank, tag, flat))

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
        Request.Waitall([receive, self.Isend(sendbuf, dest, sendtag)])

    def _send(self, buffer: Any, dest: int, tag: int, *, synchronous: bool) -> Request:
        if dest == PROC_NULL:
            return Request(self._engine, None)
        self._require_rank(dest)
        flat = flat_of(buffer)
        pending = self._engine.send(self._context, self._rank, dest, tag, flat, synchronous=synchronous)
        return Request(self._engine, pending)

    def _require_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise CommunicationError(f"rank {rank}: the communicator has ranks 0 to {self.size - 1}")

    # -- collectives -------------------------------------------------------------------------------------------------

    def Ibarrier(self) -> Request:
        """Begin a barrier."""
        return self._enter(("barrier",), None, lambda given: [None] * len(given))

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: str = "SUM") -> Request:
        """Begin an all-reduce."""
        out = flat_of(recvbuf)
        given = self._taken(out if is_in_place(sendbuf) else flat_of(sendbuf), out)
        return self._enter(("allreduce", op), (given, out), lambda all_: reduced(all_, op, range(len(all_))), out)

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: str = "SUM", root: int = 0) -> Request:
        """Begin a reduction to a root."""
        out = None if recvbuf is None else flat_of(recvbuf)
        source = out if is_in_place(sendbuf) else flat_of(sendbuf)
        assert source is not None
        given = self._taken(source, out if self._rank == root else None)
        act = lambda all_: reduced(all_, op, [root])  # noqa: E731 - it needs the names above
        return self._enter(("reduce", op, root), (given, out), act, given, root)

    def Ireduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int], op: str = "SUM") -> Request:
        """Begin a reduction of which every rank gets a block."""
        out, source = flat_of(recvbuf), flat_of(sendbuf)
        given = self._taken(source, out)
        counts = list(recvcounts)

        def act(all_: Sequence[Any]) -> Delivers:
            total = combined([one for one, _ in all_], op)
            ends = list(accumulate(counts))
            return [
                copies(target, total[end - n : end]) for (_, target), n, end in zip(all_, counts, ends, strict=True)
            ]

        return self._enter(("reduce_scatter", op), (given, out), act, given)

    def Ibcast(self, buffer: Any, root: int = 0) -> Request:
        """Begin a broadcast."""
        out = flat_of(buffer)
        given = self._taken(out, None if self._rank == root else out)

        def act(all_: Sequence[Any]) -> Delivers:
            sent, _ = all_[root]
            return [None if rank == root else copies(target, sent) for rank, (_, target) in enumerate(all_)]

        return self._enter(("broadcast", root), (given, out), act, out, root)

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Begin an all-gather."""
        out, counts, offsets = parts_of(recvbuf, self.size)
        mine = slice(offsets[self._rank], offsets[self._rank] + counts[self._rank])
        given = (out[mine] if is_in_place(sendbuf) else flat_of(sendbuf)).copy()
        self._engine.poison(out)
        if is_in_place(sendbuf):
            out[mine] = given

        def act(all_: Sequence[Any]) -> Delivers:
            parts = [part for part, _ in all_]
            return [places(target, parts, offsets) for _, target in all_]

        return self._enter(("allgather",), (given, out), act, out)

    Iallgather = Iallgatherv

    def Iscatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """Begin a scatter of the root's array."""
        out = flat_of(recvbuf)
        given = None
        if self._rank == root:
            whole, counts, offsets = parts_of(sendbuf, self.size)
            given = [whole[at : at + n].copy() for at, n in zip(offsets, counts, strict=True)]
        self._engine.poison(out)

        def act(all_: Sequence[Any]) -> Delivers:
            return [copies(target, all_[root][0][rank]) for rank, (_, target) in enumerate(all_)]

        return self._enter(("scatter", root), (given, out), act, out, root)

    Iscatter = Iscatterv

    def Igatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """Begin to gather at the root."""
        given = flat_of(sendbuf).copy()
        out: Flat | None = None
        offsets: list[int] = []
        if self._rank == root:
            out, _, offsets = parts_of(recvbuf, self.size)
            self._engine.poison(out)

        def act(all_: Sequence[Any]) -> Delivers:
            _, (target, at) = all_[root]
            whole = places(target, [part for part, _ in all_], at)
            return [whole if rank == root else None for rank in range(len(all_))]

        return self._enter(("gather", root), (given, (out, offsets)), act, given, root)

    Igather = Igatherv

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Begin an exchange of equal blocks between all ranks."""
        given, out = flat_of(sendbuf).copy(), flat_of(recvbuf)
        self._engine.poison(out)

        def act(all_: Sequence[Any]) -> Delivers:
            blocks = [one.reshape(len(all_), -1) for one, _ in all_]
            return [
                copies(target, np.concatenate([block[rank] for block in blocks]))
                for rank, (_, target) in enumerate(all_)
            ]

        return self._enter(("alltoall",), (given, out), act, out)

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

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        """A communicator of the ranks of one color, ordered by key."""

        def act(all_: Sequence[Any]) -> Delivers:
            for chosen in {color for color, _, _ in all_}:
                ranks = sorted(
                    (rank for rank, one in enumerate(all_) if one[0] == chosen), key=lambda r: (all_[r][1], r)
                )
                context = Context(tuple(self._context.members[rank] for rank in ranks))
                for number, rank in enumerate(ranks):
                    all_[rank][2].append(Comm(self._engine, context, number))
            return [None] * len(all_)

        made: list[Comm] = []
        self._enter(("split",), (color, key, made), act).Wait()
        return made[0]

    def Split_type(self, split_type: int, key: int = 0, info: object = None) -> Comm:
        """A communicator of the ranks that share memory: all."""
        return self.Split(0, key)

    def Dup(self, info: object = None) -> Comm:
        """A communicator of the same ranks."""
        return self.Split(0, self._rank)

    def _enter(
        self,
        signature: tuple[Any, ...],
        payload: Any,
        act: Callable[[Sequence[Any]], Delivers],
        vector: Flat | None = None,
        root: int = -1,
    ) -> Request:
        nbytes = 0 if vector is None else vector.nbytes
        number, self._entered = self._entered, self._entered + 1
        pending = self._engine.collective(
            self._context, self._rank, number, signature, payload, act, nbytes=nbytes, root=root
        )
        return Request(self._engine, pending)

    def _taken(self, source: Flat, out: Flat | None) -> Flat:
        """A copy of what a rank brings, before its receive buffer is filled with what must not be read."""
        given = source.copy()
        if out is not None:
            self._engine.poison(out)
        return given


class Win:
    """Stand-in for a window of ``MPI.Win.Allocate_shared``: memory that all ranks see, as they are one process."""

    def __init__(self, memory: NDArray[np.uint8], item: int) -> None:
        self._memory, self._item = memory, item

    @classmethod
    def Allocate_shared(cls, size: int, disp_unit: int = 1, info: object = None, comm: Any = None) -> Win:
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
            raise CommunicationError("ranks as threads share windows whose memory rank 0 has brought")
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
    SUM, MAX, MIN, PROD = "SUM", "MAX", "MIN", "PROD"
    COMM_TYPE_SHARED, MODE_NOCHECK = 0, 0
    THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
    Intracomm, Request, Group, Win, Exception = Comm, Request, Group, Win, Error

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
