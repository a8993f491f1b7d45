"""The account of a stall as people read it: the verdict, and a line for every kind of state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from hybridnn.diagnostics.stalls.files import StallRecord
from hybridnn.diagnostics.stalls.state import RankState
from hybridnn.utils.text import format_ranks, name_ranks, parse_ranks

HEADINGS = ("ranks", "waits for", "since", "finished last", "at")
MISSING = "-"
LONGER_WORK = (
    'Where work of one rank is meant to take longer: announce it in a script, `with trainer.busy("plotting"): ...`,',
    "or set stall_seconds (output.stall_seconds in a settings file) higher, or to 0 for no watch.",
)


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
    # Silence says nothing where no rank could write, or where the job ended before all had answered.
    hasty = bool(unwritten) or (record.job is not None and bool(record.job.lost))
    findings = [finding.text for finding in record.findings if not (hasty and finding.kind == "silent")]
    if unwritten:
        findings.append(f"the ranks could not tell one another what they do: {unwritten}")
    return "\n".join(
        (
            f"=== {_headline(record)} ===",
            *(f"* {text}" for text in findings),
            "",
            stall_table(record.states, record.size),
            "",
            f"Everything the ranks told: {folder}/rank-*.json; this account again: hybridnn stall {folder.parent}",
            *([] if record.job is not None and record.job.lost else LONGER_WORK),
        )
    )


def _headline(record: StallRecord) -> str:
    job = record.job
    if job is not None and job.lost:
        lost = parse_ranks(job.lost)
        return f"the job cannot go on: {name_ranks(lost)} left it, and others wait; the job was ended"
    limit = "" if job is None else f" for {job.seconds:g} s; the job was ended"
    return f"the job stood still: no rank finished anything{limit}"


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
        alike[state.doing, last, state.place or MISSING].append(rank)
    rows = [HEADINGS]
    for (doing, last, site), ranks in sorted(alike.items(), key=lambda item: min(item[1])):
        seconds = max(states[rank].idle_seconds for rank in ranks)
        since = f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
        rows.append((format_ranks(ranks), doing, MISSING if states[ranks[0]].left else since, last, site))
    if silent := [rank for rank in range(size) if rank not in states]:
        rows.append((format_ranks(silent), "no sign", MISSING, MISSING, MISSING))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
