"""Substitute for the module ``mpi4py.MPI`` in ranks of one process: the part of its interface that the library uses.

Names, arguments and buffer specifications are those of mpi4py's upper-case methods: a contiguous array,
``[array, count, datatype]``, or ``[array, counts, displacements, datatype]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, NoReturn, ParamSpec

import numpy as np
from numpy.typing import NDArray

from hybridnn.in_process.buffers import (
    IN_PLACE,
    Collective,
    Contribution,
    Delivery,
    Flat,
    ReceiveBuffer,
    blocks_of,
    flat_of,
    is_in_place,
    operation,
    reduced,
)
from hybridnn.in_process.communication_errors import CommunicationError
from hybridnn.in_process.matching import ANY_TAG, Context, MessageEngine, Pending

PROC_NULL, ANY_SOURCE, UNDEFINED = -2, -1, -32766

Arguments = ParamSpec("Arguments")
All = Sequence[Contribution]  # contributions of all ranks to a collective


class MpiRequest:
    """Substitute for ``MPI.Request``."""

    def __init__(self, engine: MessageEngine, pending: Pending | None) -> None:
        self._engine, self._pending = engine, pending

    def Wait(self, status: object = None) -> bool:
        """Wait until it has ended."""
        return self.Waitall([self])

    def Test(self, status: object = None) -> bool:
        """Whether it has ended; the other ranks run first."""
        return self.Testall([self])

    @staticmethod
    def Waitall(requests: Sequence[MpiRequest], statuses: object = None) -> bool:
        """Wait until all have ended."""
        if requests:
            requests[0]._engine.wait(_pendings(requests))
        return True

    @staticmethod
    def Testall(requests: Sequence[MpiRequest], statuses: object = None) -> bool:
        """Whether all have ended; the other ranks run first."""
        pendings = _pendings(requests)
        return not pendings or requests[0]._engine.test(pendings)


def _pendings(requests: Sequence[MpiRequest]) -> list[Pending]:
    return [request._pending for request in requests if request._pending is not None]


class MpiGroup:
    """Substitute for ``MPI.Group``."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self._members = members

    def Translate_ranks(self, ranks: Sequence[int] | None, other: MpiGroup) -> list[int]:
        """Ranks in `other` of these ranks, or of all."""
        chosen = self._members if ranks is None else [self._members[rank] for rank in ranks]
        return [other._members.index(member) for member in chosen]

    def Get_size(self) -> int:
        """Number of ranks."""
        return len(self._members)

    def Free(self) -> None:
        """Do nothing."""


def _blocking(
    begin: Callable[Concatenate[Comm, Arguments], MpiRequest],
) -> Callable[Concatenate[Comm, Arguments], None]:
    """The blocking call of a nonblocking one."""

    def call(comm: Comm, /, *args: Arguments.args, **options: Arguments.kwargs) -> None:
        begin(comm, *args, **options).Wait()

    call.__name__ = begin.__name__[1:].capitalize()
    call.__doc__ = f"`{begin.__name__}`, and wait."
    return call


