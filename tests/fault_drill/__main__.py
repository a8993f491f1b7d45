"""``python -m fault_drill``: run trials and print a table of their results."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fault_drill.damage import disks_can_be_made
from fault_drill.network_faults import NETWORK_FAULTS
from fault_drill.network_trials import missing_for_nodes
from fault_drill.outcomes import AnyTrial, Outcome
from fault_drill.selection import EVERY_FAULT, KIND_OF, SHARES, Drills, draw
from mpi_runner.slowness import deadline

__all__ = ["main", "markdown"]

LIMIT = 90.0
MOST_COMPLAINTS = 6

HEADINGS = {
    "injected": "injected",
    "ended": "ended",
    "named": "named",
    "resumed": "from a checkpoint",
    "hung": "hangs",
    "silent": "silent",
    "lost": "lost",
}
"""Headings of the table, by attribute of an outcome."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials of the command line; return the exit code, which is 1 if a trial failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    faults = _faults(parser, options)
    folder = Path(options.folder or tempfile.mkdtemp(prefix="hybridnn-fault-drill-")).resolve()
    drills, start = Drills(folder, deadline(options.limit)), time.monotonic()
    numbers = range(options.trials) if options.number is None else [options.number]
    trials = [draw(options.seed, number, faults, options.most_ranks, evenly=bool(options.faults)) for number in numbers]
    keep = options.number is not None

    def run(trial: AnyTrial) -> Outcome:
        return _run_and_report(drills, trial, _repeat_options(options, trial), keep=keep)

    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(run, trials))
    seconds = time.monotonic() - start
    failed = [outcome for outcome in outcomes if outcome.complaints]
    print(f"Fault drill, seed {options.seed}, {seconds / 60:.0f} minutes\n\n{markdown(outcomes)}")
    if options.markdown:
        Path(options.markdown).write_text(markdown(outcomes), encoding="utf-8")
    if not failed and options.number is None:
        shutil.rmtree(folder)
    else:
        print(f"commands and outputs: {folder}", file=sys.stderr)
    return 1 if failed else 0


def _faults(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[str, ...]:
    """The selected faults that this user may inject."""
    kinds = options.kinds.split(",") if options.kinds else list(SHARES)
    names = options.faults.split(",") if options.faults else [name for name in EVERY_FAULT if KIND_OF[name] in kinds]
    for option, given, allowed in (("--kinds", kinds, SHARES), ("--faults", names, KIND_OF)):
        if unknown := [name for name in given if name not in allowed]:
            parser.error(f"{option}: no such name: {', '.join(unknown)}; there are: {', '.join(allowed)}")
    if "disk full" in names and not disks_can_be_made():
        print("skipped, because it needs root: disk full", file=sys.stderr)
        names.remove("disk full")
    if options.jobs > 1 and any(name not in NETWORK_FAULTS for name in names):
        parser.error("--jobs: trials of other kinds than network run one at a time")
    if any(name in NETWORK_FAULTS for name in names) and (reason := missing_for_nodes()):
        print(f"skipped: network: {reason}", file=sys.stderr)
        names = [name for name in names if name not in NETWORK_FAULTS]
    if not names:
        parser.exit(0)
    return tuple(names)


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Table with a row for each kind of fault."""

    def row(kind: str, trials: Iterable[Outcome]) -> list[object]:
        these = list(trials)
        flags = [sum(getattr(outcome, name) for outcome in these) for name in HEADINGS]
        failed = sum(bool(outcome.complaints) for outcome in these)
        return [kind, len(these), *flags, failed, f"{max(outcome.end_seconds for outcome in these):.1f}"]

    kinds = {name: [outcome for outcome in outcomes if KIND_OF[outcome.trial.fault] == name] for name in SHARES}
    rows = [row(name, found) for name, found in (kinds | {"all": [*outcomes]}).items() if found]
    headings = ["kind", "trials", *HEADINGS.values(), "failed", "longest end, s"]
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fault_drill", description=__doc__)
    parser.add_argument(
        "--trials", type=int, default=sum(SHARES.values()), help="number of trials, distributed over the kinds"
    )
    parser.add_argument("--seed", type=int, default=7, help="seed of all random choices")
    parser.add_argument("--number", type=int, metavar="N", help="repeat one trial and keep its folder")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trials at a time, of networks alone")
    parser.add_argument("--most-ranks", type=int, default=4, metavar="N", choices=(1, 2, 4))
    parser.add_argument("--kinds", metavar="NAME,...", help=f"only these of: {', '.join(SHARES)}")
    parser.add_argument("--faults", metavar="NAME,...", help="only these; a wrong name lists them")
    limit = "time limit of a job on an idle machine"
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help=limit)
    parser.add_argument("--folder", help="folder of all files; by default, files are kept only if a trial fails")
    parser.add_argument("--markdown", metavar="FILE", help="write the table to this file as Markdown")
    return parser


def _repeat_options(options: argparse.Namespace, trial: AnyTrial) -> str:
    """The options that repeat a trial."""
    chosen = "".join(f' --{name} "{getattr(options, name)}"' for name in ("kinds", "faults") if getattr(options, name))
    return f"--seed {options.seed} --number {trial.number} --most-ranks {options.most_ranks}{chosen}"


def _run_and_report(drills: Drills, trial: AnyTrial, repeat_options: str, *, keep: bool) -> Outcome:
    """Run a trial, and report it on standard error."""
    start = time.monotonic()
    outcome = drills.carry_out(trial)
    verdict = "FAILED" if outcome.complaints else "ok" if outcome.injected else "ok, but ended before its fault"
    seconds = time.monotonic() - start
    title = f"{KIND_OF[trial.fault]}: {trial.fault}: {trial}"
    print(f"trial {trial.number:3}: {verdict}: {title}, {seconds:.1f} s", file=sys.stderr, flush=True)
    for complaint in outcome.complaints[:MOST_COMPLAINTS]:
        print(f"    {complaint}", file=sys.stderr)
    if outcome.complaints:
        print(f"    outputs: {drills.folder_of(trial)}; to repeat it: {repeat_options}", file=sys.stderr, flush=True)
    elif not keep:
        shutil.rmtree(drills.folder_of(trial))
    return outcome


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # exit in an orderly way, which unmounts disks
    sys.exit(main())
