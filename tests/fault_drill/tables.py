"""Table of the results of a drill, by kind of fault."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from fault_drill.outcomes import Outcome
from fault_drill.selection import KIND_OF, kinds_of

__all__ = ["counts", "markdown", "table"]


def _row(outcomes: Iterable[Outcome]) -> dict[str, float]:
    trials = list(outcomes)
    flags = ("injected", "named", "ended", "resumed", "hung", "silent", "traceback", "lost")
    counted = {name: sum(getattr(outcome, name) for outcome in trials) for name in flags}
    longest = round(max((outcome.end_seconds for outcome in trials), default=0.0), 1)
    return {"trials": len(trials), **counted, "failed": sum(bool(outcome.complaints) for outcome in trials)} | {
        "most_seconds_to_end": longest
    }


HEADINGS = {
    "trials": "trials",
    "injected": "injected",
    "ended": "ended",
    "named": "named",
    "resumed": "from a checkpoint",
    "hung": "hangs",
    "silent": "silent",
    "traceback": "tracebacks",
    "lost": "lost",
    "failed": "failed",
    "most_seconds_to_end": "longest end, s",
}


def _of_kind(outcomes: Sequence[Outcome], kind: str) -> list[Outcome]:
    return [outcome for outcome in outcomes if KIND_OF[outcome.trial.fault] == kind]


def _rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Kind and counts of each row; the last row is the total."""
    kinds = kinds_of([outcome.trial.fault for outcome in outcomes])
    rows = [(kind, _row(_of_kind(outcomes, kind))) for kind in kinds]
    return [[name, *(str(row[column]) for column in HEADINGS)] for name, row in [*rows, ("all", _row(outcomes))]]


def counts(outcomes: Sequence[Outcome], seed: int, seconds: float) -> dict[str, object]:
    """All counts, by kind and by fault, and the errors of failed trials."""
    faults = list(dict.fromkeys(outcome.trial.fault for outcome in outcomes))
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "kinds": {kind: _row(_of_kind(outcomes, kind)) for kind in kinds_of(faults)},
        "faults": {name: _row(outcome for outcome in outcomes if outcome.trial.fault == name) for name in faults},
        "all": _row(outcomes),
        "failed": [
            {"trial": outcome.trial.number, "complaints": outcome.complaints}
            for outcome in outcomes
            if outcome.complaints
        ],
    }


def table(outcomes: Sequence[Outcome], title: str) -> Table:
    """Table for a terminal."""
    made = Table(title=title, box=None)
    made.add_column("kind")
    for heading in HEADINGS.values():
        made.add_column(heading, justify="right")
    for row in _rows(outcomes):
        made.add_row(*row)
    return made


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Table in Markdown."""
    rule = ["---", *["---:"] * len(HEADINGS)]
    lines = [["kind", *HEADINGS.values()], rule, *_rows(outcomes)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
