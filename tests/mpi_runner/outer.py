"""The plugin of the process the user started: it runs jobs and reports their tests as ordinary items."""

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

__all__ = ["MpiJobs", "ranks_of", "wait_for_job"]

OUTPUT_SHOWN = 12000  # characters of a failed job: the stacks of a few ranks


def ranks_of(item: pytest.Item) -> int | None:
    """Return the number of ranks an item needs, None for a serial test."""
    if item.get_closest_marker("mpi") is None or not isinstance(item, pytest.Function):
        return None
    ranks = item.callspec.params["mpi_ranks"]
    assert isinstance(ranks, int)
    return ranks


def _time_limit(item: pytest.Item, usual: float) -> float:
    """Return the seconds an item may take: those of its ``timeout`` mark, or the usual ones."""
    mark = item.get_closest_marker("timeout")
    if mark is None:
        return usual
    return float(mark.args[0] if mark.args else mark.kwargs["timeout"]) or usual  # no test is free of a limit


def wait_for_job(process: subprocess.Popen[bytes], folder: Path, seconds: float) -> str | None:
    """Wait for the end of a job, or for a time in which no test begins or finishes.

    Parameters
    ----------
    process : subprocess.Popen
        The running mpirun.
    folder : Path
        Where the ranks write their records.
    seconds : float
        Time without a new record after which the job has to be ended.

    Returns
    -------
    str or None
        Why the job has to be ended; None if it ended.
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
    """Runs the ``mpi`` items, those of one number of ranks together, when the first of them is due.

    Parameters
    ----------
    config : pytest.Config
        The configuration of the outer process.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._limit = deadline(float(config.getini("mpi_timeout")))
        self._grace = deadline(float(config.getini("mpi_grace")))
        self._verdicts: dict[str, Verdict] = {}
        # `timeout` and batch systems end a run with SIGTERM: unwind, so that the running job ends too.
        self._previous = signal.signal(signal.SIGTERM, self._leave)

    @staticmethod
    def _leave(number: int, frame: FrameType | None) -> None:
        pytest.exit("ended by SIGTERM", returncode=128 + number)

    def pytest_unconfigure(self) -> None:
        signal.signal(signal.SIGTERM, self._previous)

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item) -> bool | None:
        """Keep pytest-timeout from timing a whole job as if it were its first item."""
        return None if ranks_of(item) is None else True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        ranks = ranks_of(item)
        if ranks is None:
            return None
        if item.nodeid not in self._verdicts:
            waiting = [
                other for other in item.session.items if ranks_of(other) == ranks and other.nodeid not in self._verdicts
            ]
            while item.nodeid not in self._verdicts:
                self._verdicts.update(self._run(ranks, waiting))
                waiting = [other for other in waiting if other.nodeid not in self._verdicts]
        _report(item, self._verdicts[item.nodeid])
        # A serial test before this one left its module set up, because this one is in it too.
        item.session._setupstate.teardown_exact(nextitem)
        return True

    def _command(self, ranks: int, listed: Path) -> list[str]:
        """Return the command that runs the node ids listed in a file."""
        options = ["--with-mpi", "-x", "-q", "--no-header", "--color=no", "-p", "no:cacheprovider"]
        options += [f"--timeout={self._limit}", "--timeout-method=thread", f"--tb={self._config.option.tbstyle}"]
        options += [f"--rootdir={self._config.rootpath}"]
        if self._config.option.markexpr:
            options += ["-m", self._config.option.markexpr]  # what is marked may ask whether it is wanted
        if self._config.inipath is not None:
            options += ["-c", str(self._config.inipath)]
        python = [sys.executable, "-m", "mpi4py", "-m", "pytest"]
        return [find_mpirun(), "-n", str(ranks), *python, *options, f"@{listed}"]

    def _run(self, ranks: int, items: Sequence[pytest.Item]) -> dict[str, Verdict]:
        """Run one job and return the outcomes it settled."""
        tests = [item.nodeid for item in items]
        longest = max(_time_limit(item, self._limit) for item in items) + self._grace
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
                killed = wait_for_job(process, folder, longest)
            reason = killed or f"mpirun ended with exit code {process.returncode}"
            text = output.read_text(encoding="utf-8", errors="replace")[-OUTPUT_SHOWN:]
            end = JobEnd(killed is None and process.returncode == 0, reason, text)
            return judge(tests, read_records(folder, ranks), end)


def _report(item: pytest.Item, verdict: Verdict) -> None:
    """Hand the outcome of an item to pytest as if it had run here."""
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
