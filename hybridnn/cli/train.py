"""`hybridnn train`: train with a settings file and options of the command line; `hybridnn settings` lists the keys."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridnn.cli.options import Config, InProcess, Key, OutputFormat, Overrides, Ranks, option, setting_values
from hybridnn.cli.output import print_settings
from hybridnn.cli.ranks import first_rank_alone, launch_rank, on_ranks, reported_progress, require_one_way, start_ranks
from hybridnn.errors import SettingError, one_line
from hybridnn.utils.processes import paused_collector

with paused_collector():
    from hybridnn.config.reference import DEFAULTS
    from hybridnn.config.reference import settings as all_settings
    from hybridnn.config.settings import Settings, load_settings
    from hybridnn.utils.text import command_argument

if TYPE_CHECKING:
    from hybridnn.runs.folder import Start
    from hybridnn.runs.records import RunSummary

TABLES = (".csv", ".tsv", ".txt", ".parquet", ".npz", ".npy", ".xlsx", ".gz")
"""Endings of files with samples, for what is given in place of a settings file."""
Override = str | None  # a short option, parsed to the text that ``--set`` takes


ROWS = {row.name: row for row in all_settings()}


def _setting(setting: str, metavar: str = "N", value: Callable[[str], str] = str) -> Any:
    """Declare a short option of a setting, with its description and default; `value` makes TOML of what is given."""

    def parse(given: str) -> str:
        return f"{setting}={value(given)}"

    text, default = ROWS[setting].summary.replace("`", "").rstrip("."), DEFAULTS.get(setting)
    if names := [choice for choice in ROWS[setting].choices if choice not in ("true", "false")]:
        text += f": {', '.join(names)}"
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    text += f" ({setting}; default: {'none' if shown in (None, '') else shown})."
    return typer.Option(
        help=text, metavar=metavar, parser=parse, autocompletion=setting_values(setting), show_default=False
    )


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
    data: Annotated[Override, _setting("data.name", "NAME", _text)] = None,
    file: Annotated[Override, _setting("data.file", "PATH", _text)] = None,
    targets: Annotated[Override, _setting("data.targets", "NAME,...", _names)] = None,
    drop: Annotated[Override, _setting("data.drop_columns", "NAME,...", _names)] = None,
    missing: Annotated[Override, _setting("data.missing", "NAME", _text)] = None,
    categories: Annotated[Override, _setting("data.categories", "NAME", _text)] = None,
    hidden: Annotated[Override, _setting("model.hidden", "SIZES", _sizes)] = None,
    epochs: Annotated[Override, _setting("training.epochs")] = None,
    batch_size: Annotated[Override, _setting("training.batch_size")] = None,
    seed: Annotated[Override, _setting("training.seed")] = None,
    optimizer: Annotated[Override, _setting("optimizer.name", "NAME", _text)] = None,
    lr: Annotated[Override, _setting("optimizer.lr", "RATE")] = None,
    pipeline: Annotated[Override, _setting("parallel.pipeline")] = None,
    method: Annotated[Override, _setting("parallel.method", "NAME", _text)] = None,
    batch: Annotated[Override, _setting("parallel.batch")] = None,
    model: Annotated[Override, _setting("parallel.model")] = None,
    layout: Annotated[Override, _setting("parallel.auto", "auto", _is_auto)] = None,
    out: Annotated[Override, _setting("output.folder", "FOLDER", _text)] = None,
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
        with closing(TrainView(as_json=output_format == "json", quiet=quiet)) as view:
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
    with first_rank_alone():
        print_settings(list(ROWS.values()), key, "setting", output_format)
