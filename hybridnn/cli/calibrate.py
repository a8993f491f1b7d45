"""`hybridnn calibrate`: measure this machine and write its file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from hybridnn.cli.output import Format, make_console, print_json
from hybridnn.cli.start_ranks import Ranks, start_ranks
from hybridnn.errors import SettingError


def calibrate(
    out: Annotated[Path, typer.Option("--out", help="The machine file to write.", metavar="FILE.toml")] = Path(
        "machine.toml"
    ),
    seconds: Annotated[float, typer.Option(help="Time to measure in; a little more is taken.", metavar="S")] = 120.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the sizes and shapes that are measured.", metavar="N")] = 0,
    name: Annotated[
        str | None, typer.Option(help="Of the machine; by default that of the host.", show_default=False)
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(help="Bytes each rank may use; by default its part of what is free.", show_default=False),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the samples and the fits.", metavar="FILE.png", show_default=False)
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace files that are there, and write the file even where the verdict is doubtful."
        ),
    ] = False,
    output_format: Annotated[Format, typer.Option("--format", help="How to print the result.")] = Format.text,
    ranks: Ranks = None,
) -> None:
    """Measure this machine, for plans and predictions; start it with -n and as many ranks as you will use."""
    from hybridnn.utils.checks import require_number

    require_number("--seconds", seconds, 0, 86_400, "above 0, at most a day", open_ends="(")
    if memory is not None:
        require_number("--memory", memory, 1, 2.0**63, "bytes, 1 or more")
    if name == "":
        raise SettingError("--name", name, "must not be empty")
    _check_suffix("--out", out, ".toml")
    if plot is not None:
        _check_suffix("--plot", plot, ".png")
    start_ranks(ranks)

    # Only now, so that a wrong option is reported without waiting for the rest to load.
    from hybridnn.cli.calibrate_view import calibration_facts, print_calibration
    from hybridnn.comm.agreement import agree
    from hybridnn.cost.calibration import calibrate as calibration
    from hybridnn.cost.calibration.fit_plot import draw_fits
    from hybridnn.cost.machine.file import write_machine
    from hybridnn.parallel.grid import ProcessGrid
    from hybridnn.runs.step_timer import TrainingTimer

    grid = ProcessGrid()
    if plot is not None and grid.size == 1:
        raise SettingError("--plot", str(plot), "there are no messages to plot with one rank; use 2 or more")

    def on_first_rank(action: Callable[[], None]) -> None:
        agree(grid.world, action if grid.rank == 0 else lambda: None)

    def check_files() -> None:
        _check_file("--out", out, force)
        if plot is not None:
            _check_file("--plot", plot, force)

    on_first_rank(check_files)
    console = make_console(sys.stdout)
    as_json = output_format is Format.json

    def report(text: str) -> None:
        if not as_json:
            console.print(f"measuring {text}")

    found = calibration.calibrate(grid, seconds, seed, TrainingTimer(), name=name, memory_bytes=memory, report=report)

    def write_files() -> None:
        write_machine(found.machine, out)
        if plot is not None:
            draw_fits(found.fits, plot)

    quality = found.machine.quality
    is_written = force or quality is None or not quality.problems
    if is_written:
        on_first_rank(write_files)
    if as_json:
        print_json(calibration_facts(found, out if is_written else None))
    else:
        print_calibration(console, found, out if is_written else None)
    if not is_written:
        raise typer.Exit(1)


def _check_suffix(option: str, path: Path, suffix: str) -> None:
    if path.suffix.lower() != suffix:
        raise SettingError(option, str(path), f"the name of the file must end in {suffix}")


def _check_file(option: str, path: Path, force: bool) -> None:
    if os.path.isdir(path):
        raise SettingError(option, str(path), "is a folder, not a file")
    if not os.path.isdir(path.parent):
        raise SettingError(option, str(path), f"there is no folder {path.parent}")
    if os.path.lexists(path) and not force:
        raise SettingError(option, str(path), "is there already; name another file, or replace it with --force")
