"""Pieces of a day on a GPU: programs with a time limit, and what is kept of each."""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import IO, Any
from xml.etree import ElementTree

GRACE = 10.0
"""Seconds that a program has to end after a signal, before the next one."""

SHORT_GRACE = 2.0
"""The same if this process is being ended itself, and may be killed soon."""

SHOWN_LINES = 40
"""Last lines of the output of a piece that failed, kept with its result: the stacks of a few threads."""

PARENT_DEATH_SIGNAL = 1
"""``PR_SET_PDEATHSIG`` of Linux."""

FINISHED_TEST = re.compile(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)\b", re.MULTILINE)
"""A line of ``pytest -v``."""


@dataclass(frozen=True)
class Piece:
    """A program that writes a file of results."""

    name: str  # its key in ``gpu-day.json``
    arguments: tuple[str, ...]  # of Python; ``{results}`` stands for the path of the file
    seconds: float  # time limit
    expected: float = 0.0  # estimated time
    program: tuple[str, ...] = ()  # a program that runs Python, such as a debugger, and its options
    left_out: str = ""  # reason for not running it on this machine

    @property
    def is_test(self) -> bool:
        """Whether the results are those of pytest, in JUnit's XML, instead of JSON."""
        return any("--junitxml" in argument for argument in self.arguments)

    @property
    def signals(self) -> tuple[signal.Signals, ...]:
        """Signals that end it, in turn: on SIGTERM, pytest ends its ranks; on SIGABRT, Python prints its stacks."""
        stacks = signal.SIGABRT, signal.SIGKILL
        return (signal.SIGTERM, *stacks) if self.is_test else stacks


def now() -> str:
    """Date and time."""
    return datetime.now(timezone.utc).isoformat(timespec="minutes")


def run_piece(piece: Piece, log: Path) -> dict[str, Any]:
    """Run a piece, whose output is appended to `log`.

    Returns
    -------
    dict
        ``outcome``, "done", "failed", "out of time", or "interrupted" if this process was told to end; ``seconds``,
        ``date``; ``figures``, its results if it wrote any; ``output``, the last lines if it was not done.
    """
    start = monotonic()
    with TemporaryDirectory() as folder, log.open("ab") as stream:
        results = Path(folder, "results")
        stream.write(f"== {piece.name}\n".encode())
        stream.flush()
        begin = stream.tell()
        arguments = (text.replace("{results}", str(results)) for text in piece.arguments)
        outcome = _run(piece, [*piece.program, sys.executable, "-X", "faulthandler", *arguments], stream)
        text = log.read_bytes()[begin:].decode("utf-8", "replace")
        figures: Mapping[str, Any] | None
        if piece.is_test and (outcome not in ("done", "failed") or not results.exists()):
            # Pytest's file would count the test that was interrupted as passed.
            figures, problem = _counts_of_lines(text), "\nthe tests were ended"
        else:
            figures, problem = _figures_of(piece, results)
        stream.write(f"{problem}\n".encode())
    if problem and outcome == "done":
        outcome = "failed"
    return {
        "outcome": outcome,
        "seconds": round(monotonic() - start, 1),
        "date": now(),
        **({"figures": figures} if figures is not None else {}),
        **({"output": f"{text}{problem}".splitlines()[-SHOWN_LINES:]} if outcome != "done" else {}),
    }


def _run(piece: Piece, command: Sequence[str], stream: IO[bytes]) -> str:
    """Outcome of a program; in any case, all programs that it started have ended afterwards."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stream,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        preexec_fn=_prepare,
    )
    try:
        outcome = "failed" if process.wait(piece.seconds) else "done"
    except subprocess.TimeoutExpired:
        outcome = "out of time"
        _end(process, piece.signals, GRACE)
    except KeyboardInterrupt:
        outcome = "interrupted"
        for name in (signal.SIGTERM, signal.SIGINT):  # a second one must not prevent that the results are kept
            signal.signal(name, signal.SIG_IGN)
        _end(process, piece.signals, SHORT_GRACE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    return outcome


def _prepare() -> None:
    """Let a piece leave no core file, and be killed if this process is, which would otherwise leave it running."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes], signals: Sequence[signal.Signals], grace: float) -> None:
    """Send signals to a process group until its first process ends."""
    for each in signals:
        with suppress(subprocess.TimeoutExpired, ProcessLookupError):
            os.killpg(process.pid, each)
            process.wait(grace)
            return


def _figures_of(piece: Piece, results: Path) -> tuple[Mapping[str, Any] | None, str]:
    """Results that a piece wrote, and a text if they cannot be read."""
    try:
        return (_counts_of_tests(results) if piece.is_test else json.loads(results.read_text(encoding="utf-8"))), ""
    except FileNotFoundError:
        return None, "\nno results were written"
    except (ValueError, ElementTree.ParseError) as error:
        return None, f"\nthe results cannot be read: {error}"


def _counts_of_tests(path: Path) -> dict[str, Any]:
    """What became of the tests in JUnit's XML.

    Returns
    -------
    dict
        ``passed``, their number; ``skipped``, numbers by reason; ``failed``, names of tests that found other results
        than expected; ``errors``, names of those that could not be carried out.
    """
    counts: dict[str, Any] = {"passed": 0, "skipped": Counter(), "failed": [], "errors": []}
    for test in ElementTree.parse(path).iter("testcase"):
        name = f"{test.get('classname')}::{test.get('name')}"
        ends = {end.tag: end for end in test}
        if "failure" in ends:
            counts["failed" if "AssertionError" in "".join(ends["failure"].itertext()) else "errors"].append(name)
        elif "error" in ends:
            counts["errors"].append(name)
        elif "skipped" in ends:
            counts["skipped"][ends["skipped"].get("message", "")] += 1
        else:
            counts["passed"] += 1
    return counts


def _counts_of_lines(output: str) -> dict[str, Any]:
    """The same from the output of tests that were ended, which does not tell failures from errors, nor reasons."""
    found = FINISHED_TEST.findall(output)
    return {
        "passed": sum(end == "PASSED" for _, end in found),
        "skipped": Counter({"": sum(end == "SKIPPED" for _, end in found)}),
        "failed": [],
        "errors": [name for name, end in found if end in ("FAILED", "ERROR")],
    }
