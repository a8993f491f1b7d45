"""``python -m fault_drill``: carry out trials and count what was lost."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fault_drill.damage import disks_can_be_made
from fault_drill.strikes import FAULTS
from fault_drill.trials import Drill, Outcome, Trial, draw_trial

__all__ = ["main"]

LIMIT = 90.0
MOST_COMPLAINTS = 6


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out what the command line asks for; returns the exit code, 1 where a trial failed."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    faults = tuple(asked.faults.split(",")) if asked.faults else tuple(FAULTS)
    if unknown := [name for name in faults if name not in FAULTS]:
        parser.error(f"--faults: no such fault: {', '.join(unknown)}")
    if "disk full" in faults and not disks_can_be_made():
        print("without the rights of root no small disk can be made: left out: disk full", file=sys.stderr)
        faults = tuple(name for name in faults if name != "disk full")
    folder = Path(asked.folder or tempfile.mkdtemp(prefix="hybridnn-fault-drill-")).resolve()
    drill, start = Drill(folder, asked.limit), time.monotonic()
    numbers = range(asked.trials) if asked.only is None else [asked.only]
    trials = [draw_trial(asked.seed, number, faults, asked.most_ranks) for number in numbers]
    outcomes = [_told(drill, trial, _again(asked, trial), keeps=asked.only is not None) for trial in trials]
    seconds = time.monotonic() - start
    failed = [outcome for outcome in outcomes if outcome.complaints]
    if asked.json:
        print(json.dumps(_counts(outcomes, asked.seed, seconds)))
    else:
        _print_table(outcomes, asked.seed, seconds)
    if not failed and asked.only is None:
        shutil.rmtree(folder)
    else:
        print(f"commands and outputs: {folder}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fault_drill", description=__doc__)
    parser.add_argument("--trials", type=int, default=len(FAULTS), help="how many; every fault has its turn")
    parser.add_argument("--seed", type=int, default=7, help="of everything that is drawn")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="repeat one trial and keep its folder")
    parser.add_argument("--most-ranks", type=int, default=4, metavar="N", choices=(1, 2, 4))
    parser.add_argument("--faults", metavar="NAME,...", help=f"only these of: {', '.join(FAULTS)}")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help="what a run may take")
    parser.add_argument("--folder", help="where to keep what is made; otherwise kept only where a trial fails")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    return parser


def _again(asked: argparse.Namespace, trial: Trial) -> str:
    """The options that repeat a trial."""
    faults = f' --faults "{asked.faults}"' if asked.faults else ""
    return f"--seed {asked.seed} --only {trial.number} --most-ranks {asked.most_ranks}{faults}"


def _told(drill: Drill, trial: Trial, again: str, *, keeps: bool) -> Outcome:
    """Carry out a trial, and tell of it on standard error."""
    start = time.monotonic()
    outcome = drill.carry_out(trial)
    verdict = "FAILED" if outcome.complaints else "ok" if outcome.struck else "ok, but ended before its fault"
    layouts = " -> ".join(recipe.name for recipe in trial.recipes)
    print(
        f"trial {trial.number:3}: {verdict}: {trial.fault}: {layouts}, {time.monotonic() - start:.1f} s",
        file=sys.stderr,
        flush=True,
    )
    for complaint in outcome.complaints[:MOST_COMPLAINTS]:
        print(f"    {complaint}", file=sys.stderr)
    if outcome.complaints:
        print(f"    outputs: {drill.folder_of(trial)}; again: {again}", file=sys.stderr, flush=True)
    elif not keeps:
        shutil.rmtree(drill.folder_of(trial))
    return outcome


COLUMNS = ("trials", "struck", "named", "ended", "from a checkpoint", "lost", "at most s to end")


def _row(outcomes: Iterable[Outcome]) -> dict[str, float]:
    every = list(outcomes)
    return {
        "trials": len(every),
        "struck": sum(one.struck for one in every),
        "named": sum(one.named for one in every),
        "ended": sum(one.ended for one in every),
        "from_a_checkpoint": sum(one.resumed for one in every),
        "lost": sum(one.lost for one in every),
        "most_seconds_to_end": round(max((one.end_seconds for one in every), default=0.0), 1),
    }


def _counts(outcomes: Sequence[Outcome], seed: int, seconds: float) -> dict[str, object]:
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "faults": {name: _row(one for one in outcomes if one.trial.fault == name) for name in _tried(outcomes)},
        "all": _row(outcomes),
        "failed": [{"trial": one.trial.number, "complaints": one.complaints} for one in outcomes if one.complaints],
    }


def _print_table(outcomes: Sequence[Outcome], seed: int, seconds: float) -> None:
    table = Table(title=f"Fault drill, seed {seed}, {seconds / 60:.0f} minutes", box=None)
    table.add_column("fault")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    rows = [(name, _row(one for one in outcomes if one.trial.fault == name)) for name in _tried(outcomes)]
    for name, row in [*rows, ("all", _row(outcomes))]:
        table.add_row(name, *(str(value) for value in row.values()))
    Console(width=100).print(table)


def _tried(outcomes: Sequence[Outcome]) -> list[str]:
    return [name for name in FAULTS if any(one.trial.fault == name for one in outcomes)]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that disks are unmounted
    sys.exit(main())