class Comm:
    """Substitute for ``MPI.Intracomm``; `rank` is this rank in the communicator."""

    def __init__(self, engine: MessageEngine, context: Context, rank: int) -> None:
        self._engine, self._context, self._rank = engine, context, rank
        self._attributes: dict[object, Any] = {}

    @property
    def engine(self) -> MessageEngine:
        """The engine that all communicators of a program share."""
        return self._engine

    def Get_size(self) -> int:
        """Number of ranks."""
        return len(self._context.members)

    def Get_rank(self) -> int:
        """This rank."""
        return self._rank

    size, rank = property(Get_size), property(Get_rank)

    def Get_group(self) -> MpiGroup:
        """Group of the ranks."""
        return MpiGroup(self._context.members)

    def Free(self) -> None:
        """Do nothing."""

    @staticmethod
    def Create_keyval(copy_fn: object = None, delete_fn: object = None, nopython: bool = False) -> object:
        """A key for attributes; `delete_fn` is never called, as communicators are never freed."""
        return object()

    def Get_attr(self, keyval: object) -> Any:
        """The attribute of this rank; None if there is none."""
        return self._attributes.get(keyval)

    def Set_attr(self, keyval: object, attrval: Any) -> None:
        """Set the attribute of this rank."""
        self._attributes[keyval] = attrval

    def __getattr__(self, name: str) -> Any:
        """Refuse other methods, with the name of the upper-case one if there is one."""
        upper = name.capitalize()
        advice = f": use {upper}, with arrays" if name != upper and hasattr(type(self), upper) else ""
        raise AttributeError(f"a communicator of ranks of one process has no {name!r}{advice}")

    def Abort(self, code: int = 1) -> NoReturn:
        """End all ranks."""
        raise SystemExit(code)

    # -- messages ----------------------------------------------------------------------------------------------------

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> MpiRequest:
        """Begin to send."""
        return self._send(buffer, dest, tag, synchronous=False)

    def Issend(self, buffer: Any, dest: int, tag: int = 0) -> MpiRequest:
        """Begin to send; ends only when the receiver has reached its receive."""
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

    Send, Ssend = _blocking(Isend), _blocking(Issend)

    def Recv(self, buffer: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: object = None) -> None:
        """`Irecv`, and wait."""
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
    # Each begins with this rank's contribution, and has a function from the contributions of all to their deliveries.

    def Ibarrier(self) -> MpiRequest:
        """Begin a barrier."""
        return self._enter(("barrier",), Contribution(), lambda all_: [None] * len(all_))

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Any = "SUM") -> MpiRequest:
        """Begin an all-reduce."""
        op, out = operation(op), flat_of(recvbuf, writable=True)

        def allreduce(all_: All) -> list[Delivery]:
            total = reduced(all_, op)
            return [_target(all_, rank).takes(total) for rank in range(len(all_))]

        return self._enter(("allreduce", op), self._contribution(sendbuf, out, out), allreduce)

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: Any = "SUM", root: int = 0) -> MpiRequest:
        """Begin a reduction to the root."""
        op = operation(op)
        self._require_rank(root)
        out = flat_of(recvbuf, writable=True) if self._rank == root else None

        def reduce(all_: All) -> list[Delivery]:
            return _at(root, all_, _target(all_, root).takes(reduced(all_, op)))

        return self._enter(("reduce", op, root), self._contribution(sendbuf, out, out), reduce, root)

    def Ireduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int], op: Any = "SUM") -> MpiRequest:
        """Begin a reduction of which every rank receives a block."""
        op = operation(op)
        own = self._contribution(sendbuf, flat_of(recvbuf, writable=True))
        _, counts, offsets = blocks_of([own.sent, recvcounts], self.size)
        if sum(counts) != own.sent.size:
            raise CommunicationError(f"recvcounts {counts} of an array of {own.sent.size:,} elements")

        def reduce_scatter(all_: All) -> list[Delivery]:
            total = reduced(all_, op)
            blocks = [total[at : at + n] for n, at in zip(counts, offsets, strict=True)]
            return [_target(all_, rank).takes(block) for rank, block in enumerate(blocks)]

        return self._enter(("reduce_scatter", op, tuple(counts)), own, reduce_scatter)

    def Ibcast(self, buffer: Any, root: int = 0) -> MpiRequest:
        """Begin a broadcast."""
        self._require_rank(root)
        array = flat_of(buffer, writable=self._rank != root)
        own = Contribution(array.copy(), nbytes=array.nbytes)
        if self._rank == root:
            own.lent = array
        else:
            own.target = self._engine.receive_buffer(array)

        def broadcast(all_: All) -> list[Delivery]:
            data = all_[root].sent
            return [None if rank == root else _target(all_, rank).takes(data) for rank in range(len(all_))]

        return self._enter(("broadcast", root), own, broadcast, root)

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> MpiRequest:
        """Begin an all-gather."""
        out, counts, offsets = blocks_of(recvbuf, self.size, writable=True)
        block = out[offsets[self._rank] : offsets[self._rank] + counts[self._rank]]
        own = self._contribution(sendbuf, out, block, may_stay=sum(counts) < out.size)
        if own.lent is None:
            block[:] = own.sent
        own.nbytes, own.part = out.nbytes, own.sent.nbytes

        def allgather(all_: All) -> list[Delivery]:
            blocks = [other.sent for other in all_]
            return [_target(all_, rank).takes_blocks(blocks, counts, offsets) for rank in range(len(all_))]

        return self._enter(("allgather",), own, allgather)

    def Iscatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MpiRequest:
        """Begin a scatter of the root's array."""
        self._require_rank(root)
        out = flat_of(recvbuf, writable=True)
        own = Contribution(nbytes=out.nbytes, part=out.nbytes)
        if self._rank == root:
            array, counts, offsets = blocks_of(sendbuf, self.size)
            own.sent = [array[at : at + n].copy() for at, n in zip(offsets, counts, strict=True)]
        own.target = self._engine.receive_buffer(out, may_stay=True)

        def scatter(all_: All) -> list[Delivery]:
            return [_target(all_, rank).takes(block, at_most=True) for rank, block in enumerate(all_[root].sent)]

        return self._enter(("scatter", root), own, scatter, root)

    def Igatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MpiRequest:
        """Begin a gather at the root."""
        self._require_rank(root)
        if self._rank == root:
            out, counts, offsets = blocks_of(recvbuf, self.size, writable=True)
            block = out[offsets[root] :][: counts[root]]
            own = self._contribution(sendbuf, out, block, may_stay=sum(counts) < out.size)
            own.layout = counts, offsets
        else:
            own = self._contribution(sendbuf, None)
        own.part = own.sent.nbytes

        def gather(all_: All) -> list[Delivery]:
            blocks = [other.sent for other in all_]
            return _at(root, all_, _target(all_, root).takes_blocks(blocks, *all_[root].layout))

        return self._enter(("gather", root), own, gather, root)

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> MpiRequest:
        """Begin an all-to-all exchange of equal blocks."""
        _, counts, offsets = blocks_of(sendbuf, self.size)
        own = self._contribution(sendbuf, flat_of(recvbuf, writable=True))

        def alltoall(all_: All) -> list[Delivery]:
            return [
                _target(all_, rank).takes_blocks([other.sent[at : at + n] for other in all_], counts, offsets)
                for rank, (n, at) in enumerate(zip(counts, offsets, strict=True))
            ]

        return self._enter(("alltoall", own.sent.size), own, alltoall)

    Iallgather, Iscatter, Igather = Iallgatherv, Iscatterv, Igatherv
    Barrier, Bcast, Alltoall = _blocking(Ibarrier), _blocking(Ibcast), _blocking(Ialltoall)
    Reduce, Allreduce, Reduce_scatter = _blocking(Ireduce), _blocking(Iallreduce), _blocking(Ireduce_scatter)
    Gather = Gatherv = _blocking(Igatherv)
    Scatter = Scatterv = _blocking(Iscatterv)
    Allgather = Allgatherv = _blocking(Iallgatherv)

    def Split(self, color: int = 0, key: int = 0) -> Comm | None:
        """A communicator of the ranks of one color, ordered by key; None for the color ``MPI.UNDEFINED``."""
        if not isinstance(color, (int, np.integer)) or (color < 0 and color != UNDEFINED):
            raise CommunicationError(f"color = {color!r}: a whole number, 0 or more, or MPI.UNDEFINED")

        def split(all_: All) -> list[Delivery]:
            given = [other.sent for other in all_]
            for chosen in {color for color, _, _ in given if color != UNDEFINED}:
                ranks = [rank for rank, (color, _, _) in enumerate(given) if color == chosen]
                ranks.sort(key=lambda rank: (given[rank][1], rank))
                context = Context(tuple(self._context.members[rank] for rank in ranks))
                for number, rank in enumerate(ranks):
                    given[rank][2].append(Comm(self._engine, context, number))
            return [None] * len(all_)

        made: list[Comm] = []
        self._enter(("split",), Contribution((color, key, made)), split).Wait()
        return made[0] if made else None

    def Split_type(self, split_type: int, key: int = 0, info: object = None) -> Comm | None:
        """A communicator of the ranks that share memory: all."""
        return self.Split(0, key)

    def Dup(self, info: object = None) -> Comm | None:
        """A communicator of the same ranks."""
        return self.Split(0, self._rank)

    def _enter(
        self, signature: tuple[Any, ...], own: Contribution, carry_out: Collective, root: int = -1
    ) -> MpiRequest:
        """Begin a collective: see `MessageEngine.collective`."""
        pending = self._engine.collective(self._context, self._rank, signature, own, carry_out, root)
        return MpiRequest(self._engine, pending)

    def _contribution(
        self, sendbuf: Any, out: Flat | None, block: Flat | None = None, *, may_stay: bool = False
    ) -> Contribution:
        """This rank's arguments, with a copy of what is sent, which is `block` where `sendbuf` is ``IN_PLACE``."""
        in_place = block is not None and is_in_place(sendbuf)
        source = block if block is not None and in_place else flat_of(sendbuf)
        if out is not None and not in_place and np.may_share_memory(source, out):
            raise CommunicationError("the send and the receive buffer overlap: use two arrays, or MPI.IN_PLACE")
        sent = source.copy()
        target = None if out is None else self._engine.receive_buffer(out, may_stay=may_stay)
        return Contribution(sent, target, None if in_place else source, source.nbytes)


