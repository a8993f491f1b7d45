"""Plugin of each rank: rank 0 writes one line of JSON per event at once, so that an abort loses no event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mpi4py import MPI

RECORDS_FOLDER = "HYBRIDNN_TEST_RECORDS"
RECORDS = "records.jsonl"


class RankRecorder:
    """Writes the tests that begin and their reports to `folder`, and synchronizes the ranks before each test."""

    def __init__(self, config: pytest.Config, folder: Path, comm: MPI.Comm) -> None:
        self._config, self._file = config, folder / RECORDS
        # An operation that a test leaves open on the world must not match the barrier below.
        self._comm = comm.Dup()

    def _write(self, record: object) -> None:
        if self._comm.rank == 0:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        # A test begins when all ranks have passed the one before: a rank whose test fails does not come here.
        self._comm.Barrier()
        self._write(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._write(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))


def read_records(config: pytest.Config, folder: Path) -> dict[str, list[pytest.TestReport]]:
    """The tests that have begun, in their order, with their reports of rank 0; without an incomplete last line."""
    found: dict[str, list[pytest.TestReport]] = {}
    file = folder / RECORDS
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []:
        if not line.endswith("\n"):
            break
        record: Any = json.loads(line)
        if isinstance(record, str):
            found[record] = []
            continue
        report = config.hook.pytest_report_from_serializable(config=config, data=record)
        if isinstance(report.longrepr, list):  # file, line and reason of a skip
            report.longrepr = tuple(report.longrepr)
        found[report.nodeid].append(report)
    return found
