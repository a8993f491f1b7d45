"""The plugin inside each rank: one line of JSON per event, written at once, so that an abort loses nothing."""

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
    """Writes the events of this rank and keeps the ranks in the same test.

    Parameters
    ----------
    folder : Path
        Where the records of all ranks go.
    comm : MPI.Comm
        All ranks of the job.
    """

    def __init__(self, folder: Path, comm: MPI.Comm) -> None:
        self._file = folder / f"{comm.rank}.jsonl"
        # A test that leaves an operation open on the world must not meet it with the barrier below.
        self._comm = comm.Dup()

    def _write(self, record: Mapping[str, object]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        # Without it a crash in the next test would be blamed on the one a slower rank is still in.
        self._comm.Barrier()
        self._write({"event": "start", "test": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        detail = report.longrepr
        place = list(detail) if isinstance(detail, tuple) else None
        self._write(
            {
                "event": "report",
                "test": report.nodeid,
                "when": report.when,
                "outcome": report.outcome,
                "skipped_at": place,
                "text": "" if detail is None or place else str(detail),
                "seconds": report.duration,
                "expected_failure": getattr(report, "wasxfail", None),
                "sections": report.sections,
            }
        )

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write({"event": "finish", "test": nodeid})


def read_records(folder: Path, ranks: int) -> list[list[dict[str, object]]]:
    """Return the records of each rank; a line cut off by the rank's end is left out."""
    records = []
    for rank in range(ranks):
        file = folder / f"{rank}.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
        records.append([json.loads(line) for line in lines if line.endswith("\n")])
    return records


def records_size(folder: Path) -> int:
    """Return the number of bytes all ranks have written, which grows while tests begin and finish."""
    return sum(file.stat().st_size for file in folder.glob("*.jsonl"))
