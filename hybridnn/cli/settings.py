"""`hybridnn settings` and the tables of `hybridnn study keys`: what can be set, allowed values and defaults."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hybridnn.cli.options import Format, OutputFormat, setting_names
from hybridnn.cli.output import make_console, new_grid, new_table, write_json
from hybridnn.cli.ranks import first_rank_alone
from hybridnn.errors import SettingError

if TYPE_CHECKING:
    from hybridnn.config.reference import Setting

Key = Annotated[
    str | None,
    typer.Argument(
        help="A section, or a key with or without it (default: all).", metavar="KEY", autocompletion=setting_names
    ),
]


def settings(key: Key = None, output_format: OutputFormat = Format.text) -> None:
    """List the settings of a training, with what each allows and its default."""
    from hybridnn.config.reference import settings as all_settings

    with first_rank_alone():
        rows = chosen(all_settings(), key)
    print_rows(rows, "setting", output_format)


def chosen(rows: Sequence[Setting], key: str | None) -> Sequence[Setting]:
    """The rows of a section or key, or all; `SettingError` if there is none."""
    if key is None:
        return rows
    found = [row for row in rows if key in (row.name, row.name.rpartition(".")[2]) or row.name.startswith(f"{key}.")]
    if not found:
        names = [name for row in rows for name in (row.name, *row.name.rpartition(".")[::2])]
        near = difflib.get_close_matches(key.lower(), names, n=1)
        raise SettingError("KEY", key, f"did you mean {near[0]}?" if near else "without a key all are listed")
    return found


def print_rows(rows: Sequence[Setting], title: str, output_format: OutputFormat) -> None:
    """Print a table, or of one row its cells below each other."""
    if output_format is Format.json:
        write_json([vars(row) for row in rows])
        return
    names = (title, "allowed", "default", "description")
    cells = [tuple(cell.replace("`", "") for cell in vars(row).values()) for row in rows]
    console = make_console()
    console.print(
        new_grid(zip(names, cells[0], strict=True)) if len(cells) == 1 else new_table(names, (), cells, wraps=True)
    )
