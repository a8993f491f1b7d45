"""`hybridnn data`: what data sets there are, and their files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hybridnn.cli.output import Format, make_console, print_json
from hybridnn.cli.ranks import first_rank_alone

if TYPE_CHECKING:
    from hybridnn.datasets import DatasetInfo


app = typer.Typer(help="List, describe and download data sets.")

Name = Annotated[str, typer.Argument(help="A name that `hybridnn data list` prints.", metavar="NAME")]
OutputFormat = Annotated[Format, typer.Option("--format", help="How to print the result.")]


@app.callback(invoke_without_command=True)
def _data(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list")
def list_data(output_format: OutputFormat = Format.text) -> None:
    """List the data sets."""
    from hybridnn.datasets import catalogue

    with first_rank_alone():
        infos = list(catalogue().values())
    if output_format is Format.json:
        print_json([_facts(info) for info in infos])
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for title in ("name", "task"):
        table.add_column(title, no_wrap=True)
    for title in ("features", "outputs", "train", "test"):
        table.add_column(title, justify="right")
    table.add_column("title")
    for info in infos:
        sizes = (info.features, info.outputs, info.train_samples, info.test_samples)
        table.add_row(info.name, info.task, *(f"{size:,}" for size in sizes), info.title)
    make_console(sys.stdout).print(table)


@app.command("info")
def describe_data(name: Name, output_format: OutputFormat = Format.text) -> None:
    """Describe a data set: shape, licence, citation, source."""
    from hybridnn.datasets import dataset_info

    with first_rank_alone():
        info = dataset_info(name)
    facts = _facts(info)
    if output_format is Format.json:
        print_json(facts)
        return
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    for key, value in facts.items():
        if key != "files" and value != "":
            grid.add_row(key.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
    for file in info.files:
        grid.add_row("file", f"{file.name} ({file.url or 'comes with the package'})")
    make_console(sys.stdout).print(grid)


@app.command("fetch")
def fetch_data(name: Name, output_format: OutputFormat = Format.text) -> None:
    """Download the files of a data set unless they are there, and print their paths."""
    from hybridnn.datasets import dataset_info, fetch

    with first_rank_alone():
        paths = [str(path) for path in fetch(dataset_info(name))]
    if output_format is Format.json:
        print_json({"name": name, "paths": paths})
        return
    for path in paths:
        print(path)
    if not paths:
        print(f"{name} is generated; there is nothing to download")


def _facts(info: DatasetInfo) -> dict[str, object]:
    """Return the catalogue entry without what only the loaders need."""
    from dataclasses import asdict

    facts = asdict(info)
    del facts["own_folder"]
    facts["files"] = [{key: file[key] for key in ("name", "url", "sha256", "size")} for file in facts["files"]]
    return facts
