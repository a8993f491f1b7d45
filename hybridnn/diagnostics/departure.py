"""Departure: a rank that exits before it has met the others tells those that wait for it how it exits."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from hybridnn.comm.mpi import is_in_process

FORWARDING_SECONDS = 0.5  # time for the launcher to forward the last output of a rank
LEFT_TAG = 32766  # tag of the message of a rank that exits before it has met the others
LEFT_BYTES = 400  # size of that message, which contains how the rank exits


def running_world() -> Any:
    """COMM_WORLD if MPI is running on more than one rank, without importing anything."""
    mpi = None if is_in_process() else sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.Get_size() == 1:
        return None
    return mpi.COMM_WORLD


def send_departure() -> None:
    """When the interpreter ends, send how this rank exits to the ranks that wait for it (`failsafe.wait_for_ranks`).

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
            self.call = f"exit code {code}, by sys.exit at {location(sys._getframe(1))}"
        self._exit_interpreter(status)


def location(frame: FrameType) -> str:
    """File, line and function of a frame."""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"
