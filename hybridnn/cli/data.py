"""`hybridnn data`: the data sets and their files."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridnn.cli.options import OutputFormat, Overrides, command_group, dataset_names, option, setting_values
from hybridnn.cli.output import make_console, new_grid, new_table, write_json
from hybridnn.cli.ranks import first_rank_alone
from hybridnn.utils.text import column_list, command_argument, to_json

if TYPE_CHECKING:
    from rich.table import Table

    from hybridnn.config.settings import Settings
    from hybridnn.data import DatasetInfo
    from hybridnn.data.table_fitting import TableCheck


MOST_COLUMNS = 30
"""In tables of more columns, the message of an error has to suffice."""
SHOWN_COLUMNS = 200  # of a table that is checked
NOT_REPEATED = {"name", "file", "targets", "synthetic"}
"""Settings of ``[data]`` that the command of a check has in another form, or that tables do not have."""

app = command_group("List, describe and download data sets.")

Name = Annotated[
    str,
    typer.Argument(help="A name that `hybridnn data list` prints.", metavar="NAME", autocompletion=dataset_names),
]


@app.command("list")
def list_data(output_format: OutputFormat = "text") -> None:
    """List the data sets."""
    from hybridnn.data import catalogue

    with first_rank_alone():
        infos = list(catalogue().values())
    if output_format == "json":
        write_json([_facts(info) for info in infos])
        return
    table = new_table(("name", "task"), ("features", "outputs", "train", "test"), wraps=True)
    table.add_column("title")
    for info in infos:
        sizes = (info.features, info.outputs, info.train_samples, info.test_samples)
        table.add_row(info.name, info.task, *(f"{size:,}" for size in sizes), info.title)
    make_console().print(table)


@app.command("info")
def describe_data(name: Name, output_format: OutputFormat = "text") -> None:
    """Describe a data set: shape, licence, citation, source."""
    from hybridnn.data import dataset_info

    with first_rank_alone():
        info = dataset_info(name)
    facts = _facts(info)
    if output_format == "json":
        write_json(facts)
        return
    rows = [
        (key.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
        for key, value in facts.items()
        if key != "files" and value != ""
    ]
    rows += [("file", f"{file.name} ({file.url or 'comes with the package'})") for file in info.files]
    make_console().print(new_grid(rows))


@app.command("fetch")
def fetch_data(name: Name) -> None:
    """Download the files of a data set unless they are there, and print their paths."""
    from hybridnn.data import dataset_info, fetch

    with first_rank_alone():
        paths = [str(path) for path in fetch(dataset_info(name))]
    for path in paths:
        print(path)
    if not paths:
        print(f"{name} is generated; there is nothing to download")


@app.command("check")
def check_data(
    file: Annotated[Path, typer.Argument(help="A table: a .csv or .parquet file.", metavar="FILE")],
    targets: Annotated[str, option("Target columns, separated by commas.", "NAMES")] = "",
    drop: Annotated[str, option("Columns to leave out, separated by commas (data.drop_columns).", "NAMES")] = "",
    missing: Annotated[
        str, option("Missing values (data.missing).", "NAME", complete=setting_values("data.missing"))
    ] = "",
    categories: Annotated[
        str, option("Input columns of text (data.categories).", "NAME", complete=setting_values("data.categories"))
    ] = "",
    set_: Overrides = None,
    output_format: OutputFormat = "text",
) -> None:
    """Show what the columns of a table hold and become, its problems, and a command to train with."""
    from hybridnn.config.settings import load_settings
    from hybridnn.data.table_fitting import settings_of

    with first_rank_alone():
        overrides = [f"data.file={to_json(str(file))}", *(set_ or ())]
        given = {"targets": targets, "drop_columns": drop, "missing": missing, "categories": categories}
        for key, text in given.items():
            overrides += [f"data.{key}={text if text.startswith('[') else to_json(text)}"] if text else []
        settings = load_settings(None, overrides)
        found = _check(settings)
    if output_format == "json":
        columns = [line._asdict() for line in found.columns]
        write_json({**found._asdict(), "columns": columns, "settings": settings_of(found.problems)})
        return
    console = make_console()
    console.print(_columns_table(found))
    lines, commands = _ways_to_train(found, settings, [text for text in set_ or () if not text.startswith("data.")])
    console.print(new_grid(line for line in lines if line[1]))
    for options in commands:
        print(f"hybridnn train --file {command_argument(file)} {options}")


def _ways_to_train(
    found: TableCheck, settings: Settings, others: Sequence[str]
) -> tuple[list[tuple[str, str]], list[str]]:
    """What there is to say about a table, with headings, and the options of commands to train, the likely one last.

    `others` are settings of other sections, which the commands keep.
    """
    from hybridnn.data.table_fitting import Problem, settings_of

    data = settings.data
    lines = [("rows", f"{found.rows:,}"), ("separator", found.separator), ("task", found.task)]
    lines += [("problem", f"{problem.text}; {problem.advice}") for problem in found.problems]
    unsolved = [problem for problem in found.problems if not problem.settings]
    left_out = list(dict.fromkeys(problem.column for problem in unsolved if problem.column))
    drops = settings_of(found.problems).get("drop_columns", [])
    dropped = {*left_out, *(drops if isinstance(drops, list) else ())}
    has_inputs = len(dropped) < sum(line.becomes != "target" for line in found.columns)
    if left_out and has_inputs:
        what = "the command has no setting for the problems of these columns"
        lines.append(("left out", f"{what}: {column_list(left_out)}"))
    if any(not problem.column for problem in unsolved) or not has_inputs:
        how = "change the file, or add a setting to the command, for each problem that it does not solve"
        lines.append(("first", how))
    if not has_inputs:
        return lines, []
    before = data.model_dump(exclude=NOT_REPEATED, exclude_defaults=True)
    before |= {f"csv.{key}": value for key, value in (before.pop("csv", None) or {}).items()}
    set_before = {key: list(value) if isinstance(value, tuple) else value for key, value in before.items()}
    left = {"drop_columns": left_out} if left_out else {}
    solved = settings_of([Problem("", "", set_before), *found.problems, Problem("", "", left)])
    if data.inputs:
        solved.pop("drop_columns", None)
        solved["inputs"] = [name for name in data.inputs if name not in dropped]
    named = command_argument(_list_text(found.targets)) if found.targets else "NAME"
    end = "".join(f" --set {command_argument(text)}" for text in others)
    ways = [solved]
    if loss := solved.get("model.loss"):
        ways.insert(0, {**solved, "model.loss": "mse" if loss == "cross_entropy" else "cross_entropy"})
        task = "a regression" if loss == "mse" else "a classification"
        lines.append(("likely", f"{task}, which the last command trains"))
    return lines, [f"--targets {named} {_options_text(way)}".strip() + end for way in ways]


def _options_text(settings: Mapping[str, object]) -> str:
    """Settings of ``[data]``, or of ``[model]`` with their section, as options of a command."""
    texts = {key: _list_text(value) if isinstance(value, list) else str(value) for key, value in settings.items()}
    texts |= {key: str(value).lower() for key, value in settings.items() if isinstance(value, bool)}
    names = {key: key if key.startswith("model.") else f"data.{key}" for key in texts}
    return " ".join(f"--set {command_argument(f'{names[key]}={text}')}" for key, text in texts.items())


def _list_text(values: Sequence[str]) -> str:
    """Names with commas between them, or as a list in TOML where a name has one."""
    is_simple = not any("," in value or value != value.strip() for value in values)
    return ",".join(values) if is_simple else to_json(list(values))


def print_columns(settings: Settings) -> None:
    """Print the columns of a table that is refused, on standard error, unless there are many columns."""
    found = _check(settings)
    if len(found.columns) <= MOST_COLUMNS:
        make_console(sys.stderr).print(_columns_table(found))


def _check(settings: Settings) -> TableCheck:
    from hybridnn.data.table_fitting import check_table

    data = settings.data
    return check_table(
        Path(data.file or ""), data.targets, inputs=data.inputs, task=settings.model.task, options=data.table_options
    )


def _columns_table(found: TableCheck) -> Table:
    table = new_table(("column", "holds"), ("missing", "different"))
    for head in ("values", "becomes"):
        table.add_column(head)
    for line in found.columns[:SHOWN_COLUMNS]:
        table.add_row(*line[:2], *(f"{number:,}" for number in line[2:4]), *line[4:])
    if len(found.columns) > SHOWN_COLUMNS:
        table.add_row(f"and {len(found.columns) - SHOWN_COLUMNS:,} more, which --format json shows", *5 * [""])
    return table


def _facts(info: DatasetInfo) -> dict[str, object]:
    """The catalogue entry without the fields of the loaders."""
    names = ("name", "title", "task", "features", "outputs", "train_samples", "test_samples", "description", "licence")
    facts = {name: getattr(info, name) for name in (*names, "citation", "source")}
    files = [{key: getattr(file, key) for key in ("name", "url", "sha256", "size")} for file in info.files]
    return facts | {"files": files}
