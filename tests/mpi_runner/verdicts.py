"""Outcome of each test from the records of all ranks, and the cause of a job that ended early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["JobEnd", "Verdict", "judge"]

Record = Mapping[str, Any]


@dataclass(frozen=True)
class JobEnd:
    """End of a job."""

    good: bool  # whether mpirun ended by itself with exit code 0
    reason: str  # description of the end
    output: str  # last part of the output of the job


@dataclass(frozen=True)
class Verdict:
    """The outcome of one test over all its ranks."""

    outcome: str  # ``"passed"``, ``"failed"`` or ``"skipped"``
    text: str = ""  # for a failure, the reports of the failing ranks
    skipped_at: tuple[str, int, str] | None = None  # file, line and reason of a skip
    expected_failure: str | None = None  # the reason of an ``xfail`` mark that applied
    seconds: float = 0.0  # duration of the test on its slowest rank
    sections: list[tuple[str, str]] = field(default_factory=list)  # captured output of the failing ranks, with titles


def _reports(records: Sequence[Sequence[Record]], test: str) -> list[tuple[int, Record]]:
    """Return the reports of one test with the rank each came from."""
    return [
        (rank, record)
        for rank, lines in enumerate(records)
        for record in lines
        if record["test"] == test and record["event"] == "report"
    ]


def _ranks_with(records: Sequence[Sequence[Record]], test: str, event: str) -> list[int]:
    """Return the ranks that wrote an event of a test."""
    return [
        rank
        for rank, lines in enumerate(records)
        if any(record["test"] == test and record["event"] == event for record in lines)
    ]


def _failures(failed: Sequence[tuple[int, Record]], ranks: int) -> list[str]:
    """Return the reports of the failing ranks, one for all ranks that failed at the same place."""
    places: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for rank, record in failed:
        last_line = record["text"].rpartition("\n")[2]  # file, line and type of the error
        places.setdefault((record["when"], last_line), []).append((rank, record["text"]))
    parts = []
    for (when, _), reports in places.items():
        rank, text = reports[0]
        others = f" (at the same place: ranks {[rank for rank, _ in reports[1:]]})" if reports[1:] else ""
        parts.append(f"--- rank {rank} of {ranks}, {when}{others} ---\n{text}")
    return parts


def _from_reports(reports: Sequence[tuple[int, Record]], ranks: int, trouble: str = "") -> Verdict:
    """Return the outcome of a test from its reports; with ``trouble``, the description of an error, it is a failure."""
    failed = [(rank, record) for rank, record in reports if record["outcome"] == "failed"]
    skipped = [record for _, record in reports if record["outcome"] == "skipped"]
    expected = [record["expected_failure"] for _, record in reports if record["expected_failure"] is not None]
    seconds = sum(
        max((r["seconds"] for _, r in reports if r["when"] == when), default=0.0) for when in ("setup", "call")
    )
    if trouble or failed:
        parts = _failures(failed, ranks)
        sections = [(f"rank {rank}: {title}", text) for rank, record in failed for title, text in record["sections"]]
        return Verdict("failed", "\n".join([*parts, trouble]).strip(), seconds=seconds, sections=sections)
    if skipped:
        place = skipped[0]["skipped_at"]
        where = (place[0], place[1], place[2]) if place else None
        return Verdict("skipped", skipped[0]["text"], where, skipped[0]["expected_failure"], seconds)
    return Verdict("passed", expected_failure=expected[0] if expected else None, seconds=seconds)


def _never_finished(records: Sequence[Sequence[Record]], test: str, end: JobEnd) -> str:
    """Return the description of a test that some rank began and did not finish."""
    finished = _ranks_with(records, test, "finish")
    inside = [rank for rank in _ranks_with(records, test, "start") if rank not in finished]
    return f"ranks {inside} of {len(records)} did not finish: {end.reason}\n{end.output}"


def judge(tests: Sequence[str], records: Sequence[Sequence[Record]], end: JobEnd) -> dict[str, Verdict]:
    """Return the outcomes, at least one, that a job has determined; the other tests need another job.

    `tests` are node ids in the order of the job; there are records of each rank.
    """
    ranks = len(records)
    verdicts = {}
    unfinished = []
    for test in tests:
        reports = _reports(records, test)
        if any(record["outcome"] == "failed" for _, record in reports):
            verdicts[test] = _from_reports(reports, ranks)
            return verdicts  # its rank stopped here: later records do not count
        if len(_ranks_with(records, test, "finish")) == ranks:
            verdicts[test] = _from_reports(reports, ranks)
        else:
            unfinished.append(test)
    begun = [test for test in unfinished if _ranks_with(records, test, "start")]
    if begun:
        trouble = _never_finished(records, begun[0], end)
        verdicts[begun[0]] = _from_reports(_reports(records, begun[0]), ranks, trouble)
    elif unfinished and not verdicts:
        trouble = f"the job of {ranks} ranks ended before its first test: {end.reason}\n{end.output}"
        verdicts = {test: Verdict("failed", trouble) for test in unfinished}
    elif unfinished:
        trouble = f"the job of {ranks} ranks ended before this test: {end.reason}\n{end.output}"
        verdicts[unfinished[0]] = Verdict("failed", trouble)
    elif not end.good:
        trouble = f"all tests finished, but the job did not end normally: {end.reason}\n{end.output}"
        verdicts[tests[-1]] = _from_reports(_reports(records, tests[-1]), ranks, trouble)
    return verdicts
