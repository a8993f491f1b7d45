"""Fail-safe: an exception on any rank ends the whole job at once, with the traceback of that rank.

Without it the failing rank would exit while the others wait for it in a collective, and the job would hang. The hooks
are installed by the first process grid of several ranks; a single process keeps Python's own. A rank that exits before
that reports how to the ranks that wait for it. ``HYBRIDNN_NO_ABORT=1`` keeps Python's own behaviour, for
example under a debugger.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from hybridnn.comm.mpi import is_child, is_in_process, ranks_within
from hybridnn.utils.text import name_ranks

FORWARDING_SECONDS = 0.5  # time for the launcher to forward the last output of a rank
LEFT_TAG = 32766  # tag of the message of a rank that exits before it has met the others
LEFT_BYTES = 400  # size of that message, which contains how the rank exits
TURN_SECONDS = 0.1  # delay between ranks that end the job
exit_now = os._exit  # Python's own ``os._exit``, without a message
WAITING_TAG = 32765  # tag of the empty message of a rank that has waited long for others to make their process grid
NOTICE_TAG = 32767  # tag of the message of a rank that prints an error; the largest tag that every library has
ERROR_SECONDS = 30.0  # time for a rank with an error to end the job
SPINS = 200  # tests of a request without sleeping
LONGEST_TEST = 1.0  # seconds between two tests that count as waiting: a process may be suspended
LAST_RESORT_SECONDS = 5.0  # time for the job to end; then this process ends by itself

PROGRESS_FILE = "HYBRIDNN_PROGRESS_FILE"
"""Environment variable: the file in which ranks report to the process that started their launcher how far they are."""

BEGUN, ENDED, FAILED = b"begun", b"ended", b"failed"  # what they write; an exit code follows the last

PACKAGE = f"{Path(__file__).parents[1]}/"  # as in stack frames: links are not resolved

COMMUNICATION_FILES = tuple(
    PACKAGE + name for name in ("comm/", "diagnostics/failsafe.py", "parallel/grid.py", "parallel/nodes.py")
)
"""Beginnings of the paths of files that communicate."""


def running_world() -> Any:
    """COMM_WORLD if MPI is running on more than one rank, without importing anything."""
    mpi = None if is_in_process() or is_child() else sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.Get_size() == 1:
        return None
    return mpi.COMM_WORLD


def progress_file() -> Path | None:
    """The file of `PROGRESS_FILE`; None if there is none, or on a node that does not share its folder."""
    file = Path(os.environ.get(PROGRESS_FILE, ""))
    return file if file.is_file() else None


def bar_file(progress: Path) -> Path:
    """The file beside a progress file in which rank 0 draws its progress bar."""
    return progress.with_name("bar")


def abort_job(error: BaseException, where: str = "") -> None:
    """Print the traceback of `error` and end every rank of the job; returns where MPI does not run on several ranks."""
    world = running_world()
    if world is None:
        return
    rank, size = world.Get_rank(), world.Get_size()
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    text = f"=== rank {rank} of {size} failed{where}; ending the job ===\n{''.join(lines)}"
    # Open MPI may crash where ranks that fail together end the job at the same moment.
    end_job(f"\n{text}=== end of rank {rank}'s traceback ===\n", min(rank * TURN_SECONDS, FORWARDING_SECONDS))


def end_job(message: str, delay: float = 0.0) -> NoReturn:
    """Print `message` and end every rank of the job with exit code 1, from any thread, also where MPI hangs."""
    _start_last_resort()
    # One write, so that the lines of ranks that fail together do not mix; to standard output where there is no other.
    for descriptor in (2, 1):
        with contextlib.suppress(OSError):
            os.write(descriptor, message.encode(errors="replace"))
            break
    with contextlib.suppress(Exception):  # None, closed, or a pipe that nothing reads
        sys.stdout.flush()
    report_failure(1)
    time.sleep(FORWARDING_SECONDS + delay)
    world = running_world()
    if world is not None:
        world.Abort(1)
    exit_now(1)


def report_failure(exit_code: int) -> None:
    """Report the exit code of a rank that ends the job; the first report counts, since others follow from it."""
    with contextlib.suppress(OSError):
        file = progress_file()
        if file and not file.read_bytes().startswith(FAILED):
            file.write_bytes(FAILED + b" %d" % exit_code)


def _start_last_resort() -> None:
    """End this process in any case: a pipe may be full, standard output locked, MPI stuck."""
    last_resort = threading.Timer(LAST_RESORT_SECONDS, exit_now, (1,))
    last_resort.daemon = True
    last_resort.start()


def streams_are_open() -> bool:
    """Whether standard error or standard output is open."""
    for descriptor in (2, 1):
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            return True
    return False


def all_ranks_arrive(timeout: float) -> bool:
    """Whether every rank of the job calls this within `timeout` seconds; True with one rank.

    False at once if every rank calls this or `wait_for_ranks`, and at least one of them the latter.
    """
    world = running_world()
    if world is None:
        return True
    request, flags = _start_meeting(world, leaves=True)  # never freed: MPI may write long after this rank has gone on
    return _comes_true(request.Test, timeout) and not flags[1]


def _comes_true(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition is true within some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _start_meeting(comm: Any, *, leaves: bool) -> tuple[Any, memoryview]:
    """Start an all-reduce of two flags: whether any rank leaves with an error, and whether any makes its grid."""
    mpi: Any = sys.modules["mpi4py.MPI"]
    flags = mpi.Alloc_mem(2)
    flags[:] = bytes([leaves, not leaves])
    return comm.Iallreduce(mpi.IN_PLACE, [flags, mpi.UNSIGNED_CHAR], mpi.MAX), flags


def wait_for_ranks(comm: Any, seconds: float) -> None:
    """Return when all ranks of the communicator `comm` have called this; end the job if one of them exits instead.

    The job ends too when a rank has waited for `seconds`; 0 for no limit. Installs the hooks, once.
    """
    world = running_world()
    if world is None or comm.Get_size() == 1:
        return
    install()
    members = [rank for rank in ranks_within(comm, world) if rank >= 0]  # without ranks of jobs that were joined
    (request, flags), tests = _start_meeting(comm, leaves=False), 0
    others, announced = [rank for rank in members if rank != world.Get_rank()], False
    waited, before = 0.0, time.monotonic()
    while not request.Test():
        tests += 1
        if tests > SPINS:
            left = next((rank for rank in members if world.Iprobe(rank, LEFT_TAG)), None)
            if left is not None:
                _end_without(world, left)
            time.sleep(0.001)
        now = time.monotonic()
        waited, before = waited + min(now - before, LONGEST_TEST), now
        if not announced and seconds and (waited > seconds / 2 or _announced_ranks(world, others)):
            announced = True
            for rank in others:
                world.Isend(b"", rank, WAITING_TAG)
        if seconds and waited > seconds:
            _end_without_grid(world, others, waited)
    if flags[0]:
        time.sleep(ERROR_SECONDS)  # that rank prints its error and ends the job
        end_job("\n=== the job cannot go on: another rank left it with an error; the job was ended ===\n")
    sys.modules["mpi4py.MPI"].Free_mem(flags)
    _receive_announcements(comm, world, announced)
    atexit.unregister(send_departure)  # from here on the stall watchdog of the process grid reports departures


def _announced_ranks(world: Any, ranks: Sequence[int]) -> list[int]:
    """Those of `ranks` that have announced that they wait."""
    return [rank for rank in ranks if world.Iprobe(rank, WAITING_TAG)]


def _receive_announcements(comm: Any, world: Any, announced: bool) -> None:
    """Receive the announcements of all ranks of `comm`: MPICH kills a job that ends with unreceived messages."""
    all_announced = bytearray(comm.Get_size())
    comm.Allgather(bytes([announced]), all_announced)
    for rank, has_announced in zip(ranks_within(comm, world), all_announced, strict=True):
        if has_announced and rank >= 0 and rank != world.Get_rank():
            world.Recv(bytearray(0), rank, WAITING_TAG)


def _end_without_grid(world: Any, others: Sequence[int], waited: float) -> NoReturn:
    """End the job because not all ranks make the process grid; the lowest waiting rank prints the message."""
    waiting = sorted({world.Get_rank(), *_announced_ranks(world, others)})
    missing = [rank for rank in others if rank not in waiting]
    if waiting[0] != world.Get_rank():
        time.sleep(LAST_RESORT_SECONDS)
    why = f"{name_ranks(waiting)} waited {waited:.0f} s for {name_ranks(missing)}"
    end_job(
        f"\n=== the job cannot go on: {why}; the job was ended ===\n"
        "* all ranks of a communicator make a process grid, or a Trainer without one, together; a rank that works "
        "on its own takes ProcessGrid(MPI.COMM_SELF)\n* for ranks that come later: a higher stall_seconds, or 0 for no "
        "limit\n"
    )


def _end_without(world: Any, left: int) -> NoReturn:
    """End the job because the rank `left` has exited; the lowest waiting rank prints the message."""
    time.sleep(2 * FORWARDING_SECONDS * world.Get_rank())
    message = bytearray(LEFT_BYTES)
    world.Recv(message, left, LEFT_TAG)
    departure = message.rstrip(b"\0").decode(errors="replace")
    end_job(
        f"\n=== the job cannot go on: rank {left} left it, and others wait; the job was ended ===\n"
        f"* rank {left} left the job: {departure}; rank {world.Get_rank()} waits for it to make its process grid\n"
    )


def send_departure() -> None:
    """When the interpreter ends, send how this rank exits to the ranks that wait for it (`wait_for_ranks`).

    Ranks that exit too receive the messages: MPICH kills a job that ends with unreceived ones.
    """
    world = running_world()
    if world is None:
        return
    departure = describe_exit("its script ended").encode()[:LEFT_BYTES]
    others = {rank for rank in range(world.Get_size()) if rank != world.Get_rank()}
    others -= _departed(world, others)
    sends = [world.Isend(departure, rank, LEFT_TAG) for rank in others]
    deadline = time.monotonic() + FORWARDING_SECONDS
    while (others or not all(send.Test() for send in sends)) and time.monotonic() < deadline:
        time.sleep(0.005)
        others -= _departed(world, others)


def _departed(world: Any, ranks: set[int]) -> set[int]:
    """Receive the departure messages that have arrived from `ranks`, and return their ranks."""
    departed = {rank for rank in ranks if world.Iprobe(rank, LEFT_TAG)}
    for rank in departed:
        world.Recv(bytearray(LEFT_BYTES), rank, LEFT_TAG)
    return departed


def describe_exit(otherwise: str) -> str:
    """The call of ``sys.exit`` that ends the script; `otherwise` without one."""
    call = sys.exit.call if isinstance(sys.exit, RecordedExit) else ""
    return f"its script ended with {call}" if call else otherwise


class RecordedExit:
    """``sys.exit`` that records its exit code and the line of the call.

    The attribute `call` is, for example, ``exit code 3, by sys.exit at script.py:12 in main``; empty before a call.
    """

    def __init__(self, exit_interpreter: Callable[..., NoReturn]) -> None:
        self._exit_interpreter = exit_interpreter
        self.call = ""

    def __call__(self, status: object = None, /) -> NoReturn:
        """Exit the interpreter by raising ``SystemExit(status)``."""
        if threading.current_thread() is threading.main_thread():
            code = 0 if status is None else status if isinstance(status, int) else 1
            self.call = f"exit code {code}, by sys.exit at {frame_location(sys._getframe(1))}"
        self._exit_interpreter(status)


def notify_higher_ranks() -> None:
    """Notify the ranks above this one, without waiting, that it prints the error that ends the job."""
    world = running_world()
    if world is not None:
        for rank in range(world.Get_rank() + 1, world.Get_size()):
            world.Isend(b"", rank, NOTICE_TAG)


def lower_rank_reports(seconds: float) -> bool:
    """Whether a rank below this one has called `notify_higher_ranks`, or does so within `seconds`."""
    world = running_world()
    if world is None:
        return False
    return _comes_true(lambda: any(world.Iprobe(rank, NOTICE_TAG) for rank in range(world.Get_rank())), seconds)


def install() -> None:
    """Install the hooks, once: for exceptions, for exceptions of threads, and for exits.

    Hooks of the program run first, because the job ends afterwards. Python's own would print the same traceback twice.
    """
    if os.environ.get("HYBRIDNN_NO_ABORT") or getattr(sys.excepthook, "ends_the_job", False):
        return
    previous, previous_thread, process = sys.excepthook, threading.excepthook, os.getpid()

    def on_error(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        if previous is not sys.__excepthook__ or running_world() is None:
            previous(kind, error, tb)
        abort_job(error.with_traceback(tb))

    def on_thread_error(args: threading.ExceptHookArgs) -> None:
        if previous_thread is not threading.__excepthook__ or running_world() is None:
            previous_thread(args)
        if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
            abort_job(args.exc_value, f" in thread {args.thread.name if args.thread else '?'}")

    def announced_exit(status: int) -> NoReturn:
        """``os._exit`` that prints the rank, its exit code and the line of the call."""
        world = running_world() if os.getpid() == process else None
        if world is not None:
            left = f"rank {world.Get_rank()} of {world.Get_size()} left the job with exit code {status}"
            message = f"\n=== {left}, by os._exit at {frame_location(sys._getframe(1))} ===\n"
            with contextlib.suppress(OSError):
                os.write(2, message.encode(errors="replace"))
        exit_now(status)

    on_error.ends_the_job = True  # type: ignore[attr-defined]  # marks the hook as installed
    sys.excepthook = on_error
    threading.excepthook = on_thread_error
    sys.exit = RecordedExit(sys.exit)
    os._exit = announced_exit


def code_location(file: str, line: int, function: str) -> str:
    """``file.py:12 in function``, with the path below ``hybridnn/`` for files of this package."""
    name = f"hybridnn/{file.removeprefix(PACKAGE)}" if file.startswith(PACKAGE) else file.rpartition("/")[2]
    return f"{name}:{line} in {function}"


def frame_location(frame: FrameType) -> str:
    """`code_location` of a frame."""
    return code_location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
