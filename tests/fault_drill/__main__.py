"""``python -m fault_drill``: run trials and print a table of their results."""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from fault_drill.damage import disks_can_be_made
from fault_drill.finished import Outcome
from fault_drill.injections import FAULTS
from fault_drill.network_trials import NETWORK_FAULTS, NetworkDrill, NetworkTrial, draw_network_trial, missing_for_nodes
from fault_drill.trials import Drill, Trial, draw_trial
from mpi_runner.slowness import deadline

KIND_OF = {name: fault.kind for name, fault in FAULTS.items()} | dict.fromkeys(NETWORK_FAULTS, "network")
"""Row of the table, by fault."""

KINDS = tuple(dict.fromkeys(KIND_OF.values()))

LIMIT = 90.0
MOST_COMPLAINTS = 6

HEADINGS = {
    "injected": "injected",
    "ended": "ended",
    "named": "named",
    "resumed": "from a checkpoint",
    "hung": "hangs",
    "lost": "lost",
}
"""Headings of the table, by attribute of an outcome."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials of the command line; return the exit code, which is 1 if a trial failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    faults = _faults(parser, options)
    folder = Path(options.folder or tempfile.mkdtemp(prefix="hybridnn-fault-drill-")).resolve()
    limit, start = deadline(options.limit), time.monotonic()
    trainings, networks = Drill(folder, limit), NetworkDrill(folder, limit)

    def run(trial: Trial | NetworkTrial) -> Outcome:
        place = folder / f"trial-{trial.number:04d}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        began = time.monotonic()
        if isinstance(trial, NetworkTrial):
            outcome = networks.carry_out(trial, place)
        else:
            outcome = trainings.carry_out(trial, place)
        _report(trial, outcome, time.monotonic() - began, _repeat_options(options, trial), place)
        if not outcome.complaints and options.number is None:
            shutil.rmtree(place)
        return outcome

    numbers = range(options.trials) if options.number is None else [options.number]
    trials = [draw(options.seed, number, faults, options.most_ranks) for number in numbers]
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(zip(trials, pool.map(run, trials), strict=True))
    failed = [outcome for _, outcome in outcomes if outcome.complaints]
    table = markdown([(KIND_OF[trial.fault], outcome) for trial, outcome in outcomes])
    print(f"Fault drill, seed {options.seed}, {(time.monotonic() - start) / 60:.0f} minutes\n\n{table}")
    if options.markdown:
        Path(options.markdown).write_text(table, encoding="utf-8")
    if not failed and options.number is None:
        shutil.rmtree(folder)
    else:
        print(f"commands and outputs: {folder}", file=sys.stderr)
    return 1 if failed else 0


def draw(seed: int, number: int, faults: Sequence[str], most_ranks: int) -> Trial | NetworkTrial:
    """Draw a trial; its fault is from random permutations of all, one after another."""
    turn, place = divmod(number, len(faults))
    name = Random(f"{seed} {turn}").sample(faults, len(faults))[place]
    if name in NETWORK_FAULTS:
        return draw_network_trial(seed, number, name)
    return draw_trial(seed, number, name, most_ranks)


def _faults(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    """The selected faults that this user may inject."""
    kinds = options.kinds.split(",") if options.kinds else KINDS
    names = options.faults.split(",") if options.faults else [name for name in KIND_OF if KIND_OF[name] in kinds]
    for option, given, allowed in (("--kinds", kinds, KINDS), ("--faults", names, KIND_OF)):
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
    return names


def markdown(outcomes: Sequence[tuple[str, Outcome]]) -> str:
    """Table of outcomes with their kinds of fault, which have a row each."""
    rows = []
    for kind in (*dict.fromkeys(kind for kind, _ in outcomes), "all"):
        these = [outcome for its, outcome in outcomes if kind in (its, "all")]
        flags = [sum(getattr(outcome, name) for outcome in these) for name in HEADINGS]
        failed = sum(bool(outcome.complaints) for outcome in these)
        rows.append([kind, len(these), *flags, failed, f"{max(outcome.end_seconds for outcome in these):.1f}"])
    headings = ["kind", "trials", *HEADINGS.values(), "failed", "longest end, s"]
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fault_drill", description=__doc__)
    parser.add_argument("--trials", type=int, default=len(KIND_OF), help="number of trials, over all faults")
    parser.add_argument("--seed", type=int, default=7, help="seed of all random choices")
    parser.add_argument("--number", type=int, metavar="N", help="repeat one trial and keep its folder")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trials at a time, of networks alone")
    parser.add_argument("--most-ranks", type=int, default=4, metavar="N", choices=(1, 2, 4))
    parser.add_argument("--kinds", metavar="NAME,...", help=f"only these of: {', '.join(KINDS)}")
    parser.add_argument("--faults", metavar="NAME,...", help="only these; a wrong name lists them")
    limit = "time limit of a job on an idle machine"
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help=limit)
    parser.add_argument("--folder", help="folder of all files; by default, files are kept only if a trial fails")
    parser.add_argument("--markdown", metavar="FILE", help="write the table to this file as Markdown")
    return parser


def _repeat_options(options: argparse.Namespace, trial: Trial | NetworkTrial) -> str:
    """The options that repeat a trial."""
    chosen = "".join(f' --{name} "{getattr(options, name)}"' for name in ("kinds", "faults") if getattr(options, name))
    return f"--seed {options.seed} --number {trial.number} --most-ranks {options.most_ranks}{chosen}"


def _report(trial: Trial | NetworkTrial, outcome: Outcome, seconds: float, repeat: str, folder: Path) -> None:
    """Report a trial on standard error."""
    verdict = "FAILED" if outcome.complaints else "ok" if outcome.injected else "ok, but ended before its fault"
    title = f"{KIND_OF[trial.fault]}: {trial.fault}: {trial}"
    lines = [f"trial {trial.number:3}: {verdict}: {title}, {seconds:.1f} s", *outcome.complaints[:MOST_COMPLAINTS]]
    if outcome.complaints:
        lines.append(f"outputs: {folder}; to repeat it: {repeat}")
    print("\n    ".join(lines), file=sys.stderr, flush=True)


if __name__ == "__main__":
    # Exit in an orderly way, which unmounts disks.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
