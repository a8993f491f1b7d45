"""What the subcommands share for printing: the formats, and where the output is shown."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, TextIO

from hybridnn.cli.ranks import launch_rank

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hybridnn.cost.machine.machine import Machine


PLAIN_WIDTH = 100
UNKNOWN_TERMINAL_WIDTH = 80


class Format(str, Enum):
    """How a command prints its result."""

    text = "text"
    json = "json"


def make_console(stream: TextIO) -> Console:
    """Make a rich console that takes all text literally and knows whether a terminal shows `stream`."""
    from rich.console import Console

    width = terminal_width(stream)
    # Without a terminal rich would take the width of a window that does not exist.
    return Console(
        file=stream, width=width or _plain_width(), force_terminal=width is not None, markup=False, highlight=False
    )


def print_machine(console: Console, machine: Machine, ranks: int) -> None:
    """Print how well a machine was measured, and that a job of so many ranks is more than it is made for."""
    if machine.quality is not None:
        console.print(f"machine file: {machine.quality.line}", soft_wrap=True)
    if ranks > machine.ranks:
        console.print(f"The machine is made for {machine.ranks:,} ranks: more of them take turns.")


def print_table(console: Console, table: Table) -> None:
    """Print a table as wide as it is, also where the console is narrower: nothing in it is cut."""
    width = console.width
    console.width = max(width, console.measure(table, options=console.options.update(max_width=1000)).maximum)
    console.print(table)
    console.width = width


def print_json(value: object) -> None:
    """Print one JSON value and nothing else on standard output."""
    from hybridnn.utils.text import to_json

    print(to_json(value, indent=2), flush=True)


def terminal_width(stream: TextIO) -> int | None:
    """Columns of the terminal that shows `stream`, or None if its output goes elsewhere.

    Open MPI 5 gives every rank a pseudo-terminal without a size, even where the output of mpirun itself goes to a file;
    then the answer is that of the parent process.
    """
    if not stream.isatty():
        return None
    columns = os.get_terminal_size(stream.fileno()).columns
    if columns == 0 and launch_rank() is not None:
        return _width_of_parent()
    return columns or UNKNOWN_TERMINAL_WIDTH


def _plain_width() -> int:
    """Columns of a pipe or file; what a rank writes to one is shown on the terminal from which `-n` started it."""
    columns = os.environ.get("COLUMNS", "") if launch_rank() is not None else ""
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
