"""What a drill prints: for each kind of fault how many trials went how."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from fault_drill.outcomes import Outcome
from fault_drill.turns import KIND_OF, kinds_of

__all__ = ["counts", "markdown", "table"]


def _row(outcomes: Iterable[Outcome]) -> dict[str, float]:
    every = list(outcomes)
    yes = ("struck", "named", "ended", "resumed", "hung", "silent", "traceback", "lost")
    counted = {name: sum(getattr(one, name) for one in every) for name in yes}
    longest = round(max((one.end_seconds for one in every), default=0.0), 1)
    return {"trials": len(every), **counted, "failed": sum(map(bool, (one.complaints for one in every)))} | {
        "most_seconds_to_end": longest
    }


HEADINGS = {
    "trials": "trials",
    "struck": "struck",
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


def _rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Kind and figures of each row, the last of all together."""
    kinds = kinds_of([one.trial.fault for one in outcomes])
    rows = [(kind, _row(one for one in outcomes if KIND_OF[one.trial.fault] == kind)) for kind in kinds]
    return [[name, *(str(row[column]) for column in HEADINGS)] for name, row in [*rows, ("all", _row(outcomes))]]


def counts(outcomes: Sequence[Outcome], seed: int, seconds: float) -> dict[str, object]:
    """All figures, by kind and by fault, and what is wrong with the trials that failed."""
    faults = list(dict.fromkeys(one.trial.fault for one in outcomes))
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "kinds": {kind: _row(one for one in outcomes if KIND_OF[one.trial.fault] == kind) for kind in kinds_of(faults)},
        "faults": {name: _row(one for one in outcomes if one.trial.fault == name) for name in faults},
        "all": _row(outcomes),
        "failed": [{"trial": one.trial.number, "complaints": one.complaints} for one in outcomes if one.complaints],
    }


def table(outcomes: Sequence[Outcome], title: str) -> Table:
    """The table for a terminal."""
    made = Table(title=title, box=None)
    made.add_column("kind")
    for heading in HEADINGS.values():
        made.add_column(heading, justify="right")
    for row in _rows(outcomes):
        made.add_row(*row)
    return made


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The same in Markdown."""
    rule = ["---", *["---:"] * len(HEADINGS)]
    lines = [["kind", *HEADINGS.values()], rule, *_rows(outcomes)]
    return "".join(f"| {' | '.join(words)} |\n" for words in lines)
