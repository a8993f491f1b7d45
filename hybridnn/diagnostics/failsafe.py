"""An exception on any rank ends the whole job at once, with that rank's traceback; and so does whoever finds a stall.

Without this the failing rank would leave while the others wait for it in a collective, and the job would hang without a
word. The hook is installed when `hybridnn` is imported and does nothing until MPI runs on more than one rank. Set
``HYBRIDNN_NO_ABORT=1`` to keep Python's own behaviour, for example under a debugger.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from hybridnn.comm.mpi import is_in_process

FORWARDING_SECONDS = 0.5
"""The launcher forwards what ranks write and adds words of its own: time to forward a rank's last words."""

TURN_SECONDS = 0.1
"""By which a rank lets the one below it go first."""

exit_now = os._exit
"""Python's own ``os._exit``, which says nothing."""

NOTICE_TAG = 32767
"""Of the message by which a rank says that it prints an error; the largest tag that every library has."""

LEFT_TAG = 32766
"""Of the message by which a rank says that it leaves before it has met the others."""

LEFT_BYTES = 400
"""Of that message, which says how it leaves."""

ERROR_SECONDS = 30.0
"""After which a job is ended that a rank with an error was to end."""

SPINS = 200
"""Tests for the other ranks before a rank gives up its core between two of them."""

LAST_RESORT_SECONDS = 5.0
"""After which a job that was to be ended and still lives is left without asking MPI or anybody."""


def running_world() -> Any:
    """COMM_WORLD if MPI is running on more than one rank, without importing anything."""
    mpi = None if is_in_process() else sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.Get_size() == 1:
        return None
    return mpi.COMM_WORLD


def abort_job(error: BaseException, where: str = "") -> None:
    """Print the traceback of `error` with the rank's number and end every rank of the job.

    Returns only where MPI does not run on several ranks.
    """
    world = running_world()
    if world is None:
        return
    rank, size = world.Get_rank(), world.Get_size()
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    _start_last_resort()
    header = f"\n=== rank {rank} of {size} failed{where}; ending the job ===\n"
    _write_last_words(header + "".join(lines) + f"=== end of rank {rank}'s traceback ===\n")
    # Open MPI may crash, with pages of addresses, where ranks that fail together also end the job at the same moment.
    time.sleep(FORWARDING_SECONDS + min(rank * TURN_SECONDS, FORWARDING_SECONDS))
    _abort(world)


def end_job(last_words: str) -> NoReturn:
    """Print `last_words` and end every rank of the job with exit code 1, from any thread and whatever hangs."""
    _start_last_resort()
    _write_last_words(last_words)
    time.sleep(FORWARDING_SECONDS)
    world = running_world()
    if world is not None:
        _abort(world)
    exit_now(1)


def _start_last_resort() -> None:
    """End this process in any case: the pipe may be full, standard output locked, MPI stuck."""
    last_resort = threading.Timer(LAST_RESORT_SECONDS, exit_now, (1,))
    last_resort.daemon = True
    last_resort.start()


def _write_last_words(text: str) -> None:
    """Write to standard error, or where that is closed to standard output, and flush what was printed before."""
    # One write, so that the lines of ranks that fail together do not mix.
    for descriptor in (2, 1):
        with contextlib.suppress(OSError):
            os.write(descriptor, text.encode(errors="replace"))
            break
    with contextlib.suppress(Exception):  # None, closed, or a pipe that nothing reads
        sys.stdout.flush()


def streams_are_open() -> bool:
    """Whether last words have somewhere to go."""
    for descriptor in (2, 1):
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            return True
    return False


def _abort(world: Any) -> None:
    """End every rank that lives."""
    with contextlib.suppress(Exception):  # not every library knows what was lost
        if world.Get_failed().Get_size() == world.Get_size() - 1:
            # To the launcher of Open MPI 5 the abort of the last rank that lives is a success.
            exit_now(1)
    world.Abort(1)


def all_ranks_arrive(patience: float) -> bool:
    """Whether every rank of the job calls this within `patience` seconds; True where there is one rank.

    False at once where the other ranks call this or `wait_for_ranks`, and one the latter.
    """
    world = running_world()
    if world is None:
        return True
    everyone, answers = _call_the_roll(world, leaves=True)
    deadline = time.monotonic() + patience
    while not everyone.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return not answers[1]


def _call_the_roll(comm: Any, *, leaves: bool) -> tuple[Any, memoryview]:
    """Begin to meet all ranks: the request, and when it is through, whether any rank leaves, and whether any stays.

    Ranks that leave with an error and ranks that make their process grid meet in the same collective, so that neither
    takes the other for one of its kind.
    """
    mpi: Any = sys.modules["mpi4py.MPI"]
    memory = mpi.Alloc_mem(2)  # never freed: MPI may write to it when a rank has long given up waiting
    answers = memoryview(memory)
    answers[:] = bytes([leaves, not leaves])
    return comm.Iallreduce(mpi.IN_PLACE, [memory, mpi.UNSIGNED_CHAR], mpi.MAX), answers


