"""What commands that draw schedules share: the formats, where the result goes, colours on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from enum import Enum
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from hybridnn.cli.output import make_console
from hybridnn.cli.ranks import first_rank_alone
from hybridnn.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console

    from hybridnn.pipeline.drawing.drawing import Drawing


class PictureFormat(str, Enum):
    """How a command shows a schedule."""

    text = "text"
    json = "json"
    svg = "svg"
    png = "png"


SUFFIXES = {
    PictureFormat.text: ".txt",
    PictureFormat.json: ".json",
    PictureFormat.svg: ".svg",
    PictureFormat.png: ".png",
}


def choose_format(wanted: PictureFormat | None, out: Path | None) -> PictureFormat:
    """Return the format that the user named, or else that of the file, or else text.

    Raises
    ------
    SettingError
        If the name of the file says another format, its folder does not exist, or a PNG has no file to go to.
    """
    if out is None:
        if wanted is PictureFormat.png:
            raise SettingError("--format", wanted.value, "needs a file: give --out FILE")
        return wanted or PictureFormat.text
    by_suffix = {suffix: name for name, suffix in SUFFIXES.items()}
    found = by_suffix.get(out.suffix.lower())
    if wanted is None and found is None and out.suffix:
        raise SettingError("--out", str(out), "the name of the file must end in " + ", ".join(by_suffix))
    if wanted is not None and out.suffix and found is not wanted:
        raise SettingError("--out", str(out), f"with --format {wanted.value} the file must end in {SUFFIXES[wanted]}")
    if os.path.isdir(out):
        raise SettingError("--out", str(out), "is a folder, not a file")
    if not os.path.isdir(out.parent):
        raise SettingError("--out", str(out), f"there is no folder {out.parent}")
    return wanted or found or PictureFormat.text


def print_drawing(console: Console, drawing: Drawing) -> None:
    """Print a drawing as text that fills the console's width, with colours if it is a terminal."""
    from rich.text import Text

    from hybridnn.pipeline.drawing.drawing import KINDS
    from hybridnn.pipeline.drawing.text import text_lines

    styles = {kind.name: f"{kind.ink} on {kind.fill}" for kind in KINDS.values()} | {"": ""}
    for line in text_lines(drawing, console.width):
        text = Text.assemble(*((piece.text, styles[piece.kind]) for piece in line))
        console.print(text, no_wrap=True, overflow="ignore", crop=False)


def write_picture(drawing: Drawing, picture: PictureFormat, out: Path | None) -> None:
    """Write a drawing as SVG or PNG; an SVG without a file goes to standard output."""
    if picture is PictureFormat.svg:
        from hybridnn.pipeline.drawing.svg import svg_text

        write_file(svg_text(drawing), out)
    else:
        from hybridnn.pipeline.drawing.png import png_bytes

        write_file(png_bytes(drawing), out)


def write_text(print_report: Callable[[Console], None], out: Path | None) -> None:
    """Let a report print itself: on standard output, or without colours into a file."""
    if out is None:
        print_report(make_console(sys.stdout))
        return
    text = StringIO()
    print_report(make_console(text))
    write_file(text.getvalue(), out)


def write_file(content: str | bytes, out: Path | None) -> None:
    """Write the result to its file, on the first rank only, and say so; without a file print it.

    Raises
    ------
    SettingError
        If the file cannot be written.
    """
    if out is None:
        print(content, end="", flush=True)
        return
    with first_rank_alone():
        try:
            out.write_bytes(content.encode() if isinstance(content, str) else content)
        except OSError as error:
            raise SettingError("--out", str(out), f"cannot be written: {error.strerror}") from error
    make_console(sys.stdout).print(str(out), soft_wrap=True)
