"""`hybridnn settings` and the tables of `hybridnn study keys`: what can be set, allowed values and defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hybridnn.cli.options import Format, OutputFormat, setting_names
from hybridnn.cli.output import make_console, new_grid, new_table, write_json
from hybridnn.cli.ranks import first_rank_alone
from hybridnn.errors import SettingError

if TYPE_CHECKING:
    from hybridnn.config.reference import Setting

NARROW = 80  # columns of a console, below which a table would cut the names

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
        from hybridnn.utils.settings_models import nearest_key

        names = [row.name for row in rows]
        sections = dict.fromkeys(name.rpartition(".")[0] for name in names)
        near = nearest_key(key.lower(), [*filter(None, sections), *names])
        raise SettingError("KEY", key, f"did you mean {near}?" if near else "without a key all are listed")
    return found


def print_rows(rows: Sequence[Setting], title: str, output_format: OutputFormat) -> None:
    """Print a table, or the cells of each row below each other: of a single one, or where the console is narrow."""
    if output_format is Format.json:
        write_json([vars(row) for row in rows])
        return
    names = (title, "allowed", "default", "description")
    cells = [tuple(cell.replace("`", "") for cell in vars(row).values()) for row in rows]
    console = make_console()
    if len(cells) > 1 and console.width >= NARROW:
        console.print(new_table(names, (), cells, wraps=True))
        return
    for number, row in enumerate(cells):
        console.print(*([""] if number else []), new_grid(zip(names, row, strict=True)), sep="\n")