def wait_for_ranks(comm: Any) -> None:
    """Return when all ranks of `comm` have called this; end the job where one of them leaves instead.

    Parameters
    ----------
    comm : MPI.Intracomm
    """
    world = running_world()
    if world is None or comm.Get_size() == 1:
        return
    members = comm.Get_group().Translate_ranks(None, world.Get_group())
    (everyone, answers), tests = _call_the_roll(comm, leaves=False), 0
    while not everyone.Test():
        tests += 1
        if tests > SPINS:
            gone = next((rank for rank in members if world.Iprobe(rank, LEFT_TAG)), None)
            if gone is not None:
                _end_without(world, gone)
            time.sleep(0.001)
    if answers[0]:
        time.sleep(ERROR_SECONDS)  # that rank prints its error and ends the job
        end_job("\n=== the job cannot go on: another rank left it with an error; the job was ended ===\n")
    atexit.unregister(_send_departure)  # from here on the watchdog of the process grid sees it


def _end_without(world: Any, gone: int) -> NoReturn:
    """End the job that the rank `gone` has left; the lowest rank that waits for it prints why."""
    time.sleep(2 * FORWARDING_SECONDS * world.Get_rank())
    how = bytearray(LEFT_BYTES)
    world.Recv(how, gone, LEFT_TAG)
    text = how.rstrip(b"\0").decode(errors="replace")
    end_job(
        f"\n=== the job cannot go on: rank {gone} left it, and others wait; the job was ended ===\n"
        f"* rank {gone} left the job: {text}; rank {world.Get_rank()} waits for it to make its process grid\n"
    )


def _send_departure() -> None:
    """At the end of the interpreter, say how this rank leaves, to the ranks that wait for it in `wait_for_ranks`.

    Ranks that leave too receive what they are sent: with messages that are left over at the end, MPICH kills the job.
    """
    world = running_world()
    if world is None:
        return
    call = sys.exit.call if isinstance(sys.exit, RecordedExit) else ""
    text = (f"its script ended with {call}" if call else "its script ended").encode()[:LEFT_BYTES]
    others = {rank for rank in range(world.Get_size()) if rank != world.Get_rank()}
    others -= _departed(world, others)
    sends = [world.Isend(text, rank, LEFT_TAG) for rank in others]
    deadline = time.monotonic() + FORWARDING_SECONDS
    while (others or not all(send.Test() for send in sends)) and time.monotonic() < deadline:
        time.sleep(0.005)
        others -= _departed(world, others)


def _departed(world: Any, ranks: set[int]) -> set[int]:
    """Receive the messages of those of the ranks that have left, and return which they are."""
    departed = {rank for rank in ranks if world.Iprobe(rank, LEFT_TAG)}
    for rank in departed:
        world.Recv(bytearray(LEFT_BYTES), rank, LEFT_TAG)
    return departed


def notify_higher_ranks() -> None:
    """Send the ranks above this one a note that it prints the error that ends the job, without waiting for them."""
    world = running_world()
    if world is not None:
        for rank in range(world.Get_rank() + 1, world.Get_size()):
            world.Isend(b"", rank, NOTICE_TAG)


def lower_rank_reports(seconds: float) -> bool:
    """Whether a rank below this one has called `notify_higher_ranks`, or does so within `seconds`."""
    world = running_world()
    if world is None:
        return False
    deadline = time.monotonic() + seconds
    while not any(world.Iprobe(rank, NOTICE_TAG) for rank in range(world.Get_rank())):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def install() -> None:
    """Put the abort hook before Python's own exception hooks, once."""
    if os.environ.get("HYBRIDNN_NO_ABORT") or getattr(sys.excepthook, "ends_the_job", False):
        return
    previous, previous_thread = sys.excepthook, threading.excepthook

    def on_error(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        abort_job(error.with_traceback(tb))
        previous(kind, error, tb)

    def on_thread_error(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
            abort_job(args.exc_value, f" in thread {args.thread.name if args.thread else '?'}")
        previous_thread(args)

    on_error.ends_the_job = True  # type: ignore[attr-defined]  # marks the hook as installed
    sys.excepthook = on_error
    threading.excepthook = on_thread_error
    sys.exit = RecordedExit(sys.exit)
    os._exit = _AnnouncedExit()
    atexit.register(_send_departure)


class _AnnouncedExit:
    """``os._exit`` that names the rank, its exit code and the line that called it, as nothing else is left to do so."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def __call__(self, status: int) -> NoReturn:
        """End the process at once."""
        world = running_world() if os.getpid() == self._process else None
        if world is not None:
            caller = sys._getframe(1)
            place = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno} in {caller.f_code.co_name}"
            left = f"rank {world.Get_rank()} of {world.Get_size()} left the job with exit code {status}"
            with contextlib.suppress(OSError):
                os.write(2, f"\n=== {left}, by os._exit at {place} ===\n".encode(errors="replace"))
        exit_now(status)


class RecordedExit:
    """``sys.exit`` that notes its argument and the line that called it, which Python forgets before the process ends.

    Parameters
    ----------
    leave : callable
        Python's own ``sys.exit``.

    Attributes
    ----------
    call : str
        ``exit code 3, by sys.exit at script.py:12`` of the last call; empty before it.
    """

    def __init__(self, leave: Callable[..., NoReturn]) -> None:
        self._leave = leave
        self.call = ""

    def __call__(self, status: object = None, /) -> NoReturn:
        """Exit the interpreter by raising ``SystemExit(status)``."""
        if threading.current_thread() is threading.main_thread():
            code = 0 if status is None else status if isinstance(status, int) else 1
            caller = sys._getframe(1)
            file = os.path.basename(caller.f_code.co_filename)
            self.call = f"exit code {code}, by sys.exit at {file}:{caller.f_lineno} in {caller.f_code.co_name}"
        self._leave(status)
