"""`hybridnn train`: train with a settings file and options of the command line; `hybridnn settings` lists the keys."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from hybridnn.cli.options import (
    Config,
    InProcess,
    Key,
    OutputFormat,
    Overrides,
    Ranks,
    dataset_names,
    method_names,
    option,
    setting_values,
)
from hybridnn.cli.output import print_settings
from hybridnn.cli.ranks import first_rank_alone, launch_rank, on_ranks, reported_progress, require_one_way, start_ranks
from hybridnn.errors import SettingError, one_line
from hybridnn.utils.processes import paused_collector

with paused_collector():
    from hybridnn.config.settings import Settings, load_settings
    from hybridnn.data.table_file import Categories, Missing
    from hybridnn.nn.optimizers import optimizers
    from hybridnn.pipeline.schedules.methods import METHODS
    from hybridnn.training.config import OPTIONS
    from hybridnn.utils.settings_models import by_dotted_name
    from hybridnn.utils.text import command_argument

if TYPE_CHECKING:
    from hybridnn.runs.folder import Start
    from hybridnn.runs.records import RunSummary

TABLES = (".csv", ".tsv", ".txt", ".parquet", ".npz", ".npy", ".xlsx", ".gz")
"""Endings of files with samples, for what is given in place of a settings file."""
Override = str | None  # a short option, parsed to the text that ``--set`` takes

DEFAULTS = by_dotted_name(Settings().model_dump())
"""Default values of the settings by their names."""


def _setting(
    setting: str,
    text: str = "",
    metavar: str = "N",
    value: Callable[[str], str] = str,
    names: Callable[[str], list[str]] | None = None,
    default: str = "",
) -> Any:
    """Declare a short option of a setting, with the default of the setting, or else `default` in its place.

    `text` has no full stop, and is empty for an option of `TrainConfig`, which has one. `value` makes TOML of what is
    given, and `names` completes it in a shell.
    """

    def parse(given: str) -> str:
        return f"{setting}={value(given)}"

    text = text or OPTIONS[setting.rpartition(".")[2]].metadata["help"].rstrip(".")
    value_of = DEFAULTS.get(setting)
    if value_of not in (None, ()):
        default = ",".join(map(str, value_of)) if isinstance(value_of, tuple) else str(value_of)
    text += f" ({setting}; default: {default})." if default else f" ({setting})."
    return typer.Option(help=text, metavar=metavar, parser=parse, autocompletion=names, show_default=False)


def _text(text: str) -> str:
    """A text in TOML, so that a name or path is never taken for a number."""
    return json.dumps(text, ensure_ascii=False)


def _names(text: str) -> str:
    """A list of names in TOML; a text in brackets is one already."""
    return text if text.startswith("[") else json.dumps([name.strip() for name in text.split(",")], ensure_ascii=False)


def _sizes(text: str) -> str:
    """A list of sizes in TOML."""
    inner = text.strip().removeprefix("[").removesuffix("]")
    if re.fullmatch(r"[\s\d_,+-]*", inner) is None:
        raise SettingError("model.hidden", text, "must be whole numbers with commas between them, such as 64,64")
    return f"[{inner}]"


def _is_auto(text: str) -> str:
    """The value of ``parallel.auto``."""
    if text != "auto":
        raise SettingError("--layout", text, "auto; --pipeline, --batch and --model choose another layout")
    return "true"


def train(
    config: Config = None,
    overrides: Overrides = None,
    data: Annotated[
        Override,
        _setting(
            "data.name",
            "A data set that hybridnn data list shows, or synthetic",
            "NAME",
            _text,
            dataset_names,
        ),
    ] = None,
    file: Annotated[
        Override, _setting("data.file", "A .csv, .parquet or .npz file, in place of a data set", "PATH", _text)
    ] = None,
    targets: Annotated[
        Override, _setting("data.targets", "Target columns, required for a table", "NAME,...", _names)
    ] = None,
    drop: Annotated[
        Override,
        _setting("data.drop_columns", "Columns of a table that are left out", "NAME,...", _names, default="none"),
    ] = None,
    missing: Annotated[
        Override,
        _setting(
            "data.missing",
            f"Missing values of a table: {', '.join(get_args(Missing))}",
            "NAME",
            _text,
            setting_values("data.missing"),
        ),
    ] = None,
    categories: Annotated[
        Override,
        _setting(
            "data.categories",
            f"Input columns of text: {', '.join(get_args(Categories))}",
            "NAME",
            _text,
            setting_values("data.categories"),
        ),
    ] = None,
    hidden: Annotated[Override, _setting("model.hidden", "Widths of the hidden layers", "SIZES", _sizes)] = None,
    epochs: Annotated[Override, _setting("training.epochs", "Passes over the training samples")] = None,
    batch_size: Annotated[Override, _setting("training.batch_size")] = None,
    seed: Annotated[Override, _setting("training.seed")] = None,
    optimizer: Annotated[
        Override,
        _setting(
            "optimizer.name",
            f"Optimizer: {', '.join(kind.name for kind in optimizers())}",
            "NAME",
            _text,
            setting_values("optimizer.name"),
        ),
    ] = None,
    lr: Annotated[Override, _setting("optimizer.lr", "Learning rate; other optimizers have others", "RATE")] = None,
    pipeline: Annotated[
        Override, _setting("parallel.pipeline", "Pipeline stages, or all ranks if only --method is given")
    ] = None,
    method: Annotated[
        Override, _setting("parallel.method", f"Pipeline method: {', '.join(METHODS)}", "NAME", _text, method_names)
    ] = None,
    batch: Annotated[
        Override, _setting("parallel.batch", "Ranks that share the samples", default="all remaining ranks")
    ] = None,
    model: Annotated[Override, _setting("parallel.model", "Ranks that every layer is split over")] = None,
    layout: Annotated[
        Override,
        _setting(
            "parallel.auto", "With auto, the fastest exact layout that the machine file predicts", "auto", _is_auto
        ),
    ] = None,
    out: Annotated[
        Override, _setting("output.folder", "The run folder", "FOLDER", _text, default="a new one in runs/")
    ] = None,
    resume: Annotated[
        str | None,
        option(
            "Resume the run in this folder from its newest valid checkpoint, on this layout or another; auto: the run "
            "in output.folder, if it has checkpoints (default: a new run begins).",
            "FOLDER",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Resume although settings of the training differ.")] = False,
    output_format: OutputFormat = "text",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the final table.")] = False,
    ranks: Ranks = None,
    in_process: InProcess = None,
) -> None:
    """Train a multi-layer perceptron; -n or --in-process starts it on several ranks, as mpirun and srun do."""
    require_one_way(ranks, in_process)
    _require_settings_file(config, overrides or (), hidden, {"--targets": targets, "--drop": drop})
    numbers = (hidden, epochs, batch_size, seed, lr, pipeline, batch, model, layout)
    names = (data, file, targets, drop, missing, categories, optimizer, method, out)
    changes = [*(overrides or ()), *filter(None, (*numbers, *names))]
    with paused_collector():
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
        request = resolved() if resume is None else agree(all_ranks_group(stall_seconds=0), resolved, names_nodes=True)
        if request is None:
            return None
        run_settings, start = request
        with TrainView(as_json=output_format == "json", quiet=quiet) as view:
            return run_training(run_settings, view, start=start, forced=force)

    with reported_progress():
        ended = on_ranks(in_process, train_rank)
    if ended is None and launch_rank() in (None, 0):
        print(f"{settings.output.folder if settings else resume}: the run has ended, nothing is left to do")


def _require_settings_file(
    config: Path | None, overrides: Sequence[str], hidden: Override, names: Mapping[str, Override]
) -> None:
    """Refuse what is no settings file: a table, a misspelled name, or the rest of an option that was cut by a blank.

    `names` are the options that are lists of names.
    """
    if config is None:
        return
    word, cut = one_line(str(config)), [text.rstrip("=") for text in overrides if "=" not in text.rstrip("=")]
    if config.suffix.lower() in TABLES:
        advice = f"is a table; train it with --file {word} --targets COLUMN"
    elif os.path.lexists(config):
        return
    elif cut:
        advice = f"is no settings file; write --set {cut[-1]}={word}, without a blank"
    elif hidden is not None and word.replace(",", "").isdigit():
        advice = f"is no settings file; write --hidden {_joined(hidden, word)}, without a blank"
    elif config.suffix != ".toml" and (given := {name: text for name, text in names.items() if text is not None}):
        ways = " or ".join(f"{name} {command_argument(_joined(text, word))}" for name, text in given.items())
        advice = f"there is no such file; a list has commas without blanks: {ways}"
    else:
        files = [file.name for file in config.parent.glob("*.toml")] if os.path.isdir(config.parent) else []
        near = difflib.get_close_matches(config.name, files, n=1)
        advice = "there is no such file" + (f"; did you mean {config.with_name(near[0])}?" if near else "")
    raise SettingError("settings file", word, advice)


def _joined(override: str, word: str) -> str:
    """The list of a short option with a further word."""
    items = re.sub(r'[\[\]"]', "", override.partition("=")[2]).split(",")
    return ",".join(item for item in map(str.strip, [*items, *word.split(",")]) if item)


def _require_fitting_layout(settings: Settings | None, resume: str | None, changes: Sequence[str], ranks: int) -> None:
    """Refuse settings that do not fit `ranks` ranks before these are started."""
    from hybridnn.runs.workload import require_fitting_layout

    if settings is None:
        from hybridnn.runs.resume import settings_of_run

        settings = settings_of_run(Path(resume or ""), changes, ranks)
    require_fitting_layout(settings, ranks)


def settings(key: Key = None, output_format: OutputFormat = "text") -> None:
    """List the settings of a training, with what each allows and its default."""
    from hybridnn.config.reference import settings as all_settings

    with first_rank_alone():
        print_settings(all_settings(), key, "setting", output_format)
