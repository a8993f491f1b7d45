"""The account of a stall as people read it: the verdict, and a line for every kind of state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from hybridnn.comm.stalls.files import StallRecord
from hybridnn.comm.stalls.ranks_text import ranks_text
from hybridnn.comm.stalls.state import RankState

__all__ = ["stall_report", "stall_table"]

HEADINGS = ("ranks", "waits for", "since", "finished last", "at")
MISSING = "-"


def stall_report(record: StallRecord, folder: Path, unwritten: str = "") -> str:
    """The whole account, several lines.

    Parameters
    ----------
    record : StallRecord
    folder : Path
        Where its files are.
    unwritten : str
        Why the files could not be written: then nothing is known of the other ranks, nor held against them.
    """
    limit = "" if record.job is None else f" for {record.job.seconds:g} s; the job was ended"
    findings = [finding.text for finding in record.findings if not (unwritten and finding.kind == "silent")]
    if unwritten:
        findings.append(f"the ranks could not tell one another what they do: {unwritten}")
    return "\n".join(
        (
            f"=== the job stood still: no rank finished anything{limit} ===",
            *(f"* {text}" for text in findings),
            "",
            stall_table(record.states, record.size),
            "",
            f"Everything the ranks told: {folder}/rank-*.json; this account again: hybridnn stall {folder.parent}",
            "Where work is meant to take longer, set output.stall_seconds higher, or to 0 for no watch.",
        )
    )


def stall_table(states: Mapping[int, RankState], size: int) -> str:
    """One line for all ranks that are at the same place and wait for the same.

    Parameters
    ----------
    states : mapping
        By rank.
    size : int
        Ranks of the job; those without a state get a line that says so.
    """
    alike: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for rank, state in states.items():
        last = str(state.finished[-1]) if state.finished else MISSING
        alike[state.doing, last, MISSING if state.site is None else str(state.site)].append(rank)
    rows = [HEADINGS]
    for (doing, last, site), ranks in sorted(alike.items(), key=lambda item: min(item[1])):
        seconds = max(states[rank].idle_seconds for rank in ranks)
        rows.append((ranks_text(ranks), doing, f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s", last, site))
    if silent := [rank for rank in range(size) if rank not in states]:
        rows.append((ranks_text(silent), "no sign", MISSING, MISSING, MISSING))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
