"""`hybridnn data`: the data sets and their files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hybridnn.cli.options import Format, OutputFormat, command_group, dataset_names
from hybridnn.cli.output import make_console, new_grid, new_table, write_json
from hybridnn.cli.ranks import first_rank_alone

if TYPE_CHECKING:
    from hybridnn.data import DatasetInfo


app = command_group("List, describe and download data sets.")

Name = Annotated[
    str,
    typer.Argument(help="A name that `hybridnn data list` prints.", metavar="NAME", autocompletion=dataset_names),
]


@app.command("list")
def list_data(output_format: OutputFormat = Format.text) -> None:
    """List the data sets."""
    from hybridnn.data import catalogue

    with first_rank_alone():
        infos = list(catalogue().values())
    if output_format is Format.json:
        write_json([_facts(info) for info in infos])
        return
    table = new_table(("name", "task"), ("features", "outputs", "train", "test"))
    table.add_column("title")
    for info in infos:
        sizes = (info.features, info.outputs, info.train_samples, info.test_samples)
        table.add_row(info.name, info.task, *(f"{size:,}" for size in sizes), info.title)
    make_console().print(table)


@app.command("info")
def describe_data(name: Name, output_format: OutputFormat = Format.text) -> None:
    """Describe a data set: shape, licence, citation, source."""
    from hybridnn.data import dataset_info

    with first_rank_alone():
        info = dataset_info(name)
    facts = _facts(info)
    if output_format is Format.json:
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


def _facts(info: DatasetInfo) -> dict[str, object]:
    """The catalogue entry without the fields of the loaders."""
    names = ("name", "title", "task", "features", "outputs", "train_samples", "test_samples", "description", "licence")
    facts = {name: getattr(info, name) for name in (*names, "citation", "source")}
    files = [{key: getattr(file, key) for key in ("name", "url", "sha256", "size")} for file in info.files]
    return facts | {"files": files}
