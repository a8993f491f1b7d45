"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


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


OutputFormat = Annotated[Format, typer.Option("--format", help="How to print the result.")]
OutputPicture = Annotated[
    PictureFormat | None,
    typer.Option("--format", help="By default what the file's name says, or text. JSON counts from 0."),
]
PictureFile = Annotated[Path | None, typer.Option("--out", help="A file for the result.", metavar="FILE")]

Config = Annotated[Path | None, typer.Argument(help="A settings file.", metavar="CONFIG.toml")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change any setting; may be given many times.", metavar="SECTION.KEY=VALUE"),
]
MachineFile = Annotated[
    str | None,
    typer.Option(
        "--machine",
        help="A machine file, or the name of a machine that ships with hybridnn; without, $HYBRIDNN_MACHINE or "
        "machine.toml in the working folder.",
        metavar="FILE",
    ),
]

Ranks = Annotated[
    int | None,
    typer.Option(
        "-n", min=1, help="Start this command on N ranks, with mpirun, or in a Slurm job with srun.", metavar="N"
    ),
]
InProcess = Annotated[
    int | None,
    typer.Option(
        "--in-process",
        help="All ranks in this process, one at a time, without MPI: repeatable to the bit, for learning and "
        "debugging. A deadlock ends with its reason.",
        metavar="N",
    ),
]

RunFolder = Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN")]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        help="Take the weights of this checkpoint; without, those at the end of the run, else the newest checkpoint.",
        metavar="step-N",
    ),
]
Best = Annotated[bool, typer.Option("--best", help="Take the weights of the epoch with the best test metric.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
Stages = Annotated[
    int | None,
    typer.Option(
        "--pipeline", min=1, help="Stages of a pipeline, whatever grid trained the run; without, 1.", metavar="N"
    ),
]
BatchRanks = Annotated[
    int | None,
    typer.Option("--batch", min=1, help="Ranks that share the samples; without, all remaining ranks.", metavar="N"),
]
ModelRanks = Annotated[
    int | None, typer.Option("--model", min=1, help="Ranks that every layer is split over; without, 1.", metavar="N")
]
