"""Run a submission in processes of its own, and carry, count and time the messages between its ranks.

The grader never imports a submission. Each rank of a case is a process that sends its calls to this one, which carries
them out as the same rank of a program on ranks of one process: `hybridnn.in_process` matches messages, finds deadlocks
and advances the virtual clock.
"""

from __future__ import annotations

import math
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from types import CodeType, FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hybridnn.errors import EnvironmentProblem
from hybridnn.in_process import CommunicationError
from hybridnn_course.answers import Answer, Failure, Values
from hybridnn_course.assignment import Assignment, Case, Task, Variant
from hybridnn_course.execution import (
    MOST_TEXT,
    MachineError,
    RefusedOperationError,
    StudentError,
    make_group,
    run_programs,
)
from hybridnn_course.frames import FrameError, FrameTimeoutError, receive_frame, send_frame
from hybridnn_course.isolation import claim_user, command_prefix, has_memory, import_paths
from hybridnn_course.remote_group import OPERATIONS
from hybridnn_course.watch import Watch

if TYPE_CHECKING:
    from typing_extensions import Self

START_SECONDS = 60.0  # for a worker to import what it needs
LEAST_SECONDS = 2.0  # for one that was lost to end
END_SECONDS = 5.0  # for it to end after the last case; a rank in a container may have stopped it
CARRIED_BYTES = 128 << 20  # of all arrays of a rank
CARRIED_CALLS = 100_000
WHOLE_FACTOR = 4  # a training may take so many times the limit of a case
WALL_FACTOR = 12  # and any case so many times its limit by the clock, as other programs use the machine, too
BY_OTHERS = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
"""Signals that the system, a person or another program may have sent."""
SHOWN_BYTES = 4096  # of what a rank prints
PROGRAM = "import sys; sys.path[:0] = {paths!r}; from hybridnn_course.worker import main; main()"


