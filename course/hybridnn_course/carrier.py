"""Run a submission in processes of its own, and carry, count and time the messages between its ranks.

The grader never imports a submission. Each rank of a case is a process that sends its calls to this one, which carries
them out as the same rank of a program on ranks of one process: `hybridnn.in_process` matches messages, finds deadlocks
and advances the virtual clock.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from types import CodeType, FunctionType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridnn.errors import EnvironmentProblem
from hybridnn.in_process import CommunicationError
from hybridnn_course.answers import Answer, Failure, Values
from hybridnn_course.assignment import Assignment, Case, Task, Variant
from hybridnn_course.execution import (
    RefusedOperationError,
    StudentError,
    make_group,
    run_programs,
)
from hybridnn_course.frames import FrameError, FrameTimeoutError, receive_frame, send_frame
from hybridnn_course.isolation import ReservedUsers, command_prefix
from hybridnn_course.remote_group import OPERATIONS

if TYPE_CHECKING:
    from typing_extensions import Self

START_SECONDS = 60.0  # for a worker to import what it needs
LEAST_SECONDS = 2.0  # for it to start or to end the ranks of a case; in a container, a rank may stop it
END_SECONDS = 5.0  # for it to end after the last case; a rank in a container may have stopped it
CARRIED_BYTES = 1 << 30  # of all arrays of a case
CARRIED_CALLS = 100_000
WHOLE_FACTOR = 4  # a training may take so many times the limit of a case
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
        Seconds of one case; a training may take longer.
    modules : sequence of str
        Modules that the course allows besides those that every submission may import.

    Attributes
    ----------
    printed : str
        The beginning of what the student's code printed in all cases.
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
        self._limit, self.printed = limit, ""
        self._is_alive = True
        self._users = ReservedUsers() if isolation == "user" else None
        own, theirs = socket.socketpair()
        self._control = own
        self._process = subprocess.Popen(
            [*command_prefix(isolation), sys.executable, "-I", "-B", "-c", PROGRAM.format(paths=_paths())],
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
        start = {"files": dict(files), "paths": names, "modules": list(modules)}
        start |= {"exercises": list(exercises), "offered": list(assignment.imports)}
        first_user = 0 if self._users is None else self._users.first
        try:
            send_frame(own, {**start, "isolation": isolation, "first_user": first_user})
            ready = receive_frame(own, monotonic() + START_SECONDS)["ready"]
        except FrameError as error:
            self._end()
            raise EnvironmentProblem(f"the process for submissions did not start: {error}") from error
        if not ready:
            self._end()
            raise EnvironmentProblem(
                f"the users that submissions run as cannot read Python's files in {sys.base_prefix}, or this package: "
                "install both where every user may read them"
            )

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
        if self._users is not None:
            self._users.release()

    def run(self, task: Task, case: Case, variant: Variant) -> Answer:
        """The answer of the student's function to a case."""
        return self._run(task, case.inputs, variant, whole=False)

    def run_whole(self, task: Task, variant: Variant) -> Answer:
        """The outcome of the training with the student's function."""
        return self._run(task, ({},), variant, whole=True)

    def _run(self, task: Task, inputs: Sequence[Values], variant: Variant, *, whole: bool) -> Answer:
        ended = Answer(failure=Failure("ended", "the submission ended the processes that run it"))
        if not self._is_alive:
            return ended
        limit = self._limit * (WHOLE_FACTOR if whole else 1)
        try:
            return self._carry(task, inputs, variant, limit, whole=whole)
        except FrameError:
            self._is_alive = False
            return ended

    def _carry(self, task: Task, inputs: Sequence[Values], variant: Variant, limit: float, *, whole: bool) -> Answer:
        ranks = len(inputs)
        with tempfile.TemporaryFile() as printed:
            ranks_of = self._start(ranks, printed.fileno(), limit)
            try:
                deadline = monotonic() + limit
                for rank, connection in enumerate(ranks_of):
                    about = {**_about(task, whole=whole), "rank": rank, "size": ranks}
                    send_frame(connection, {**about, "inputs": inputs[rank], "variant": dict(variant)})
                carriers = [_Carrier(connection, task, deadline, limit) for connection in ranks_of]
                answer = run_programs(ranks, lambda comm: carriers[comm.rank].serve(comm), limit=None)
                results = {carrier.returned_none for carrier in carriers}
                answer = replace(answer, returned_none=results.pop() if len(results) == 1 else None)
            except FrameError as error:
                answer = Answer(failure=Failure("ended", f"the process ended without a result: {error}"))
            finally:
                for connection in ranks_of:
                    connection.close()
                self._stop(ranks, limit)
            printed.seek(0)
            self.printed = (self.printed + printed.read(SHOWN_BYTES).decode(errors="replace"))[:SHOWN_BYTES]
        return answer

    def _start(self, ranks: int, printed: int, limit: float) -> list[socket.socket]:
        pairs = [socket.socketpair() for _ in range(ranks)]
        try:
            send_frame(self._control, {"do": "start", "ranks": ranks, "seconds": int(limit) + 1})
            for first in range(0, ranks, 64):
                part = [theirs.fileno() for _, theirs in pairs[first : first + 64]]
                socket.send_fds(self._control, [b"f"], part + ([printed] if first + 64 >= ranks else []))
            self._await_worker(limit)
        finally:
            for _, theirs in pairs:
                theirs.close()
        return [own for own, _ in pairs]

    def _stop(self, ranks: int, limit: float) -> None:
        send_frame(self._control, {"do": "end", "ranks": ranks})
        self._await_worker(limit)

    def _await_worker(self, limit: float) -> None:
        """Wait until the worker has done something, as long as a case may take."""
        receive_frame(self._control, monotonic() + max(limit, LEAST_SECONDS))


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

    def __init__(self, connection: socket.socket, task: Task, deadline: float, limit: float) -> None:
        self._connection, self._task, self._deadline, self._limit = connection, task, deadline, limit
        self._requests: dict[int, tuple[Any, Any]] = {}
        self._calls = self._bytes = 0
        self.returned_none: bool | None = None

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
            raise StudentError(Failure("no end", f"no result after {self._limit:g} s")) from None
        except FrameError:
            text = "the process of the rank ended without a result"
            raise StudentError(Failure("ended", text)) from None

    def _try_to_stop(self) -> None:
        try:
            self._connection.settimeout(0.1)
            send_frame(self._connection, {"stop": True})
        except FrameError:
            return

    def _result(self, message: dict[str, Any]) -> Values:
        if "failure" in message:
            kind, text = message["failure"]
            raise StudentError(Failure(str(kind)[:80], str(text)[:4000]))
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
            raise StudentError(Failure("too much communication", f"more than {CARRIED_CALLS:,} calls or 1 GiB"))
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


def _paths() -> list[str]:
    """Where this process imports its packages from."""
    return [path for path in sys.path if path and os.path.isdir(path)]


def _environment() -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "LANG": "C.UTF-8",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
