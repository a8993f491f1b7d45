"""Plugin of the process that the user started: it runs jobs and reports their tests as ordinary items."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Literal

import pytest

from .launch import MpirunNotFound, find_mpirun, job_environment, started_job
from .rank import RECORDS, RECORDS_FOLDER, read_records
from .slowness import deadline

Reports = dict[str, list[pytest.TestReport]]
"""Reports of tests, by node id."""

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
    """Wait for the end of a job, at most until there is no new record for some seconds.

    Returns the reason to end the job; None if it ended.
    """
    file, size, since = folder / RECORDS, 0, time.monotonic()
    while True:
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            now = file.stat().st_size if file.exists() else 0
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
        self._reports: Reports = {}
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
            self._reports[item.nodeid] = [_report(item.nodeid, "skipped", at)]
        waiting = [each for each in item.session.items if ranks_of(each) == ranks and NO_JOB not in each.stash]
        while item.nodeid not in self._reports:
            waiting = [each for each in waiting if each.nodeid not in self._reports]
            self._reports |= self._run(ranks, waiting)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports[item.nodeid]:
            report.location, report.keywords = item.location, dict.fromkeys(item.keywords, 1)
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
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

    def _run(self, ranks: int, items: Sequence[pytest.Item]) -> Reports:
        """Run one job and return the reports that it determined."""
        tests = [item.nodeid for item in items]
        longest = deadline(max(_time_limit(item, self._limit) for item in items) + self._grace)
        with tempfile.TemporaryDirectory(prefix="hybridnn-mpi-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            listed = folder / "tests.txt"
            listed.write_text("\n".join(tests), encoding="utf-8")
            try:
                command = self._command(ranks, listed)
            except MpirunNotFound as error:
                return {test: [_report(test, "failed", str(error))] for test in tests}
            environment = job_environment({RECORDS_FOLDER: name, "PYTEST_ADDOPTS": None})
            output = folder / "output"
            with (
                output.open("wb") as out,
                started_job(command, stdout=out, environment=environment, folder=self._config.rootpath) as process,
            ):
                reason = wait_for_job(process, folder, longest)
            if reason is not None or process.returncode:
                reason = reason or f"mpirun ended with exit code {process.returncode}"
                reason += f"\n{output.read_text(encoding='utf-8', errors='replace')[-OUTPUT_SHOWN:]}"
            return judge(tests, read_records(self._config, folder), reason)


def judge(tests: Sequence[str], begun: Reports, trouble: str | None) -> Reports:
    """Return the reports of the tests, at least of one, that a job has determined; the others need another job.

    A job that ends early, with a description of its `trouble`, ends in the last test that has begun.
    """
    if trouble is None:
        lost = "the job ended, and this test did not begin"
        return {test: begun.get(test) or [_report(test, "failed", lost)] for test in tests}
    if not begun:
        return {test: [_report(test, "failed", f"before the first test, {trouble}")] for test in tests}
    last = list(begun)[-1]
    return begun | {last: [_report(last, "failed", trouble)]}


def _report(test: str, outcome: Literal["failed", "skipped"], why: str | tuple[str, int, str]) -> pytest.TestReport:
    return pytest.TestReport(test, ("", None, ""), {}, outcome, why, "call")
