"""`hybridnn train`: train with a settings file and options of the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridnn.cli.options import (
    Config,
    Format,
    InProcess,
    OutputFormat,
    Overrides,
    Ranks,
    dataset_names,
    method_names,
    option,
)
from hybridnn.cli.ranks import launch_rank, on_ranks, reported_progress, require_one_way, start_ranks
from hybridnn.errors import SettingError
from hybridnn.training.config import OPTIONS
from hybridnn.utils.collector import paused_collector

if TYPE_CHECKING:
    from hybridnn.config.settings import Settings
    from hybridnn.runs.folder import Start
    from hybridnn.runs.records import RunSummary

Override = str | None  # a short option, parsed to the text that ``--set`` takes


def _setting(
    setting: str,
    text: str = "",
    metavar: str = "N",
    default: str = "",
    value: Callable[[str], str] = str,
    names: Callable[[str], list[str]] | None = None,
) -> Any:
    """Declare a short option of a setting.

    Parameters
    ----------
    text : str
        What the setting is, without the full stop; empty for an option of `TrainConfig`, which has text and default.
    default : str
        Default of the setting, for the help; empty if `text` says what holds without it.
    value : callable
        Makes TOML of the option's text.
    names : callable, optional
        Completes the text in a shell.
    """

    def parse(given: str) -> str:
        return f"{setting}={value(given)}"

    known = OPTIONS.get(setting.rpartition(".")[2])
    if not text and known is not None:
        text, default = known.metadata["help"].rstrip("."), str(known.default)
    shown = f"{text} ({setting})."
    return typer.Option(help=shown, metavar=metavar, parser=parse, autocompletion=names, show_default=default or False)


def _text_setting(
    setting: str,
    text: str = "",
    metavar: str = "NAME",
    default: str = "",
    names: Callable[[str], list[str]] | None = None,
) -> Any:
    """Declare a short option of a setting that is text."""
    # A JSON string is a TOML string, so that a name or path is never taken for a number.
    return _setting(setting, text, metavar, default, lambda given: json.dumps(given, ensure_ascii=False), names)


def _names(text: str) -> str:
    """A list of names in TOML."""
    return json.dumps([name.strip() for name in text.split(",")], ensure_ascii=False)


def _sizes(text: str) -> str:
    """A list of sizes in TOML."""
    inner = text.strip().removeprefix("[").removesuffix("]")
    if re.fullmatch(r"[\s\d_,+-]*", inner) is None:
        raise SettingError("model.hidden", text, "must be whole numbers with commas between them, such as 64,64")
    return f"[{inner}]"


def train(
    config: Config = None,
    overrides: Overrides = None,
    data: Annotated[
        Override,
        _text_setting(
            "data.name",
            "A data set: digits, airfoil, ethylene, mnist, fashion-mnist, cifar10 or synthetic",
            default="digits",
            names=dataset_names,
        ),
    ] = None,
    file: Annotated[
        Override, _text_setting("data.file", "A .csv, .parquet or .npz file, in place of a data set", "PATH")
    ] = None,
    targets: Annotated[
        Override,
        _setting("data.targets", "Target columns of a table; required for one", "NAME,...", value=_names),
    ] = None,
    hidden: Annotated[
        Override, _setting("model.hidden", "Widths of the hidden layers", "SIZES", "256,256", _sizes)
    ] = None,
    epochs: Annotated[Override, _setting("training.epochs", "Passes over the training samples", default="10")] = None,
    batch_size: Annotated[Override, _setting("training.batch_size")] = None,
    seed: Annotated[Override, _setting("training.seed")] = None,
    optimizer: Annotated[
        Override, _text_setting("optimizer.name", "Optimizer: sgd, adam, adamw or rmsprop", default="sgd")
    ] = None,
    lr: Annotated[
        Override, _setting("optimizer.lr", "Learning rate", "RATE", "that of the optimizer, 0.005 for sgd")
    ] = None,
    pipeline: Annotated[
        Override, _setting("parallel.pipeline", "Stages of a pipeline; without, 1, or with --method all ranks")
    ] = None,
    method: Annotated[Override, _text_setting("parallel.method", names=method_names)] = None,
    batch: Annotated[
        Override, _setting("parallel.batch", "Ranks that share the samples; without, all remaining ranks")
    ] = None,
    model: Annotated[Override, _setting("parallel.model", "Ranks that every layer is split over", default="1")] = None,
    out: Annotated[
        Override, _text_setting("output.folder", "The run folder; without, a new one in runs/", "FOLDER")
    ] = None,
    resume: Annotated[
        str | None,
        option(
            "Resume the run in this folder from its newest valid checkpoint, on this layout or another; auto: the run "
            "in output.folder, if it has checkpoints; without, a new run begins.",
            "FOLDER",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Resume although settings of the training differ.")] = False,
    output_format: OutputFormat = Format.text,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the final table.")] = False,
    ranks: Ranks = None,
    in_process: InProcess = None,
) -> None:
    """Train a multi-layer perceptron; -n or --in-process starts it on several ranks, as mpirun and srun do."""
    require_one_way(ranks, in_process)
    _require_one_source(overrides or (), data, file)
    numbers = (hidden, epochs, batch_size, seed, lr, pipeline, batch, model)
    names = (data, file, targets, optimizer, method, out)
    changes = [*(overrides or ()), *filter(None, (*numbers, *names))]
    with paused_collector():
        from hybridnn.config.settings import load_settings

        settings = None if resume not in (None, "auto") and config is None else load_settings(config, changes)
        if ranks is not None:
            _require_fitting_layout(settings, resume, changes, ranks)
    start_ranks(ranks, stops_on_signals=True)

    # Only now, so that a wrong setting is reported without waiting for the rest to load.
    with paused_collector():
        from hybridnn.cli.train_view import TrainView
        from hybridnn.comm.agreement import agree
        from hybridnn.parallel.grid import all_ranks_group
        from hybridnn.runs.resume import resolve_request
        from hybridnn.runs.run import run_training

    def resolved() -> tuple[Settings, Start] | None:
        return resolve_request(settings, resume, changes, forced=force)

    def train_rank() -> RunSummary | None:
        request = resolved() if resume is None else agree(all_ranks_group(), resolved, names_nodes=True)
        if request is None:
            return None
        run_settings, start = request
        with TrainView(as_json=output_format is Format.json, quiet=quiet) as view:
            return run_training(run_settings, view, start=start, forced=force)

    with reported_progress():
        ended = on_ranks(in_process, train_rank)
    if ended is None and launch_rank() in (None, 0):
        print(f"{settings.output.folder if settings else resume}: the run has ended, nothing is left to do")


def _require_fitting_layout(settings: Settings | None, resume: str | None, changes: Sequence[str], ranks: int) -> None:
    """Refuse settings that do not fit `ranks` ranks before these are started."""
    from hybridnn.runs.workload import require_fitting_layout

    if settings is None:
        from hybridnn.runs.resume import settings_of_run

        settings = settings_of_run(Path(resume or ""), changes, ranks)
    require_fitting_layout(settings, ranks)


def _require_one_source(overrides: Sequence[str], data: Override, file: Override) -> None:
    """Refuse ``--data`` or ``--file`` beside the other source; that of the settings file may be replaced."""
    if data is None and file is None:
        return
    changed = {
        key.strip(): value.strip()
        for key, equals, value in (text.partition("=") for text in (*overrides, data or "", file or ""))
        if equals
    }
    name, path = changed.get("data.name"), changed.get("data.file")
    if name is not None and path is not None:
        name, path = (value if given is None else json.loads(value) for value, given in ((name, data), (path, file)))
        raise SettingError("data.file", path, f"give either data.name (now {name!r}) or data.file, not both")
