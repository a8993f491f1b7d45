"""An exception on any rank ends the whole job at once, with that rank's traceback; and so does whoever finds a stall.

Without this the failing rank would leave while the others wait for it in a collective, and the job would hang without a
word. The hook is installed when `hybridnn` is imported and does nothing until MPI runs on more than one rank. Set
``HYBRIDNN_NO_ABORT=1`` to keep Python's own behaviour, for example under a debugger.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import Any, NoReturn

from hybridnn.comm.mpi import is_in_process

__all__ = ["abort_job", "all_ranks_arrive", "end_job", "install", "running_world"]

FORWARDING_SECONDS = 0.5
"""The launcher forwards what ranks write and adds words of its own: time to forward a rank's last words."""

TURN_SECONDS = 0.1
"""By which a rank lets the one below it go first."""

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
    header = f"\n=== rank {rank} of {size} failed{where}; ending the job ===\n"
    # One write, so that the lines of ranks that fail together do not mix.
    os.write(2, (header + "".join(lines) + f"=== end of rank {rank}'s traceback ===\n").encode(errors="replace"))
    sys.stdout.flush()
    # Open MPI may crash, with pages of addresses, where ranks that fail together also end the job at the same moment.
    time.sleep(FORWARDING_SECONDS + min(rank * TURN_SECONDS, FORWARDING_SECONDS))
    _abort(world)


def end_job(last_words: str) -> NoReturn:
    """Print `last_words` and end every rank of the job with exit code 1, from any thread and whatever hangs."""
    # Nothing below can be trusted to return: the pipe may be full, standard output locked, MPI stuck.
    last_resort = threading.Timer(LAST_RESORT_SECONDS, os._exit, (1,))
    last_resort.daemon = True
    last_resort.start()
    os.write(2, last_words.encode(errors="replace"))
    sys.stdout.flush()
    time.sleep(FORWARDING_SECONDS)
    world = running_world()
    if world is not None:
        _abort(world)
    os._exit(1)


def _abort(world: Any) -> None:
    """End every rank that lives."""
    with contextlib.suppress(Exception):  # not every library knows what was lost
        if world.Get_failed().Get_size() == world.Get_size() - 1:
            # To the launcher of Open MPI 5 the abort of the last rank that lives is a success.
            os._exit(1)
    world.Abort(1)


def all_ranks_arrive(patience: float) -> bool:
    """Whether every rank of the job calls this within `patience` seconds; True where there is one rank."""
    world = running_world()
    if world is None:
        return True
    everyone = world.Ibarrier()
    deadline = time.monotonic() + patience
    while not everyone.Test():
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