class Worker:
    """Runs the cases of one submission; a context manager that ends all its processes.

    Parameters
    ----------
    files : mapping
        Names of the student's files, and their text.
    paths : mapping
        Their names in tracebacks.
    isolation : str
        Of `choose_isolation`.
    limit : float
        Seconds of processor time that a rank has for one case; a training may take longer.
    modules : sequence of str
        Modules that the course allows besides those that every submission may import.

    Attributes
    ----------
    printed : str
        The beginning of what the student's code printed in all cases.
    seconds : float
        Processor time of all cases.

    Raises
    ------
    MachineError
        Here and in a case, where the machine failed or may have.
    EnvironmentProblem
        If Python's files cannot be read by the users of submissions.
    """

    def __init__(
        self,
        assignment: Assignment,
        files: Mapping[str, str],
        paths: Mapping[str, str] | None = None,
        *,
        isolation: str = "none",
        limit: float = 10.0,
        modules: Sequence[str] = (),
    ) -> None:
        self._limit, self.printed, self.seconds = limit, "", 0.0
        self._is_alive = True
        self._watch: Watch | None = None
        self._claim = claim_user() if isolation == "user" else None
        own, theirs = socket.socketpair()
        self._control = own
        self._process = subprocess.Popen(
            [*command_prefix(isolation), sys.executable, "-I", "-B", "-c", PROGRAM.format(paths=import_paths())],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if isolation != "none" else None,
            env=_environment(),
            cwd="/",
            start_new_session=True,
        )
        theirs.close()
        names = {name: name for name in files} if paths is None else dict(paths)
        runs = [run for task in assignment.tasks for run in (task.call, task.whole and task.whole.run) if run]
        exercises = dict.fromkeys(run.__module__ for run in runs)
        coded = {name: np.frombuffer(text.encode(), np.uint8) for name, text in files.items()}
        start = {"files": coded, "paths": names, "modules": list(modules)}
        start |= {"exercises": list(exercises), "offered": list(assignment.imports)}
        try:
            send_frame(own, {**start, "isolation": isolation})
            ready = receive_frame(own, monotonic() + START_SECONDS)["ready"]
        except FrameError as error:
            self._end()
            raise MachineError(f"the process for submissions did not start: {error}") from error
        if not ready:
            self._end()
            raise EnvironmentProblem(
                f"the user that submissions run as cannot read Python's files in {sys.base_prefix}, or this package: "
                "install both where every user may read them"
            )
        if isolation != "none":
            self._watch = Watch(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        self._control.close()
        try:
            self._process.wait(END_SECONDS if self._is_alive else LEAST_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._watch is not None:
            self._watch.end()
        if self._claim is not None:
            self._claim.close()

    def run(self, task: Task, case: Case, variant: Variant) -> Answer:
        """The answer of the student's function to a case."""
        return self._run(task, case.inputs, variant, whole=False)

    def run_whole(self, task: Task, variant: Variant) -> Answer:
        """The outcome of the training with the student's function."""
        return self._run(task, ({},), variant, whole=True)

    def _run(self, task: Task, inputs: Sequence[Values], variant: Variant, *, whole: bool) -> Answer:
        limit = self._limit * (WHOLE_FACTOR if whole else 1)
        try:
            return self._carry(task, inputs, variant, limit, whole=whole)
        except FrameError as error:
            self._is_alive = False
            raise MachineError(f"the process that starts those of the submission was lost: {error}") from error

    def _carry(self, task: Task, inputs: Sequence[Values], variant: Variant, limit: float, *, whole: bool) -> Answer:
        ranks = len(inputs)
        carriers: list[_Carrier] = []
        if self._watch is not None:
            self._watch.begin(ranks)
        with ExitStack() as stack:  # a file for each rank, by which no other one can be told anything
            printed = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(ranks)]
            connections = self._start([file.fileno() for file in printed], limit)
            try:
                deadline = monotonic() + WALL_FACTOR * limit
                carriers = [_Carrier(connection, task, deadline) for connection in connections]
                for rank, carrier in enumerate(carriers):
                    about = {**_about(task, whole=whole), "rank": rank, "size": ranks}
                    carrier.send({**about, "inputs": inputs[rank], "variant": dict(variant)})
                answer = run_programs(ranks, lambda comm: carriers[comm.rank].serve(comm), limit=None)
            finally:
                for connection in connections:
                    connection.close()
                ended, seconds = self._stop(carriers)
            for file in printed:
                file.seek(0)
                self.printed = (self.printed + file.read(SHOWN_BYTES).decode(errors="replace"))[:SHOWN_BYTES]
        results = {carrier.returned_none for carrier in carriers}
        answer = replace(answer, returned_none=results.pop() if len(results) == 1 else None)
        if self._watch is not None and self._watch.over:
            return Answer(failure=Failure("memory", f"the submission used {self._watch.over}"))
        if any(carrier.is_lost or carrier.is_late for carrier in carriers):
            return Answer(failure=_failure_of_lost(carriers, ended, seconds, limit))
        if answer.failure is not None and answer.failure.kind == "memory" and not has_memory():
            raise MachineError("memory was refused, and the machine has less than a submission may have")
        return answer

    def _start(self, printed: Sequence[int], limit: float) -> list[socket.socket]:
        pairs = [socket.socketpair() for _ in printed]
        given = [*(theirs.fileno() for _, theirs in pairs), *printed]
        try:
            send_frame(self._control, {"do": "start", "ranks": len(printed), "seconds": math.ceil(limit)})
            for first in range(0, len(given), 64):
                socket.send_fds(self._control, [b"f"], given[first : first + 64])
            self._await_worker()
        finally:
            for _, theirs in pairs:
                theirs.close()
        return [own for own, _ in pairs]

    def _stop(self, carriers: Sequence[_Carrier]) -> tuple[list[Ended], float]:
        """End the ranks of a case: how each ended, the lost ones by themselves, and the seconds of all processes."""
        lost = [rank for rank, carrier in enumerate(carriers) if carrier.is_lost]
        send_frame(self._control, {"do": "end", "lost": lost})
        reply = self._await_worker()
        seen = 0.0 if self._watch is None else sum(self._watch.times.values())
        seconds = max(seen, reply["seconds"])
        self.seconds += seconds
        return [Ended(*one) for one in reply["ranks"]], seconds

    def _await_worker(self) -> dict[str, Any]:
        """What the worker says when it has started or ended ranks."""
        return receive_frame(self._control, monotonic() + START_SECONDS)


class Ended(NamedTuple):
    """How the process of a rank ended: the signal, 0 without one or at the end of the case, and its processor time."""

    signal: int
    seconds: float


def _failure_of_lost(carriers: Sequence[_Carrier], ended: Sequence[Ended], seconds: float, limit: float) -> Failure:
    """Why ranks gave no result, where it is proved; `MachineError` where it may be the machine's."""
    lost = [one for one, carrier in zip(ended, carriers, strict=True) if carrier.is_lost]
    over = any(one.signal == signal.SIGXCPU or one.seconds >= limit for one in lost)
    if over or seconds >= limit * len(ended):
        return Failure("no end", f"no result after {limit:g} s of processor time")
    if any(carrier.is_late for carrier in carriers):
        raise MachineError(f"no result after {WALL_FACTOR * limit:g} s, of which {seconds:.1f} s of processor time")
    if signals := [signal.Signals(one.signal).name for one in lost if one.signal in BY_OTHERS]:
        raise MachineError(f"{signals[0]}, which no limit of a submission sends, ended the process of a rank")
    return Failure("ended", "the process of the rank ended without a result")


def _about(task: Task, *, whole: bool) -> dict[str, Any]:
    """What a rank needs to know of a task: where the student's function is, and what calls it."""
    calls: Any = task.whole.run if whole and task.whole is not None else task.call
    return {
        "file": task.file,
        "function": task.function,
        "calls": f"{calls.__module__}:{calls.__qualname__}",
        "communicates": bool(task.operations),
        "returns": bool(task.returns),
        "whole": whole,
    }


class _Carrier:
    """Carries out the calls of one rank."""

    def __init__(self, connection: socket.socket, task: Task, deadline: float) -> None:
        self._connection, self._task, self._deadline = connection, task, deadline
        self.is_lost = self.is_late = False
        self._requests: dict[int, tuple[Any, Any]] = {}
        self._calls = self._bytes = 0
        self.returned_none: bool | None = None

    def send(self, inputs: dict[str, Any]) -> None:
        """Send the inputs of a case; a rank that is lost is found by what it does not send."""
        self._connection.settimeout(max(0.0, self._deadline - monotonic()))
        with suppress(FrameError):
            send_frame(self._connection, inputs)

    def serve(self, comm: Any) -> Values:
        """Carry out calls until the rank returns its outputs; a program of `run_ranks`."""
        group = make_group(comm) if self._task.operations else None
        ended = False
        try:
            while True:
                message = self._receive()
                if "outputs" in message or "failure" in message:
                    ended = True
                    return self._result(message)
                send_frame(self._connection, self._carry_out(group, message))
        finally:
            if not ended:
                self._try_to_stop()

    def _receive(self) -> dict[str, Any]:
        try:
            return receive_frame(self._connection, self._deadline)
        except FrameTimeoutError:
            self.is_late = True
            raise StudentError(Failure("no end", "")) from None
        except FrameError:
            self.is_lost = True
            raise StudentError(Failure("ended", "")) from None

    def _try_to_stop(self) -> None:
        try:
            self._connection.settimeout(0.1)
            send_frame(self._connection, {"stop": True})
        except FrameError:
            return

    def _result(self, message: dict[str, Any]) -> Values:
        if "failure" in message:
            kind, text = message["failure"]
            raise StudentError(Failure(str(kind)[:80], str(text)[:MOST_TEXT]))
        outputs: Values = message["outputs"]
        if not isinstance(outputs, dict):
            raise StudentError(Failure("wrong output", "the outputs are not values by name"))
        if isinstance(noted := message.get("returned_none"), bool):
            self.returned_none = noted
        return outputs

    def _carry_out(self, group: Any, message: dict[str, Any]) -> dict[str, Any]:
        try:
            name, site = str(message["do"]), message.get("site")
            if name in ("wait", "test"):
                request, array = self._requests[int(message["request"])]
                done = _at(site, request.wait) is None if name == "wait" else _at(site, request.test)
                if not done:
                    return {"done": False}
                del self._requests[int(message["request"])]
                return {"done": True, "array": array}
            if name not in self._task.operations or name not in OPERATIONS or group is None:
                allowed = ", ".join(self._task.operations) or "none"
                raise RefusedOperationError(f"{name} is not allowed in this task; allowed: {allowed}")
            if name == "barrier":
                _at(site, group.barrier)
                return {"done": True}
            return {"request": self._begin(group, OPERATIONS[name], message)}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, CommunicationError):
                raise
            raise StudentError(Failure(f"raised {type(error).__name__}", str(error))) from error

    def _begin(self, group: Any, method: str, message: dict[str, Any]) -> int:
        array = message["array"]
        self._bytes += getattr(array, "nbytes", 0)
        if self._bytes > CARRIED_BYTES or self._calls >= CARRIED_CALLS:
            raise StudentError(Failure("too much communication", f"more than {CARRIED_CALLS:,} calls or 128 MiB"))
        if not isinstance(array, np.ndarray):
            raise TypeError("not an array")
        arguments: list[Any] = [array]
        if method in ("isend", "ireceive"):
            arguments += [int(message["peer"]), int(message["tag"])]
        elif method == "iallreduce":
            arguments.append(str(message["operation"]))
        elif method == "ibroadcast":
            arguments.append(int(message["root"]))
        request = _at(message.get("site"), partial(getattr(group, method), *arguments))
        number = self._calls
        self._calls += 1
        self._requests[number] = (request, array)
        return number


def _call_it(call: Any) -> Any:
    return call()


def _at(site: Any, call: Any) -> Any:
    """Call, as if the line of the student's code did it, so that messages about deadlocks name that line."""
    code: CodeType = _call_it.__code__
    if isinstance(site, list) and len(site) == 3 and isinstance(site[1], int) and 0 < site[1] < 1_000_000:
        file, line, name = Path(str(site[0])[:200]).name, site[1], str(site[2])[:80]
        code = code.replace(co_filename=file, co_name=name, co_firstlineno=line - 1)
    return FunctionType(code, {})(call)


def _environment() -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "LANG": "C.UTF-8",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
