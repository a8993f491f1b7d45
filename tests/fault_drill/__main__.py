"""``python -m fault_drill``: carry out trials and count what was lost."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fault_drill.damage import disks_can_be_made
from fault_drill.forgeries import devices_can_be_made
from fault_drill.outcomes import AnyTrial, Outcome
from fault_drill.tables import counts, markdown, table
from fault_drill.turns import EVERY_FAULT, KIND_OF, SHARES, Drills, draw
from mpi_runner.slowness import deadline

__all__ = ["main"]

LIMIT = 90.0
MOST_COMPLAINTS = 6


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out what the command line asks for; returns the exit code, 1 where a trial failed."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    faults = _faults(parser, asked)
    folder = Path(asked.folder or tempfile.mkdtemp(prefix="hybridnn-fault-drill-")).resolve()
    drills, start = Drills(folder, deadline(asked.limit)), time.monotonic()
    numbers = range(asked.trials) if asked.number is None else [asked.number]
    trials = [draw(asked.seed, number, faults, asked.most_ranks, evenly=bool(asked.faults)) for number in numbers]
    outcomes = [_told(drills, trial, _again(asked, trial), keeps=asked.number is not None) for trial in trials]
    seconds = time.monotonic() - start
    failed = [outcome for outcome in outcomes if outcome.complaints]
    if asked.json:
        print(json.dumps(counts(outcomes, asked.seed, seconds)))
    else:
        title = f"Fault drill, seed {asked.seed}, {seconds / 60:.0f} minutes"
        Console(width=120).print(table(outcomes, title))
    if asked.markdown:
        Path(asked.markdown).write_text(markdown(outcomes), encoding="utf-8")
    if not failed and asked.number is None:
        shutil.rmtree(folder)
    else:
        print(f"commands and outputs: {folder}", file=sys.stderr)
    return 1 if failed else 0


def _faults(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> tuple[str, ...]:
    """The faults to try, as far as this machine has the rights for them."""
    kinds = asked.kinds.split(",") if asked.kinds else list(SHARES)
    names = asked.faults.split(",") if asked.faults else [name for name in EVERY_FAULT if KIND_OF[name] in kinds]
    for option, given, allowed in (("--kinds", kinds, SHARES), ("--faults", names, KIND_OF)):
        if unknown := [name for name in given if name not in allowed]:
            parser.error(f"{option}: no such name: {', '.join(unknown)}; there are: {', '.join(allowed)}")
    for name, possible in (("disk full", disks_can_be_made), ("a device", devices_can_be_made)):
        if name in names and not possible():
            print(f"left out for lack of the rights of root: {name}", file=sys.stderr)
            names.remove(name)
    return tuple(names)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fault_drill", description=__doc__)
    parser.add_argument("--trials", type=int, default=sum(SHARES.values()), help="how many; kinds take turns")
    parser.add_argument("--seed", type=int, default=7, help="of everything that is drawn")
    parser.add_argument("--number", type=int, metavar="N", help="repeat one trial and keep its folder")
    parser.add_argument("--most-ranks", type=int, default=4, metavar="N", choices=(1, 2, 4))
    parser.add_argument("--kinds", metavar="NAME,...", help=f"only these of: {', '.join(SHARES)}")
    parser.add_argument("--faults", metavar="NAME,...", help="only these; a wrong name lists them")
    limit = "what a job may take on a quiet machine"
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help=limit)
    parser.add_argument("--folder", help="where to keep what is made; otherwise kept only where a trial fails")
    parser.add_argument("--markdown", metavar="FILE", help="write the table there too, as Markdown")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    return parser


def _again(asked: argparse.Namespace, trial: AnyTrial) -> str:
    """The options that repeat a trial."""
    chosen = "".join(f' --{name} "{getattr(asked, name)}"' for name in ("kinds", "faults") if getattr(asked, name))
    return f"--seed {asked.seed} --number {trial.number} --most-ranks {asked.most_ranks}{chosen}"


def _told(drills: Drills, trial: AnyTrial, again: str, *, keeps: bool) -> Outcome:
    """Carry out a trial, and tell of it on standard error."""
    start = time.monotonic()
    outcome = drills.carry_out(trial)
    verdict = "FAILED" if outcome.complaints else "ok" if outcome.struck else "ok, but ended before its fault"
    seconds = time.monotonic() - start
    what = f"{KIND_OF[trial.fault]}: {trial.fault}: {trial}"
    print(f"trial {trial.number:3}: {verdict}: {what}, {seconds:.1f} s", file=sys.stderr, flush=True)
    for complaint in outcome.complaints[:MOST_COMPLAINTS]:
        print(f"    {complaint}", file=sys.stderr)
    if outcome.complaints:
        print(f"    outputs: {drills.folder_of(trial)}; again: {again}", file=sys.stderr, flush=True)
    elif not keeps:
        shutil.rmtree(drills.folder_of(trial))
    return outcome


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that disks are unmounted
    sys.exit(main())
