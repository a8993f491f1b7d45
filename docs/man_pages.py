"""Write manual pages of all commands, one file each: python docs/man_pages.py FOLDER, then man -l FOLDER/hybridnn.1."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from hybridnn import __version__
from hybridnn.cli.main import whole_parser

__all__ = ["pages"]

EXIT_STATUS = (
    ("0", "The command succeeded."),
    ("1", "Something failed: a check, a cell of a study, a rank."),
    ("2", "A setting, an option, a file or the data cannot be used; one line says why."),
    ("75", "The training was stopped before it finished, and can be resumed."),
    ("130", "It was interrupted."),
)


def pages() -> dict[str, str]:
    """Manual pages of all commands in roff, by the names of their files."""
    return {
        f"{name.replace(' ', '-')}.1": _page(name, *parts)
        for name, parts in _commands(whole_parser(), "hybridnn", None)
    }


def _commands(command: Any, name: str, parent: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Every command with its full name and the parser's context."""
    context = typer.Context(command, info_name=name, parent=parent)
    yield context.command_path, (command, context)
    for child, below in getattr(command, "commands", {}).items():
        yield from _commands(below, child, context)


def _page(name: str, command: Any, context: Any) -> str:
    """A page in the macros of man(7)."""
    page = name.replace(" ", "-")
    summary, _, description = (command.help or "").strip().partition("\n\n")
    lines = [f'.TH {page.upper()} 1 "" "hybridnn {__version__}" "hybridnn"', ".SH NAME"]
    lines += [f"{_escape(page)} \\- {_escape(_flat(summary))}", ".SH SYNOPSIS"]
    lines += [f".B {_escape(name)}", _escape(command.get_usage(context).partition(name)[2].strip())]
    if description:
        lines += [".SH DESCRIPTION", *(f".PP\n{_escape(_flat(text))}" for text in description.split("\n\n"))]
    kinds: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            kinds[parameter.param_type_name].append((re.sub(r" <[^|]*>$", "", record[0]), record[1]))
    below = getattr(command, "commands", {})
    lines += _list("ARGUMENTS", kinds["argument"]) + _list("OPTIONS", kinds["option"])
    lines += _list("COMMANDS", [(child, other.get_short_help_str(1000)) for child, other in below.items()])
    lines += _list("EXIT STATUS", EXIT_STATUS)
    parents = [] if context.parent is None else [context.parent.command_path.replace(" ", "-")]
    if related := parents + [f"{page}-{child}" for child in below]:
        lines += [".SH SEE ALSO", ", ".join(f"\\fB{_escape(other)}\\fP(1)" for other in related)]
    return "\n".join(lines) + "\n"


def _list(title: str, rows: Sequence[tuple[str, str]]) -> list[str]:
    """A section of names with their texts."""
    lines = [f".SH {title}"] if rows else []
    for name, text in rows:
        lines += [".TP", f".B {_escape(name)}", _escape(_flat(text.replace("  [", " [")))]
    return lines


def _flat(text: str) -> str:
    return " ".join(text.split())


def _escape(text: str) -> str:
    """Text as roff prints it: hyphens that can be copied, and no line that looks like a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in ".'" else text


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in pages().items():
        (folder / file).write_text(text, encoding="utf-8")
    print(f"{len(pages())} pages in {folder}")
