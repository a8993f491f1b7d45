"""Results of commands: consoles, tables, JSON and files."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import StringIO
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast, get_args

from hybridnn.cli.options import Format, PictureFormat
from hybridnn.cli.ranks import TERMINAL, UNKNOWN_TERMINAL_WIDTH, columns_of_terminal, first_rank_alone, launch_rank
from hybridnn.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table

    from hybridnn.config.reference import Setting
    from hybridnn.drawing.drawing import Drawing


BINARY = ("png", "pdf")  # formats that cannot be printed
PICTURES = ("svg", *BINARY)
PLAIN_WIDTH = 100
NARROW = 80  # columns of a console, below which a table would cut the names of settings
PADDING = re.compile(r"[ \t]+$", re.MULTILINE)
MISSING = "-"  # cell of a table without a value


def make_console(stream: TextIO | None = None, on_unread: Callable[[], None] | None = None) -> Console:
    """Make a rich console that prints text literally, in colour only on a terminal; by default on standard output.

    `on_unread` is called in place of ``BrokenPipeError``, where nothing reads a pipe.
    """
    from rich.console import Console

    stream = stream or sys.stdout
    width = terminal_width(stream)
    # Without a terminal rich would take the width of a window that does not exist.
    return Console(
        file=stream if width else cast("TextIO", _Unpadded(stream, on_unread)),
        width=width or _plain_width(),
        force_terminal=width is not None,
        markup=False,
        highlight=False,
    )


class _Unpadded:
    """A stream whose lines have no blanks at their ends, which rich fills up to the widest one."""

    def __init__(self, stream: TextIO, on_unread: Callable[[], None] | None) -> None:
        self._stream, self._on_unread = stream, on_unread

    def write(self, text: str) -> int:
        self._call(lambda: self._stream.write(PADDING.sub("", text)))
        return len(text)

    def flush(self) -> None:
        self._call(self._stream.flush)

    def _call(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BrokenPipeError:
            if self._on_unread is None:
                raise
            self._on_unread()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def terminal_width(stream: TextIO) -> int | None:
    """Columns of the terminal that shows `stream`, or None if its output goes elsewhere.

    Open MPI 5 gives every rank a pseudo-terminal without a size, even where the output of mpirun itself goes to a file;
    then the width is that of the parent process. Ranks that ``-n`` started on a terminal have variables of it.
    """
    if stream is sys.stdout and launch_rank() is not None and os.environ.get(TERMINAL) == "1":
        return _plain_width()
    columns = columns_of_terminal(stream)
    if columns == 0 and launch_rank() is not None:
        return _width_of_parent()
    return None if columns is None else columns or UNKNOWN_TERMINAL_WIDTH


def _plain_width() -> int:
    """Columns of a pipe or file: ``COLUMNS``, which ``-n`` sets for the ranks that it starts on a terminal."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdigit() and int(columns) else PLAIN_WIDTH


def _width_of_parent() -> int | None:
    # O_NONBLOCK: opening a pipe must not wait for its reader.
    flags = os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK
    try:
        descriptor = os.open(f"/proc/{os.getppid()}/fd/1", flags)
    except OSError:  # no /proc, another user's process, or a socket: not a terminal that could be drawn on
        return None
    try:
        return (os.get_terminal_size(descriptor).columns or UNKNOWN_TERMINAL_WIDTH) if os.isatty(descriptor) else None
    finally:
        os.close(descriptor)


