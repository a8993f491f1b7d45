"""The process that runs a submission: it starts a process for each rank of a case, and ends them afterwards.

Started as ``python -c`` by `hybridnn_course.carrier`, with a connection to the grader as its standard input. It has the
grader's user and never reads the submission; the processes of ranks give up their rights before they do.
"""

from __future__ import annotations

import array
import contextlib
import importlib.abc
import importlib.util
import io
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from hybridnn_course.answers import Failure
from hybridnn_course.execution import describe_error, failure_of
from hybridnn_course.frames import FrameError, receive_frame, send_frame
from hybridnn_course.guard import hide_library
from hybridnn_course.injection import find
from hybridnn_course.isolation import Ends, become_worker, can_import, confine, end_ranks, enter_namespaces, reap
from hybridnn_course.remote_group import RemoteGroup
from hybridnn_course.whole_run import digits

LOST_SECONDS = 2.0  # for a rank whose connection is closed to end; one that closed it itself may go on


CONNECTION = 3  # descriptor of a rank's connection to the grader, after those of what it reads and prints
MOST_DESCRIPTORS = 1024


class StoppedError(BaseException):
    """The grader has ended the case."""


class SubmittedFiles(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the files of a submission from memory, also where a folder of the path has a file of the same name."""

    def __init__(self, files: Mapping[str, str], paths: Mapping[str, str]) -> None:
        self._sources = {name.removesuffix(".py"): text for name, text in files.items() if name.endswith(".py")}
        self._paths = {name.removesuffix(".py"): path for name, path in paths.items()}

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Specification of a submitted module."""
        if fullname not in self._sources:
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the text of a module."""
        import linecache

        name = module.__name__
        text, path = self._sources[name], self._paths[name]
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        exec(compile(text, path, "exec"), module.__dict__)


class Printed(io.RawIOBase):
    """What a rank prints: what is beyond the limit of a file is left out, as it is no mistake of the function."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Any) -> int:
        """Write as much as the limit allows, and report all as written."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, data)
        return len(data)


def main() -> None:
    """Serve the grader until it closes the connection."""
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    mode = "none"
    with contextlib.suppress(FrameError):
        start = receive_frame(control)
        for name in start["exercises"]:
            importlib.import_module(name)
        start["files"] = {name: text.tobytes().decode() for name, text in start["files"].items()}
        mode = start["isolation"]
        if mode != "none":
            digits()  # which the processes of ranks may be unable to read
        become_worker(mode)
        send_frame(control, {"ready": mode == "none" or can_import(mode)})
        pids: list[int] = []
        while True:
            request = receive_frame(control)
            if request["do"] == "end":
                send_frame(control, _end_case(pids, request["lost"], mode))
                continue
            descriptors = _receive_descriptors(control, 2 * request["ranks"])
            pids = []
            for rank in range(request["ranks"]):
                pids.append(os.fork())
                if pids[-1] == 0:
                    _become_rank(start, descriptors, rank, request["seconds"], control)
            for descriptor in descriptors:
                os.close(descriptor)
            send_frame(control, {"started": True})
    end_ranks(mode, {})


def _end_case(pids: Sequence[int], lost: Sequence[int], mode: str) -> dict[str, Any]:
    """End the ranks of a case: the signal that ended each before, and its processor time; that of all processes."""
    ended: Ends = {}
    deadline = time.monotonic() + LOST_SECONDS
    while reap(ended) and not {pids[rank] for rank in lost} <= ended.keys() and time.monotonic() < deadline:
        time.sleep(0.002)
    signals = [_signal_of(ended[pid][0], mode) if pid in ended else 0 for pid in pids]
    end_ranks(mode, ended)
    ranks = [[number, ended[pid][1] if pid in ended else 0.0] for pid, number in zip(pids, signals, strict=True)]
    return {"ranks": ranks, "seconds": sum(seconds for _, seconds in ended.values())}


def _signal_of(status: int, mode: str) -> int:
    """The signal that ended a rank, 0 if none did; a process outside of its namespaces ends with it as exit code."""
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status)
    return os.WEXITSTATUS(status) if mode == "bwrap" else 0


def _receive_descriptors(connection: socket.socket, count: int) -> list[int]:
    found: array.array[int] = array.array("i")
    connection.settimeout(None)
    while len(found) < count:
        _, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(256 * found.itemsize))
        if not ancillary:
            raise FrameError("no descriptors")
        for _, _, data in ancillary:
            found.frombytes(data)
    return list(found)


def _become_rank(
    start: Mapping[str, Any], descriptors: Sequence[int], rank: int, seconds: int, control: socket.socket
) -> None:
    """Run one rank in this process, and end it."""
    try:
        control.detach()
        _keep_own(descriptors[rank], descriptors[len(descriptors) // 2 + rank])
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if start["isolation"] == "bwrap":
            enter_namespaces()
        confine(start["isolation"], seconds)
    except BaseException:
        os.kill(os.getpid(), signal.SIGKILL)  # which is no failure of the submission
    try:
        sys.stdout = io.TextIOWrapper(Printed(1), "utf-8", "replace", write_through=True)
        sys.stderr = io.TextIOWrapper(Printed(2), "utf-8", "replace", write_through=True)
        _run_rank(start, socket.socket(fileno=CONNECTION))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _keep_own(connection: int, printed: int) -> None:
    """Keep what belongs to a rank alone: an open file that ranks share, such as its flags, would be seen by all."""
    held = [os.dup(one) for one in (os.open(os.devnull, os.O_RDWR), printed, printed, connection)]
    for target, one in enumerate(held):  # all of them are beyond the first three
        os.dup2(one, target)
    os.closerange(CONNECTION + 1, MOST_DESCRIPTORS)


def _run_rank(start: Mapping[str, Any], connection: socket.socket) -> None:
    request = receive_frame(connection)

    def exchange(message: dict[str, Any]) -> dict[str, Any]:
        send_frame(connection, message)
        reply = receive_frame(connection)
        if "stop" in reply:
            raise StoppedError
        return reply

    file, name, paths, results = request["file"], request["function"], dict(start["paths"]), Results(request["returns"])
    run: Any = find(request["calls"])  # now, as the kit is hidden from the submission
    warnings.simplefilter("ignore")  # NaN in receive buffers
    try:
        hide_library(start["offered"], start["modules"], trains=request["whole"])
        sys.meta_path.insert(0, SubmittedFiles(start["files"], paths))
        function = getattr(importlib.import_module(file.removesuffix(".py")), name, None)
        if function is None:
            reply: dict[str, Any] = _failed(Failure("no function", f"{file} has no function {name}"))
        elif request["whole"]:
            reply = {"outputs": run(function, request["variant"])}
        else:
            group = RemoteGroup(request["rank"], request["size"], exchange) if request["communicates"] else None
            outputs = run(results.noting(function), request["inputs"], group, request["variant"])
            reply = {"outputs": outputs, "returned_none": results.are_none}
    except (StoppedError, FrameError):
        return
    except BaseException as error:
        reply = _failed(failure_of(error, describe_error(error, set(paths.values()))))
    try:
        _send_result(connection, reply, results)
    except FrameError:  # the grader has ended the case
        return


class Results:
    """Notes whether the calls of a function return None; `are_needed` where they have to return a value."""

    def __init__(self, are_needed: bool) -> None:
        self.are_needed = are_needed
        self.are_none: bool | None = None

    def noting(self, function: Any) -> Any:
        """The function, whose results are noted; what is no plain function, as it is."""
        if not isinstance(function, FunctionType):
            return function

        def noted(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            self.are_none = result is None and self.are_none is not False
            return result

        return noted


def _send_result(connection: socket.socket, reply: dict[str, Any], results: Results) -> None:
    about = "\nthe function returned None" if results.are_none and results.are_needed else ""
    try:
        if "failure" in reply:
            kind, text = reply["failure"]
            if "\n" not in text:  # otherwise it names lines of the submission, where it was raised
                reply = _failed(Failure(kind, text + about))
        send_frame(connection, reply)
    except (FrameError, ValueError, RecursionError) as error:
        text = f"the function returned what cannot be sent: {error}{about}"
        send_frame(connection, _failed(Failure("wrong output", text)))


def _failed(failure: Failure) -> dict[str, Any]:
    return {"failure": [failure.kind, failure.text]}
