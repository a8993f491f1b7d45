"""All ranks in one process: repeatable runs without an MPI library, with a diagnosis of deadlocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hybridnn.comm.mpi import substitute_mpi
from hybridnn.drawing import DrawnObject
from hybridnn.errors import SettingError
from hybridnn.in_process.communication_errors import CommunicationError, DeadlockError, StuckError
from hybridnn.in_process.matching import Context, MessageEngine, VirtualClock
from hybridnn.in_process.mpi_interface import Comm, MpiModule
from hybridnn.in_process.records import Message, Record, draw_calls, message_of
from hybridnn.utils.checks import require_choice, require_number, require_whole, with_advice

if TYPE_CHECKING:
    from hybridnn.cost.machine import Machine
    from hybridnn.drawing.drawing import Drawing

__all__ = ["CommunicationError", "DeadlockError", "Message", "RunResult", "StuckError", "run_ranks"]

EAGER_BYTES = 4096
MOST_RANKS = 1024


@dataclass(frozen=True, repr=False)
class RunResult(DrawnObject):
    """Results of a program on several ranks.

    Its picture has a row for each rank and an arrow for each message.

    Attributes
    ----------
    results : tuple
        Return value of the function, by rank.
    clock : tuple of float
        Seconds of communication by the virtual clock, by rank.
    """

    results: tuple[Any, ...]
    clock: tuple[float, ...]
    _records: tuple[Record, ...]

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """Calls in the order in which they ended; the last ones of a long program."""
        return tuple(map(message_of, self._records))

    @property
    def drawing(self) -> Drawing:
        """The calls."""
        return draw_calls(len(self.results), self.messages)

    def __repr__(self) -> str:
        return f"<Run: {len(self.results)} ranks, {len(self._records):,} calls, {max(self.clock):g} s on the clock>"


@with_advice({"n": "did you mean ranks?"})
def run_ranks(
    ranks: int,
    function: Callable[..., Any],
    *args: Any,
    order: int | str = "in turn",
    sends: str = "rendezvous",
    delivery: str = "late",
    alpha: float = 0.0,
    beta: float = 0.0,
    machine: Machine | None = None,
    limit: float | None = None,
    keep: int = 100_000,
) -> RunResult:
    """Run ``function(comm, *args)`` on every rank, all of them in this process, one at a time.

    Neither mpi4py nor an MPI library is needed. The same arguments give the same bits. `comm` has mpi4py's upper-case
    methods; `ProcessGrid` and `Trainer` use it by default.

    Parameters
    ----------
    ranks : int
    function : callable
        The program of a rank.
    order : "in turn" or int
        Which rank runs next where several can: the following one, or drawn from this seed.
    sends : {"rendezvous", "eager"}
        A send ends when its receive has begun; or, up to 4,096 bytes, at once.
    delivery : {"late", "early"}
        Data arrive at the wait, and until then receive buffers hold NaN and send buffers must not change; or data
        arrive as soon as both sides have called, unchecked.
    alpha, beta : float
        Seconds per message and per byte, for the virtual clock.
    machine : Machine, optional
        Costs of a machine file in place of both.
    limit : float, optional
        Seconds that a rank may compute without a communication call.
    keep : int
        Number of calls that are kept: the last ones.

    Raises
    ------
    DeadlockError
        When no rank can continue, with the line of each one.
    CommunicationError
        When calls of ranks do not match, the program accessed a buffer that a call owned, or never waited for a call.
    Exception
        The first exception of a rank; the other ranks end.

    Examples
    --------
    >>> import numpy as np
    >>> def ring(comm):
    ...     own, left = np.array([float(comm.rank)]), np.empty(1)
    ...     comm.Sendrecv(own, (comm.rank + 1) % comm.size, recvbuf=left, source=(comm.rank - 1) % comm.size)
    ...     return left[0]
    >>> run_ranks(3, ring, alpha=1e-6).results
    (2.0, 0.0, 1.0)
    """
    ranks = require_whole("ranks", ranks, 1, MOST_RANKS)
    sends = require_choice("sends", sends, ("rendezvous", "eager"))
    delivery = require_choice("delivery", delivery, ("late", "early"))
    if not callable(function):
        raise SettingError("function", function, "must be a function, which is called with a communicator")
    if not (isinstance(order, str) and order == "in turn"):
        order = require_whole("order", order, 0, allowed="must be 'in turn', or a whole number, the seed of an order")
    keep = require_whole("keep", keep, 0)
    if machine is not None and (alpha or beta or not hasattr(machine, "collective_seconds")):
        raise SettingError("machine", machine, "of read_machine(file), and then neither alpha nor beta")
    if limit is not None:
        limit = require_number("limit", limit, above=0, at_most=1e9, allowed="seconds, above 0")
    engine = MessageEngine(
        ranks,
        VirtualClock(ranks, alpha, beta, machine),
        seed=order if isinstance(order, int) else None,
        eager_bytes=EAGER_BYTES if sends == "eager" else -1,
        late=delivery == "late",
        keep=keep,
    )
    world = Context(tuple(range(ranks)))

    def of_rank(rank: int) -> Callable[[], Any]:
        def body() -> Any:
            comm = Comm(engine, world, rank)
            with substitute_mpi(MpiModule(comm, Comm(engine, Context((rank,)), 0))):
                return function(comm, *args)

        return body

    results = engine.scheduler.run([of_rank(rank) for rank in range(ranks)], limit)
    engine.require_all_ended()
    return RunResult(tuple(results), tuple(engine.clock.now), tuple(engine.records))


def one_rank() -> MpiModule:
    """Substitute for ``mpi4py.MPI`` in a single process without an MPI library: a world of one rank."""
    alone = Comm(MessageEngine(1, VirtualClock(1)), Context((0,)), 0)
    return MpiModule(alone, alone, library="none")
