"""What the commands that use the weights of a run share: arguments, the file to write, words for the weights."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridnn.errors import SettingError

if TYPE_CHECKING:
    from hybridnn.parallel.grid import ProcessGrid
    from hybridnn.runs.inference.weights_source import WeightsSource


Run = Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN", show_default=False)]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        help="Take the weights of this checkpoint; without, those at the end of the run, else the newest checkpoint.",
        metavar="step-N",
        show_default=False,
    ),
]
Best = Annotated[bool, typer.Option("--best", help="Take the weights of the epoch with the best test metric.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the file that is there.")]


def _ranks(name: str, what: str) -> Any:
    return typer.Option(name, help=what, min=1, metavar="N", show_default=False)


Stages = Annotated[int | None, _ranks("--pipeline", "Stages of a pipeline, whatever grid trained the run.")]
BatchRanks = Annotated[int | None, _ranks("--batch", "Ranks that share out the samples; without, all that are left.")]
ModelRanks = Annotated[int | None, _ranks("--model", "Ranks that every layer is split over.")]


def make_grid(pipeline: int | None, batch: int | None, model: int | None) -> ProcessGrid:
    """Arrange all ranks of the job; without any number as batch ranks."""
    from hybridnn.parallel.grid import ProcessGrid

    return ProcessGrid(pipeline=pipeline or 1, batch=batch, model=model or 1)


def require_new_file(name: str, path: Path, suffixes: Sequence[str], *, replace: bool) -> None:
    """Refuse a file that another program would not recognize, that is there already, or that has no folder.

    Raises
    ------
    SettingError
        Naming the option `name`.
    """
    if path.suffix not in suffixes:
        raise SettingError(name, str(path), f"must end in {' or '.join(suffixes)}")
    if os.path.isdir(path):
        raise SettingError(name, str(path), "is a folder, not a file")
    if os.path.lexists(path) and not replace:
        raise SettingError(name, str(path), "is there already; --force replaces it")
    if not os.path.isdir(path.parent):
        raise SettingError(name, str(path), f"there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise SettingError(name, str(path), f"the folder {path.parent} cannot be written")


def weights_words(source: WeightsSource) -> str:
    """File and step of the weights that were taken."""
    return str(source.path) if source.step is None else f"{source.path}, step {source.step:,}"


def warn_of_columns(file: str, ignored: Sequence[str]) -> None:
    """Name the columns of a table that are not used, on the error stream."""
    if ignored:
        from hybridnn.datasets.table_file import column_list

        print(
            f"Warning: {file}: columns that the run was not trained on are ignored: {column_list(ignored)}",
            file=sys.stderr,
        )


def warn_of_damage(source: WeightsSource) -> None:
    """Name the newer checkpoints that were passed over, on the error stream."""
    for problem in source.damaged:
        print(f"Warning: {problem}", file=sys.stderr)