def new_table(
    texts: Iterable[str],
    numbers: Iterable[str],
    rows: Iterable[Sequence[str]] = (),
    *,
    footers: Sequence[str] = (),
    wraps: bool = False,
    **style: Any,
) -> Table:
    """Make a table with left-justified columns of text, then right-justified columns of numbers, by their titles.

    Cells behind the first are wrapped where the console is narrow if the table `wraps`. `style` are options of
    `rich.table.Table`.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table

    columns = [Column(title) for title in texts] + [Column(title, justify="right") for title in numbers]
    for column, footer in zip(columns, footers or [""] * len(columns), strict=True):
        column.footer, column.vertical, column.no_wrap = footer, "top" if wraps else "bottom", not wraps
        column.overflow = "fold" if wraps else "ellipsis"
    columns[0].no_wrap = True
    table = Table(*columns, box=SIMPLE_HEAD, show_footer=bool(footers), **style)
    for row in rows:
        table.add_row(*row)
    return table


def number_cell(number: float | None, form: str) -> str:
    """A number in a format such as ``.2f`` for a table; `MISSING` for None and NaN."""
    return MISSING if number is None or isnan(number) else format(number, form)


def new_grid(rows: Iterable[tuple[str, str]]) -> Table:
    """Make a table of names and values without a frame."""
    from rich.table import Column, Table

    grid = Table.grid(Column(style="bold", no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    for row in rows:
        grid.add_row(*row)
    return grid


def print_table(console: Console, table: Table) -> None:
    """Print a table at its full width, also where the console is narrower."""
    width = console.width
    console.width = max(width, console.measure(table, options=console.options.update(max_width=1000)).maximum)
    console.print(table)
    console.width = width


def print_drawing(console: Console, drawing: Drawing, *, whole: bool = False) -> None:
    """Print a drawing as text that fills the console's width, with colours if it is a terminal.

    The `whole` drawing has a scale at which all of it is on a screen.
    """
    from hybridnn.drawing.text import text_lines

    for line in text_lines(drawing, console.width, whole=whole):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def choose_format(wanted: PictureFormat | None, out: Path | None) -> PictureFormat:
    """Return the format given by the user, else that of the file's suffix, else text.

    Raises `SettingError` if the suffix of the file contradicts the format, its folder does not exist, or a PNG or PDF
    has no file.
    """
    if out is None:
        if wanted is not None and wanted in BINARY:
            raise SettingError("--format", wanted, "needs a file: give --out FILE")
        return wanted or "text"
    names: tuple[PictureFormat, ...] = get_args(PictureFormat)
    suffixes = {name: ".txt" if name == "text" else f".{name}" for name in names}
    found = next((name for name, suffix in suffixes.items() if suffix == out.suffix.lower()), None)
    if wanted is None and found is None and out.suffix:
        raise SettingError("--out", str(out), "the name of the file must end in " + ", ".join(suffixes.values()))
    if wanted is not None and out.suffix and found != wanted:
        raise SettingError("--out", str(out), f"with --format {wanted} the file must end in {suffixes[wanted]}")
    require_place("--out", out)
    return wanted or found or "text"


def require_width(width: float | None, picture: PictureFormat | None) -> None:
    """Raise `SettingError` where the ``--width`` that was given is none for a page, or the result is no picture."""
    from hybridnn.utils.checks import require_number

    if width is None:
        return
    require_number("--width", width, at_least=5.0, at_most=150.0, allowed="5 to 150 centimetres")
    if picture not in PICTURES:
        raise SettingError("--width", width, "needs a picture: give --out FILE.svg, .png or .pdf")


def require_place(option: str, path: Path) -> None:
    """Raise `SettingError` where `path` is a folder or its folder does not exist."""
    if os.path.isdir(path):
        raise SettingError(option, str(path), "is a folder, not a file")
    if not os.path.isdir(path.parent):
        raise SettingError(option, str(path), f"there is no folder {path.parent}")


def require_new_file(option: str, path: Path, *, replace: bool) -> None:
    """Raise `SettingError` where a file cannot be created at `path`, or is there already and not to be replaced."""
    require_place(option, path)
    if os.path.lexists(path) and not replace:
        raise SettingError(option, str(path), "is there already; --force replaces it")
    if not os.access(path.parent, os.W_OK):
        raise SettingError(option, str(path), f"the folder {path.parent} cannot be written")


def print_settings(rows: Sequence[Setting], key: str | None, title: str, output_format: Format) -> None:
    """Print the rows of a section or key, or all; `SettingError` if there is none.

    Text is a table, or the cells of each row below each other: of a single one, or where the console is narrow.
    """
    shown = [
        row for row in rows if key in (None, row.name, row.name.rpartition(".")[2]) or row.name.startswith(f"{key}.")
    ]
    if key is not None and not shown:
        from hybridnn.utils.settings_models import nearest_key

        names = [row.name for row in rows]
        near = nearest_key(key.lower(), [*filter(None, {name.rpartition(".")[0]: "" for name in names}), *names])
        raise SettingError("KEY", key, f"did you mean {near}?" if near else "without a key all are listed")
    if output_format == "json":
        write_json([vars(row) for row in shown])
        return
    titles = (title, "allowed", "default", "description")
    cells = [tuple(cell.replace("`", "") for cell in vars(row).values()) for row in shown]
    console = make_console()
    if len(cells) > 1 and console.width >= NARROW:
        console.print(new_table(titles, (), cells, wraps=True))
        return
    for number, row in enumerate(cells):
        console.print(*([""] if number else []), new_grid(zip(titles, row, strict=True)), sep="\n")


def write_result(
    picture: PictureFormat,
    out: Path | None,
    text: Callable[[Console], None],
    facts: Callable[[], object],
    draw: Callable[[], Drawing | Mapping[str, Figure]],
    width: float | None = None,
) -> None:
    """Write a result in one of the formats to a file, or print it.

    `text` prints the result on a console, `facts` returns the value that becomes JSON, and `draw` a drawing that
    becomes SVG, PNG or PDF, `width` centimetres wide, or figures of matplotlib by name: the first one is written to
    `out`, and every other one beside it, to a file with its name after a hyphen.

    Raises `SettingError` for figures without a file.
    """
    if picture == "json":
        write_json(facts(), out)
    elif picture == "text" and out is None:
        text(make_console())
    elif picture == "text":
        without_colours = StringIO()
        text(make_console(without_colours))
        write_file(without_colours.getvalue(), out)
    else:
        from hybridnn.drawing.drawing import Drawing
        from hybridnn.drawing.figures import figure_bytes
        from hybridnn.drawing.picture import picture_bytes

        drawn = draw()
        if isinstance(drawn, Drawing):
            content = picture_bytes(drawn, picture, width)
            write_file(content if picture in BINARY else content.decode(), out)
            return
        if out is None:
            raise SettingError("--format", picture, "makes several files: give --out FILE")
        for number, (name, figure) in enumerate(drawn.items()):
            write_file(figure_bytes(figure, picture), out.with_stem(f"{out.stem}-{name}") if number else out)


def write_json(value: object, out: Path | None = None) -> None:
    """Write one JSON value to a file, or print it."""
    from hybridnn.utils.text import to_json

    write_file(to_json(value, indent=2) + "\n", out)


def write_file(content: str | bytes, out: Path | None) -> None:
    """Write a result to its file on rank 0, and print the file's name; without a file print the result."""
    if out is None:
        print(content, end="", flush=True)
        return
    with first_rank_alone():
        try:
            out.write_bytes(content.encode() if isinstance(content, str) else content)
        except OSError as error:
            raise SettingError("--out", str(out), f"cannot be written: {error.strerror}") from error
    make_console().print(str(out), soft_wrap=True)
