"""`hybridnn calibrate`: measure this machine, for a machine file; `hybridnn doctor`: check it, or a job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridnn.cli.options import OutputFormat, Ranks, option
from hybridnn.cli.output import make_console, new_table, number_cell, print_table, require_new_file, write_json
from hybridnn.cli.ranks import launch_rank, start_ranks
from hybridnn.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hybridnn.cost.calibration.calibrate import Calibration
    from hybridnn.cost.calibration.fit import FittedOperation
    from hybridnn.doctor.report import DoctorReport, Verdict


SEED = 0  # of the sizes and shapes that are measured
STYLES: Mapping[Verdict, str] = {"ok": "green", "warning": "yellow", "failure": "bold red"}
VERDICT_WIDTH = len("warning")


def calibrate(
    out: Annotated[Path, option("The machine file to write.", "FILE.toml")] = Path("machine.toml"),
    seconds: Annotated[float, option("Approximate time of the measurement.", "S")] = 120.0,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing file, and write one where the verdict is doubtful too.")
    ] = False,
    output_format: OutputFormat = "text",
    ranks: Ranks = None,
) -> None:
    """Measure this machine, for plans and predictions; start it with -n and as many ranks as runs will use."""
    from hybridnn.utils.checks import require_number

    require_number("--seconds", seconds, above=0, at_most=86_400, allowed="above 0, at most a day")
    if out.suffix.lower() != ".toml":
        raise SettingError("--out", str(out), "the name of the file must end in .toml")
    start_ranks(ranks)

    # Only now, so that a wrong option is reported without waiting for the rest to load.
    from hybridnn.comm.agreement import agree
    from hybridnn.cost.calibration import calibrate as calibration
    from hybridnn.cost.machine_file import write_machine
    from hybridnn.parallel.grid import ProcessGrid
    from hybridnn.runs.step_timer import TrainingTimer

    grid = ProcessGrid(stall_seconds=0)

    def on_first_rank(action: Callable[[], None]) -> None:
        agree(grid.world, action if grid.rank == 0 else lambda: None)

    on_first_rank(lambda: require_new_file("--out", out, replace=force))
    console = make_console()
    as_json = output_format == "json"

    def report(text: str) -> None:
        if not as_json:
            console.print(f"measuring {text}")

    found = calibration.calibrate(grid, seconds, SEED, TrainingTimer(), report=report, forced=force)
    quality = found.machine.quality
    is_written = force or quality is None or not quality.problems
    if is_written:
        on_first_rank(lambda: write_machine(found.machine, out))
    if as_json:
        write_json(_facts(found, out if is_written else None))
    else:
        _print_calibration(console, found, out if is_written else None)
    if not is_written:
        raise typer.Exit(1)


def _print_calibration(console: Console, found: Calibration, out: Path | None) -> None:
    """Print the tables of a calibration, the verdict, and how to use the file; None where none was written."""
    from hybridnn.cost.calibration.fit import LARGE_BYTES

    if found.fits:
        console.print("\nmessages and collectives: alpha per message, beta per byte, by size; errors on held-out sizes")
        print_table(console, _fit_table(found.fits))
        overlap = found.machine.overlap
        console.print(
            f"\noverlap: {overlap.hidden_fraction:.0%} of an all-reduce hides behind computing, which takes "
            f"{overlap.compute_slowdown:.2f} times as long meanwhile; "
            f"without blocking it takes {overlap.nonblocking_factor:.2f} times as long"
        )
        overhead = found.machine.overhead_between_nodes
        if overhead is not None:
            whole = found.machine.message_seconds(LARGE_BYTES, spans_nodes=True)
            console.print(
                f"a message of {LARGE_BYTES >> 10} KiB between nodes takes {1e6 * whole:.3g} us, of which "
                f"{1e6 * overhead.seconds(LARGE_BYTES):.3g} us are lost to computing on each of its ranks",
                soft_wrap=True,
            )
    if found.compute_errors:
        console.print("\npasses of layers: errors on held-out networks, the mean weighted by time")
        print_table(console, _compute_table(found))
        compute = max(found.machine.compute, key=lambda entry: (entry.dtype == "float32", entry.busy_ranks))
        alone, *later = (f"{compute.pace(ranks) - 1:.0%}" for ranks in (1, 2, 64))
        console.print(
            f"\nnoise: computing takes {alone} longer than its median, and {later[0]} until the last of 2 and "
            f"{later[1]} until the last of 64 ranks is through",
            soft_wrap=True,
        )
    for text in found.missing:
        console.print(f"not measured: {text}", soft_wrap=True)
    if found.oversubscription:
        console.print(f"mind: {found.oversubscription}", soft_wrap=True)
    if found.machine.quality is not None:
        console.print(f"\nverdict: {found.machine.quality.summary}", soft_wrap=True)
    if out is None:
        console.print("no machine file was written; measure again when the machine is idle, or write it with --force")
        return
    console.print(f"\n{out}: use it with `hybridnn plan SETTINGS.toml --ranks N --machine {out}`", soft_wrap=True)


def _facts(found: Calibration, out: Path | None) -> dict[str, object]:
    """All figures and samples of a calibration."""
    from hybridnn.cost.calibration.fit import LARGE_BYTES

    return {
        "file": None if out is None else str(out),
        "verdict": None if found.machine.quality is None else found.machine.quality.summary,
        "machine": found.machine.model_dump(),
        "communication": [
            {
                "operation": fit.operation,
                "ranks": fit.cost.ranks,
                "spans_nodes": fit.cost.spans_nodes,
                "algorithm": fit.cost.algorithm,
                "factor": fit.factor,
                "segments": [segment.model_dump() for segment in fit.cost.segments],
                "held_out_error": (error := fit.held_out_error()) and asdict(error),
                "held_out_error_from_64_kib": (error := fit.held_out_error(LARGE_BYTES)) and asdict(error),
                "samples": [asdict(sample) for sample in fit.samples],
            }
            for fit in found.fits
        ],
        "compute_errors": [asdict(error) for error in found.compute_errors],
        "not_measured": list(found.missing),
        "crowded": found.oversubscription,
    }


def _fit_table(fits: tuple[FittedOperation, ...]) -> Table:
    """One row for each segment; the first of an operation and group has the errors of all its segments."""
    from hybridnn.cost.calibration.fit import LARGE_BYTES

    rows = []
    for fit in fits:
        error, large = fit.held_out_error(), fit.held_out_error(LARGE_BYTES)
        errors = (error.mean if error else None, error.max if error else None, large.mean if large else None)
        ranks = f"{fit.cost.ranks}{' across nodes' if fit.cost.spans_nodes else ''}"
        names = (fit.operation, ranks, fit.cost.algorithm)
        percents = tuple(number_cell(share, ".1%") for share in errors)
        for segment in fit.cost.segments:
            end = "" if segment.up_to_bytes is None else f"{segment.up_to_bytes:,.0f}"
            alpha, beta = segment.alpha_seconds * fit.factor, segment.beta_seconds_per_byte * fit.factor
            rows.append((*names, end, f"{1e6 * alpha:.2f}", f"{1e9 * beta:.4f}", *percents))
            names = percents = ("", "", "")
    titles = ("up to\nbytes", "alpha\nus", "beta\nns/byte", "mean\nerror", "largest\nerror", "mean from\n64 KiB")
    return new_table(("operation", "ranks", "algorithm"), titles, rows, show_edge=False)


def _compute_table(found: Calibration) -> Table:
    rows = []
    for error in found.compute_errors:
        errors = tuple(number_cell(share, ".1%") for share in (error.mean, error.largest))
        rows.append((error.what, error.dtype, str(error.busy_ranks), str(error.samples), *errors))
    titles = ("precision", "busy ranks", "held out", "mean\nerror", "largest\nerror")
    return new_table(("pass",), titles, rows, show_edge=False)


# -- doctor ------------------------------------------------------------------------------------------------------------


def doctor(
    limit: Annotated[float, option("Time for each check.", "SECONDS")] = 15.0,
    output_format: OutputFormat = "text",
    ranks: Ranks = None,
) -> None:
    """Check this machine, or ranks and nodes of a job: MPI, threads, cores, GPU, folders; exit code 1 on failures."""
    from hybridnn.utils.checks import require_number

    require_number("--limit", limit, above=0, at_most=3600, allowed="seconds, above 0, at most an hour")
    start_ranks(ranks)

    # Only now, so that a wrong option is reported without waiting for the rest to load.
    from hybridnn.doctor.job_checks import examine

    print_report = _print_json if output_format == "json" else _print_text
    raise typer.Exit(examine(limit, print_report, launched=launch_rank() is not None))


def _print_json(report: DoctorReport) -> None:
    findings = [asdict(finding) for finding in report.findings]
    write_json({"verdict": report.verdict, "ranks": report.ranks, "findings": findings})


def _print_text(report: DoctorReport) -> None:
    from rich.text import Text

    from hybridnn.utils.text import counted, name_numbers

    text = Text()
    width = max((len(finding.name) for finding in report.findings), default=0)
    for finding in report.findings:
        ranks = f"{name_numbers('rank', finding.ranks)}: " if finding.ranks else ""
        advice = f" -> {finding.advice}" if finding.advice else ""
        text.append(f"{finding.verdict:{VERDICT_WIDTH}}", STYLES[finding.verdict])
        text.append(f"  {finding.name:{width}}  {ranks}{finding.what}{advice}\n")
    warnings, failures = counted(report.count("warning"), "warning"), counted(report.count("failure"), "failure")
    text.append(f"{counted(report.ranks, 'rank')}: {report.count('ok')} ok, {warnings}, {failures}")
    make_console().print(text, soft_wrap=True)  # a line stays a line, for grep
    sys.stdout.flush()
