"""Plugin of the process that the user started: it runs jobs and reports their tests as ordinary items."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import pytest

from .launch import MpirunNotFound, find_mpirun, job_environment, started_job
from .rank import RECORDS_FOLDER, read_records, records_size
from .slowness import deadline
from .verdicts import JobEnd, Verdict, judge

__all__ = ["NO_JOB", "MpiJobs", "ranks_of", "wait_for_job"]

NO_JOB = pytest.StashKey[str]()
"""Reason for which an item is skipped without a job. Its marks do not tell: pytest-mpi marks every item."""

OUTPUT_SHOWN = 12000  # characters of the output of a failed job, enough for the stacks of a few ranks


def ranks_of(item: pytest.Item) -> int | None:
    """Return the number of ranks an item needs, None for a serial test."""
    if item.get_closest_marker("mpi") is None or not isinstance(item, pytest.Function):
        return None
    ranks = item.callspec.params["mpi_ranks"]
    assert isinstance(ranks, int)
    return ranks


def _time_limit(item: pytest.Item, usual: float) -> float:
    """Return the time limit of an item in seconds: that of its ``timeout`` mark, or the usual one."""
    mark = item.get_closest_marker("timeout")
    if mark is None:
        return usual
    return float(mark.args[0] if mark.args else mark.kwargs["timeout"]) or usual  # every test has a limit


def wait_for_job(process: subprocess.Popen[bytes], folder: Path, seconds: float) -> str | None:
    """Wait for the end of a job, at most until no rank has written a record for some seconds.

    Returns the reason to end the job; None if it ended.
    """
    size, since = 0, time.monotonic()
    while True:
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            now = records_size(folder)
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > seconds:
                return f"killed after {seconds:g} s in which no test began or finished"
        else:
            return None


class MpiJobs:
    """Runs all ``mpi`` items with the same number of ranks in one job, before the first of them is reported."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        # Seconds on an idle machine: a job measures how busy this one is when it starts.
        self._limit, self._grace = float(config.getini("mpi_timeout")), float(config.getini("mpi_grace"))
        self._verdicts: dict[str, Verdict] = {}
        # `timeout` and batch systems end a run with SIGTERM: exit in an orderly way, which ends the running job too.
        self._previous = signal.signal(signal.SIGTERM, self._leave)

    @staticmethod
    def _leave(number: int, frame: FrameType | None) -> None:
        pytest.exit("ended by SIGTERM", returncode=128 + number)

    def pytest_unconfigure(self) -> None:
        signal.signal(signal.SIGTERM, self._previous)

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item) -> bool | None:
        """Prevent pytest-timeout from applying the limit of the first item to the whole job."""
        return None if ranks_of(item) is None else True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        ranks = ranks_of(item)
        if ranks is None:
            return None
        if NO_JOB in item.stash:
            at = str(item.path), (item.location[1] or 0) + 1, f"Skipped: {item.stash[NO_JOB]}"
            self._verdicts[item.nodeid] = Verdict("skipped", skipped_at=at)
        if item.nodeid not in self._verdicts:
            waiting = [each for each in item.session.items if ranks_of(each) == ranks and NO_JOB not in each.stash]
            while item.nodeid not in self._verdicts:
                waiting = [each for each in waiting if each.nodeid not in self._verdicts]
                self._verdicts.update(self._run(ranks, waiting))
        _report(item, self._verdicts[item.nodeid])
        # The fixtures of the module of a previous serial test may still be set up.
        item.session._setupstate.teardown_exact(nextitem)
        return True

    def _command(self, ranks: int, listed: Path) -> list[str]:
        """Return the command that runs the node ids in a file."""
        options = ["--with-mpi", "-x", "-q", "--no-header", "--color=no", "-p", "no:cacheprovider"]
        options += ["--capture=sys"]  # what a rank writes to its descriptors before it ends the job is not lost
        options += [f"--timeout={deadline(self._limit)}", "--timeout-method=thread"]
        options += [f"--tb={self._config.option.tbstyle}", f"--rootdir={self._config.rootpath}"]
        if self._config.option.markexpr:
            options += ["-m", self._config.option.markexpr]  # conftest files read it
        if self._config.inipath is not None:
            options += ["-c", str(self._config.inipath)]
        python = [sys.executable, "-m", "mpi4py", "-m", "pytest"]
        return [find_mpirun(), "-n", str(ranks), *python, *options, f"@{listed}"]

    def _run(self, ranks: int, items: Sequence[pytest.Item]) -> dict[str, Verdict]:
        """Run one job and return the outcomes that it determined."""
        tests = [item.nodeid for item in items]
        longest = deadline(max(_time_limit(item, self._limit) for item in items) + self._grace)
        with tempfile.TemporaryDirectory(prefix="hybridnn-mpi-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            listed = folder / "tests.txt"
            listed.write_text("\n".join(tests), encoding="utf-8")
            try:
                command = self._command(ranks, listed)
            except MpirunNotFound as error:
                return dict.fromkeys(tests, Verdict("failed", str(error)))
            environment = job_environment({RECORDS_FOLDER: name, "PYTEST_ADDOPTS": None})
            output = folder / "output"
            with (
                output.open("wb") as out,
                started_job(command, stdout=out, environment=environment, folder=self._config.rootpath) as process,
            ):
                reason = wait_for_job(process, folder, longest)
            good = reason is None and process.returncode == 0
            reason = reason or f"mpirun ended with exit code {process.returncode}"
            text = output.read_text(encoding="utf-8", errors="replace")[-OUTPUT_SHOWN:]
            end = JobEnd(good, reason, text)
            return judge(tests, read_records(folder, ranks), end)


def _report(item: pytest.Item, verdict: Verdict) -> None:
    """Report the outcome of an item to pytest as if it had run in this process."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for when in ("setup", "call", "teardown"):
        report = pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords=dict.fromkeys(item.keywords, 1),
            outcome="passed",
            longrepr=None,
            when=when,
        )
        if when == "call":
            report.outcome = verdict.outcome  # type: ignore[assignment]
            report.longrepr = verdict.skipped_at or verdict.text or None
            report.duration = verdict.seconds
            report.sections = verdict.sections
            if verdict.expected_failure is not None:
                report.wasxfail = verdict.expected_failure
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
