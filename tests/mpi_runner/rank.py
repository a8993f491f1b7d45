"""Plugin of each rank: it writes one line of JSON per event at once, so that an abort loses no event."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["RECORDS_FOLDER", "RankRecorder", "read_records", "records_size"]

RECORDS_FOLDER = "HYBRIDNN_TEST_RECORDS"


class RankRecorder:
    """Writes the events of this rank to `folder`, and synchronizes the ranks before each test."""

    def __init__(self, folder: Path, comm: MPI.Comm) -> None:
        self._file = folder / f"{comm.rank}.jsonl"
        # An operation that a test leaves open on the world must not match the barrier below.
        self._comm = comm.Dup()

    def _write(self, record: Mapping[str, object]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        # Otherwise a crash in the next test would be attributed to the test that a slower rank still runs.
        self._comm.Barrier()
        self._write({"event": "start", "test": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        detail = report.longrepr
        skipped_at = list(detail) if isinstance(detail, tuple) else None
        self._write(
            {
                "event": "report",
                "test": report.nodeid,
                "when": report.when,
                "outcome": report.outcome,
                "skipped_at": skipped_at,
                "text": "" if detail is None or skipped_at else str(detail),
                "seconds": report.duration,
                "expected_failure": getattr(report, "wasxfail", None),
                "sections": report.sections,
            }
        )

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write({"event": "finish", "test": nodeid})


def read_records(folder: Path, ranks: int) -> list[list[dict[str, object]]]:
    """Return the records of each rank, without an incomplete last line."""
    records = []
    for rank in range(ranks):
        file = folder / f"{rank}.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
        records.append([json.loads(line) for line in lines if line.endswith("\n")])
    return records


def records_size(folder: Path) -> int:
    """Return the number of bytes of all records, which increases when tests begin and finish."""
    return sum(file.stat().st_size for file in folder.glob("*.jsonl"))