def _target(all_: All, rank: int) -> ReceiveBuffer:
    target = all_[rank].target
    if target is None:
        raise ValueError(f"rank {rank} has no receive buffer")
    return target


def _at(root: int, all_: All, delivery: Delivery) -> list[Delivery]:
    return [delivery if rank == root else None for rank in range(len(all_))]


class MpiWindow:
    """Substitute for a window of ``MPI.Win.Allocate_shared``: memory that all ranks share, as they are one process."""

    def __init__(self, memory: NDArray[np.uint8], item: int) -> None:
        self._memory, self._item = memory, item

    @classmethod
    def Allocate_shared(cls, size: int, disp_unit: int = 1, info: object = None, comm: Any = None) -> MpiWindow:
        """Allocate the sum of the sizes; collective."""

        def allocate(all_: All) -> list[Delivery]:
            given = [other.sent for other in all_]
            memory = np.zeros(sum(nbytes for nbytes, _ in given), np.uint8)
            for _, made in given:
                made.append(memory)
            return [None] * len(all_)

        made: list[NDArray[np.uint8]] = []
        comm._enter(("window",), Contribution((size, made)), allocate).Wait()
        return cls(made[0], disp_unit)

    def Shared_query(self, rank: int) -> tuple[memoryview, int]:
        """The memory from the first rank's part on."""
        if rank:
            raise CommunicationError("ranks of one process share windows whose memory rank 0 has brought")
        return self._memory.data, self._item

    def Lock_all(self, assertion: int = 0) -> None:
        """Do nothing: the ranks are one process, and the memory is freed with its arrays."""

    Sync = Unlock_all = Free = Lock_all


class Error(Exception):
    """Substitute for ``MPI.Exception``, which is never raised."""


class MpiModule:
    """Substitute for the module ``mpi4py.MPI`` in one rank; `alone` is the communicator of this rank only."""

    IN_PLACE, PROC_NULL, ANY_SOURCE, ANY_TAG = IN_PLACE, PROC_NULL, ANY_SOURCE, ANY_TAG
    UNDEFINED, COMM_NULL = UNDEFINED, None
    SUM, MAX, MIN, PROD = "SUM", "MAX", "MIN", "PROD"
    COMM_TYPE_SHARED, MODE_NOCHECK = 0, 0
    Intracomm, Request, Group, Win, Exception = Comm, MpiRequest, MpiGroup, MpiWindow, Error

    def __init__(self, world: Comm, alone: Comm, library: str = "ranks of one process") -> None:
        self.COMM_WORLD, self.COMM_SELF, self._library = world, alone, library

    def Is_initialized(self) -> bool:
        """True."""
        return True

    def Is_finalized(self) -> bool:
        """False."""
        return False

    def Get_library_version(self) -> str:
        """Name of the MPI library."""
        return self._library
