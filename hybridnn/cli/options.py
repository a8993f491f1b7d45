"""Declarations of arguments and options; those that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from hybridnn.cli.completion import changes, machine_names


def option(
    text: str,
    metavar: str,
    *names: str,
    least: float | None = None,
    complete: Callable[[str], list[str]] | None = None,
) -> Any:
    """Declare an option by its help and the name of its value; without `names`, that of its parameter is used."""
    return typer.Option(*names, help=text, metavar=metavar, min=least, autocompletion=complete)


def count(text: str, *names: str) -> Any:
    """Declare an option that is a whole number from 1."""
    return option(text, "N", *names, least=1)


def command_group(text: str) -> typer.Typer:
    """Make a command that has commands of its own, and prints its help without one of them."""
    group = typer.Typer(help=text)

    @group.callback(invoke_without_command=True)
    def print_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    return group


class Format(str, Enum):
    """Formats of a command's result."""

    text = "text"
    json = "json"


class PictureFormat(str, Enum):
    """Formats of a drawn result."""

    text = "text"
    json = "json"
    svg = "svg"
    png = "png"
    pdf = "pdf"
    html = "html"  # a page that plays what is drawn


OutputFormat = Annotated[Format, typer.Option("--format", help="How to print the result.")]
OutputPicture = Annotated[
    PictureFormat | None,
    typer.Option("--format", help="By default what the file's name says, or text. JSON counts from 0."),
]
PictureFile = Annotated[Path | None, option("A file for the result (default: it is printed).", "FILE", "--out")]

Config = Annotated[Path | None, typer.Argument(help="A settings file.", metavar="CONFIG.toml")]
Overrides = Annotated[
    list[str] | None,
    option("Change any setting; may be given many times.", "SECTION.KEY=VALUE", "--set", complete=changes),
]
MachineFile = Annotated[
    str | None,
    option(
        "A machine file, or the name of a machine that ships with hybridnn (default: $HYBRIDNN_MACHINE or machine.toml "
        "in the working folder).",
        "FILE",
        "--machine",
        complete=machine_names,
    ),
]

Ranks = Annotated[
    int | None,
    count(
        "Start this command on N ranks, with mpirun, or in a Slurm job with srun (default: it runs as it was started).",
        "-n",
    ),
]
InProcess = Annotated[
    int | None,
    option(
        "Run N ranks in this process, one at a time, without MPI (default: none): bit-for-bit reproducible, for "
        "learning and debugging. A deadlock ends with its reason.",
        "N",
        "--in-process",
    ),
]

RunFolder = Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN")]
Checkpoint = Annotated[
    str | None,
    option(
        "Take the weights of this checkpoint (default: those at the end of the run, else the newest checkpoint).",
        "step-N",
        "--checkpoint",
    ),
]
Best = Annotated[
    bool, typer.Option("--best", help="Take the weights of the epoch that was best on the validation part.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
ModelRanks = Annotated[int | None, count("Ranks that every layer is split over (default: 1).", "--model")]
