"""`hybridnn train`: from the command line to settings, and from there to the trainer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hybridnn.cli.in_process import InProcess, on_ranks, require_one_way
from hybridnn.cli.output import Format
from hybridnn.cli.ranks import launch_rank
from hybridnn.cli.start_ranks import Ranks, start_ranks
from hybridnn.errors import SettingError

Text = str | None


def _option(name: str, setting: str, metavar: str = "N") -> Any:
    return typer.Option(name, help=f"Sets {setting}.", metavar=metavar, show_default=False)


def train(
    config: Annotated[
        Path | None,
        typer.Argument(help="A settings file.", metavar="CONFIG.toml", show_default=False),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change any setting; may be given many times.", metavar="SECTION.KEY=VALUE"),
    ] = None,
    data: Annotated[Text, _option("--data", "data.name", "NAME")] = None,
    file: Annotated[Text, _option("--file", "data.file", "PATH")] = None,
    hidden: Annotated[Text, _option("--hidden", "model.hidden, for example 256,256", "SIZES")] = None,
    epochs: Annotated[Text, _option("--epochs", "training.epochs")] = None,
    batch_size: Annotated[Text, _option("--batch-size", "training.batch_size")] = None,
    seed: Annotated[Text, _option("--seed", "training.seed")] = None,
    optimizer: Annotated[Text, _option("--optimizer", "optimizer.name", "NAME")] = None,
    lr: Annotated[Text, _option("--lr", "optimizer.lr", "RATE")] = None,
    pipeline: Annotated[Text, _option("--pipeline", "parallel.pipeline (stages)")] = None,
    method: Annotated[Text, _option("--method", "parallel.method", "NAME")] = None,
    batch: Annotated[Text, _option("--batch", "parallel.batch (ranks)")] = None,
    model: Annotated[Text, _option("--model", "parallel.model (ranks)")] = None,
    split: Annotated[Text, _option("--split", "parallel.model_split", "NAME")] = None,
    device: Annotated[Text, _option("--device", "device.name: auto, cpu or gpu", "NAME")] = None,
    out: Annotated[Text, _option("--out", "output.folder", "FOLDER")] = None,
    resume: Annotated[
        Text,
        typer.Option(
            help="Go on with the run in this folder from its newest valid checkpoint, on this layout or another; auto: "
            "with the one in output.folder, if it has checkpoints.",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Resume though settings differ that change the training.")] = (
        False
    ),
    output_format: Annotated[Format, typer.Option("--format", help="How to print the result.")] = Format.text,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the final table.")] = False,
    ranks: Ranks = None,
    in_process: InProcess = None,
) -> None:
    """Train a multi-layer perceptron; -n or --in-process starts it on several ranks, as mpirun and srun do."""
    require_one_way(ranks, in_process)
    from hybridnn.config.file import load_settings

    numbers = {
        "training.epochs": epochs,
        "training.batch_size": batch_size,
        "training.seed": seed,
        "optimizer.lr": lr,
        "parallel.pipeline": pipeline,
        "parallel.batch": batch,
        "parallel.model": model,
        "model.hidden": None if hidden is None else f"[{hidden}]",
    }
    texts = {
        "data.name": data,
        "data.file": file,
        "optimizer.name": optimizer,
        "parallel.method": method,
        "parallel.model_split": split,
        "device.name": device,
        "output.folder": out,
    }
    given = [f"{key}={value}" for key, value in numbers.items() if value is not None]
    # A JSON string is a TOML string, so that a name or path is never taken for a number.
    given += [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in texts.items() if value is not None]
    _check_one_source(overrides or (), data, file)
    asked = [*(overrides or ()), *given]
    settings = None if resume not in (None, "auto") and config is None else load_settings(config, asked)
    start_ranks(ranks, stops_on_signals=True)

    # Only now, so that a wrong setting is reported without waiting for the rest to load.
    from hybridnn.cli.losses import announce_loss, leave_after_loss
    from hybridnn.cli.train_view import TrainView
    from hybridnn.diagnostics.lost_ranks import start_mpi_with_timeout
    from hybridnn.runs.recovery import RankLoss, RunOutcome, train_on_survivors
    from hybridnn.runs.resume import resolve_request

    start_mpi_with_timeout()

    def view_of(loss: RankLoss | None) -> TrainView:
        if loss is not None:
            announce_loss(loss)
        return TrainView(as_json=output_format is Format.json, quiet=quiet)

    def train_rank() -> RunOutcome | None:
        what = resolve_request(settings, resume, asked, forced=force)
        return None if what is None else train_on_survivors(what.settings, view_of, what.start, forced=force)

    ended = on_ranks(in_process, train_rank)
    if ended is None:
        if launch_rank() in (None, 0):
            print(f"{settings.output.folder if settings else resume}: the run has ended, nothing is left to do")
    elif ended.loss is not None:
        leave_after_loss(ended)


def _check_one_source(overrides: Sequence[str], data: Text, file: Text) -> None:
    """Refuse ``--data`` or ``--file`` beside the other source; what the settings file says may be replaced."""
    if data is None and file is None:
        return
    changed = {
        key.strip(): value.strip() for key, equals, value in (text.partition("=") for text in overrides) if equals
    }
    name = changed.get("data.name") if data is None else data
    path = changed.get("data.file") if file is None else file
    if name is not None and path is not None:
        raise SettingError("data.file", path, f"give either data.name (now {name!r}) or data.file, not both")
