"""Run a solution on a case: in this process, for code that is trusted, with all ranks as ranks of one process."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Collection
from typing import Any

from hybridnn.comm.group import Group
from hybridnn.comm.recorder import Recorder
from hybridnn.errors import EnvironmentProblem
from hybridnn.in_process import CommunicationError, DeadlockError, RunResult, StuckError, run_ranks
from hybridnn_course.answers import DEADLOCK, NOT_WRITTEN, Answer, Call, Failure, Values

ALPHA, BETA = 1e-6, 1e-9
"""Seconds per message and per byte on the virtual clock of all checks."""

LIMIT = 10.0  # seconds that a rank may compute

TRACEBACK_LINES = 12
MOST_TEXT = 4000  # characters that describe a failure

KINDS = {
    "changed the buffer": "a send buffer changed",
    "has not brought yet": "sent before it arrived",
    "wrote to the buffer": "a receive buffer changed",
    "was not received": "a message was not received",
    "no wait for its": "a call was not waited for",
    "different collectives": "different collectives",
    "receives up to": "a message does not fit",
    "do not fit": "arrays do not fit",
    "without a communication call": "no end",
}
"""Kinds of communication errors, by a part of their messages."""


class RefusedOperationError(CommunicationError):
    """The function called an operation of the group that the task does not allow."""


class MachineError(EnvironmentProblem):
    """The machine failed, or may have: nothing is known about the submission."""


class StudentError(Exception):
    """A rank of a submission failed; the failure is its argument."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


def run_programs(
    ranks: int, program: Callable[[Any], Values], order: str | int = "in turn", limit: float | None = LIMIT
) -> Answer:
    """The answer of a program that returns its outputs, on ranks of this process.

    `limit` is that of `run_ranks`.
    """
    try:
        run = run_ranks(ranks, program, order=order, alpha=ALPHA, beta=BETA, limit=limit)
    except StudentError as error:
        return Answer(failure=error.failure)
    except Exception as error:
        return Answer(failure=failure_of(error))
    return Answer(outputs=tuple(run.results), calls=calls_of(run), clock=max(run.clock))


def make_group(comm: Any) -> Group:
    """The group of a task."""
    return Group(comm, "ranks", Recorder(64))


def calls_of(run: RunResult) -> tuple[Call, ...]:
    """The calls of a run."""
    return tuple(
        Call(item.rank, item.name, item.peer, item.nbytes, item.begun.call, item.waited.call, item.ended.call)
        for item in run.messages
    )


def failure_of(error: BaseException, text: str | None = None) -> Failure:
    """The failure that an exception of a student's function stands for."""
    if isinstance(error, StudentError):
        return error.failure
    if text is None:
        text = str(error)[:MOST_TEXT]
    if isinstance(error, NotImplementedError):
        return Failure(NOT_WRITTEN, text)
    if isinstance(error, DeadlockError):
        waits = {
            word for word in ("send", "receive", "allreduce", "allgather", "barrier") if f"waits in {word}" in text
        }
        others = ", with calls that match none" if " has begun " in text else ""
        return Failure(f"{DEADLOCK} in {' and '.join(sorted(waits))}{others}", text)
    if isinstance(error, RefusedOperationError):
        return Failure("refused operation", text)
    if isinstance(error, StuckError):
        return Failure("no end", text)
    if isinstance(error, CommunicationError):
        kind = next((kind for part, kind in KINDS.items() if part in text), "communication error")
        return Failure(kind, text)
    if isinstance(error, MemoryError):
        return Failure("memory", text or "out of memory")
    described_alone = "".join(traceback.format_exception_only(error)).strip()
    return Failure(f"raised {type(error).__name__}", text if text != str(error) else described_alone)


def describe_error(error: BaseException, paths: Collection[str]) -> str:
    """The exception, with the lines of the student's files that led to it."""
    lines = []
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename in paths:
            lines.append(f"  {os.path.basename(frame.f_code.co_filename)}:{number} in {frame.f_code.co_name}")
    try:
        last = "".join(traceback.format_exception_only(error)).strip()
    except Exception:  # of the student's own __str__
        last = type(error).__name__
    if isinstance(error, NotImplementedError) or not lines:  # the message of a stub says all
        return last
    return "\n".join([last, *lines[-TRACEBACK_LINES:]])
