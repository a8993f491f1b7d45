"""Scheduler of ranks: greenlets, that is stacks of one thread, of which exactly one runs at a time.

A rank runs until it waits for something that has not happened; then the next rank that can continue runs. Which one
depends on the arguments alone, in turn or drawn from a seed, so that a run is repeatable. Greenlets rather than
threads: a switch takes a microsecond instead of up to a millisecond on a busy machine, and Ctrl-C and debuggers see one
thread.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import threading
from bdb import BdbQuit
from collections.abc import Callable, Iterator, Sequence
from random import Random
from types import FrameType
from typing import Any

from greenlet import getcurrent, greenlet

from hybridnn.in_process.communication_errors import DeadlockError, StuckError
from hybridnn.in_process.records import is_debugged, location_of_thread

IDLE_POLLS = 1000  # polls of a rank, while no rank does anything else, after which it is taken to wait for ever


class RankStopped(BaseException):
    """Ends a rank when another one has failed."""


class Scheduler:
    """Runs one function for each rank, one rank at a time.

    `seed` is that of the order of ranks that can continue, None for in turn; `explain` returns the error when none can.
    """

    def __init__(self, size: int, seed: int | None, explain: Callable[[], DeadlockError]) -> None:
        self._size, self._explain = size, explain
        self._random = None if seed is None else Random(seed)
        self._ranks: list[greenlet] = []
        self._ready = set(range(size))
        self._missing: dict[int, int] = {}
        self._alive = set(range(size))
        self._idle_polls = 0
        self._calls = 0
        self._current = 0
        self._failure: BaseException | None = None

    @property
    def ended(self) -> frozenset[int]:
        """Ranks whose function has returned."""
        return frozenset(range(self._size)) - self._alive

    def frame_of(self, rank: int) -> FrameType | None:
        """Innermost frame of a rank that waits."""
        return self._ranks[rank].gr_frame if rank < len(self._ranks) else None

    def run(self, functions: Sequence[Callable[[], Any]], limit: float | None) -> list[Any]:
        """Run a function for each rank, and return their results.

        `limit` is the number of seconds that a rank may compute without a communication call. The first error of a
        rank is raised, or the deadlock, or `SystemExit` when the debugger was left in a rank.
        """
        results: list[Any] = [None] * self._size

        def body(rank: int) -> None:
            try:
                results[rank] = functions[rank]()
            except RankStopped:
                return
            except BdbQuit:
                self._fail(SystemExit(f"the debugger was left on rank {rank} of {self._size}: all ranks have ended"))
                return
            except BaseException as error:
                self._fail(error, rank)
                return
            self._leave(rank)

        for rank in range(self._size):
            # The parent is the caller, which continues when the function of a rank has returned.
            stack = greenlet(lambda rank=rank: body(rank), parent=getcurrent())
            stack.gr_context = contextvars.copy_context()
            self._ranks.append(stack)
        with self._limited(limit):
            self._start(self._next(-1) or 0)
            while self._alive and self._failure is None:
                self._start(self._current)
        for stack in self._ranks:  # after a failure, those that wait unwind their `with` and `finally` blocks
            if not stack.dead:
                with contextlib.suppress(RankStopped):  # it had not begun
                    stack.throw(RankStopped)
        if self._failure is not None:
            raise self._failure
        return results

    def block(self, rank: int, missing: int) -> None:
        """Run other ranks until `done` was called for this rank `missing` times."""
        self._check()
        self._missing[rank] = missing
        self._ready.discard(rank)
        self._switch(rank)

    def done(self, rank: int) -> None:
        """One of the events that block a rank has happened."""
        if rank in self._missing:
            self._missing[rank] -= 1
            if not self._missing[rank]:
                del self._missing[rank]
                self._ready.add(rank)

    def poll(self, rank: int) -> None:
        """Run the other ranks once, without waiting for anything."""
        self._check()
        self._idle_polls += 1
        if self._idle_polls > IDLE_POLLS * self._size:
            self._fail(self._explain())
            raise RankStopped
        self._switch(rank)

    def progress(self) -> None:
        """Note that a rank has begun a call: earlier polls do not count as idle."""
        self._check()
        self._idle_polls = 0

    # -- turns -------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self._calls += 1
        if self._failure is not None:
            raise RankStopped

    def _next(self, rank: int) -> int | None:
        """The rank that runs after `rank`; None if none can."""
        if not self._ready:
            return None
        if self._random is not None:
            return self._random.choice(sorted(self._ready))
        following = rank + 1
        while following % self._size not in self._ready:
            following += 1
        return following % self._size

    def _switch(self, rank: int) -> None:
        following = self._next(rank)
        if following is None:
            self._fail(self._explain())
            raise RankStopped
        if following != rank:
            self._start(following)
            self._check()

    def _start(self, rank: int) -> None:
        self._current = rank
        self._ranks[rank].switch()

    def _leave(self, rank: int) -> None:
        """Choose the next rank after the function of one has returned; the caller of `run` starts it."""
        self._alive.discard(rank)
        self._ready.discard(rank)
        self._idle_polls = 0
        if self._alive:
            following = self._next(rank)
            if following is None:
                self._fail(self._explain())
            else:
                self._current = following

    def _fail(self, error: BaseException, rank: int = -1) -> None:
        """End all ranks; the first error is kept."""
        if self._failure is None:
            self._failure = error
            if rank >= 0 and hasattr(error, "add_note"):
                error.add_note(f"on rank {rank} of {self._size}")

    @contextlib.contextmanager
    def _limited(self, limit: float | None) -> Iterator[None]:
        """In this context, fail when one rank runs for longer than `limit` seconds without a call."""
        done, thread = threading.Event(), threading.get_ident()

        def watch() -> None:
            calls = -1
            while not done.wait(limit):
                if self._calls == calls and not is_debugged(thread):
                    location = location_of_thread(thread)
                    text = f"rank {self._current} computed for {limit:g} s without a communication call, at {location}"
                    self._fail(StuckError(text), self._current)
                    # Ends a loop of Python; a call into the system ends first.
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(RankStopped))
                    return
                calls = self._calls

        if limit is not None:
            threading.Thread(target=watch, name="limit of ranks", daemon=True).start()
        try:
            yield
        finally:
            done.set()
