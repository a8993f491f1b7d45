"""Run the commands in README.md and in the pages and notebooks of docs/, and write their output below them.

    python docs/outputs.py [PAGE …]            update the outputs in these pages, or in all pages
    python docs/outputs.py --check [PAGE …]    compare the shape of the outputs: exit code 1 if one differs

A session is a fenced block that begins with ``$ command``. Lines up to the next command are its output, where ``…``
replaces omitted lines. The sessions of a page run one after another in one new folder, which contains the files of the
page: fenced blocks below a line with only the name of the file, in backquotes, and a colon. HTML comments above a
session set options:

``<!-- before: COMMAND -->``
    Run this first, without output.
``<!-- varies -->``
    The lines depend on the machine: update them, but do not compare them.
``<!-- slurm -->``
    Needs a Slurm (``tests/slurm/slurm.sh start``): skipped unless ``--slurm`` is given, which runs only these.
``<!-- by hand: REASON -->``
    Not run.

A notebook is executed from its first cell to its last. Cells are compared unless they have the tag ``varies``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from itertools import pairwise
from pathlib import Path

from hybridnn.comm.open_mpi import mpirun_settings

__all__ = [
    "NOTEBOOKS",
    "PAGES",
    "Command",
    "PageError",
    "Session",
    "differing_cells",
    "fill_in",
    "run_notebook",
    "run_page",
    "sessions",
    "shape",
]

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
NOTEBOOKS = tuple(sorted((ROOT / "docs").glob("*.ipynb")))

GAP = "…"
BLOCK = re.compile(r"(?P<notes>(?:<!--(?:(?!-->).)*-->\n)*)```\n(?P<body>\$ .*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^`(?P<name>[\w.-]+)`:\n```\w*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?:-\d+)*\s?(?:%|(?:ns|us|µs|ms|min|s|B|kB|MB|GB)\b)?")
KERNEL = re.compile(r"(?:/[\w.+-]+)*/ipykernel_\d+/")
"""Folder of the files of cells, which contains the process id of the kernel."""
NOTED = {"record_timing": False, "coalesce_streams": True}
"""Options of the client that make a notebook independent of the timing of its cells."""

DRAWN = re.compile(r"[─━═\s]+")


class PageError(Exception):
    """The output of a command does not match the page."""


@dataclass(frozen=True)
class Command:
    """A command of a session, and its output in the page.

    Attributes
    ----------
    text : str
        The command, including continued lines.
    """

    text: str
    output: tuple[str, ...]


@dataclass(frozen=True)
class Session:
    """A fenced block of commands and outputs.

    Attributes
    ----------
    start, end : int
        Position of its body in the text of the page.
    before : tuple of str
        Commands to run first.
    varies, slurm, by_hand : bool
        Options in the comments above it.
    """

    start: int
    end: int
    before: tuple[str, ...]
    varies: bool
    slurm: bool
    by_hand: bool
    commands: tuple[Command, ...]


def sessions(page: str) -> Iterator[Session]:
    """The sessions of a page, in order."""
    for block in BLOCK.finditer(page):
        notes = re.findall(r"<!-- ?(.*?) ?-->", block["notes"], re.DOTALL)
        before = tuple(note.removeprefix("before:").strip() for note in notes if note.startswith("before:"))
        by_hand = any(note.startswith("by hand:") for note in notes)
        commands = tuple(_commands(block["body"]))
        yield Session(*block.span("body"), before, "varies" in notes, "slurm" in notes, by_hand, commands)


def _commands(body: str) -> Iterator[Command]:
    lines = body.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")] + [len(lines)]
    for start, end in pairwise(starts):
        last = start
        while lines[last].endswith("\\"):
            last += 1
        typed = "\n".join([lines[start][2:], *lines[start + 1 : last + 1]])
        yield Command(typed, tuple(lines[last + 1 : end]))


def shape(line: str) -> str:
    """A line without the parts that differ between runs: numbers with units, and the length of rules and spaces."""
    return DRAWN.sub(" ", NUMBER.sub("0", line)).strip()


def fill_in(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """The lines of `printed` that correspond to `shown`, with its gaps.

    Parameters
    ----------
    shown : sequence of str
        Lines of the page. The lines between two gaps must occur in `printed`, consecutively and in the same shape.

    Raises
    ------
    PageError
        If lines of `shown` are missing in `printed`, or `printed` has additional lines without a gap.
    """
    parts = _parts(shown)
    filled: list[str] = []
    at = 0
    for number, part in enumerate(parts):
        expected = [shape(line) for line in part]
        last = len(printed) - len(part)
        first = 0 if not number else last if number == len(parts) - 1 and part else at
        places = [first] if not number or first == last else range(at, last + 1)
        found = next((place for place in places if _shapes(printed, place, len(part)) == expected), None)
        if found is None:
            raise PageError("\n".join(unified_diff(part, printed[at:], "the page", "printed", lineterm="")))
        filled += ([GAP] if number else []) + list(printed[found : found + len(part)])
        at = found + len(part)
    if at < len(printed) and (len(parts) == 1 or parts[-1]):
        raise PageError("additional output:\n" + "\n".join(printed[at:]))
    return filled


def _shapes(lines: Sequence[str], start: int, count: int) -> list[str]:
    return [shape(line) for line in lines[start:][:count]]


def _parts(shown: Sequence[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for line in shown:
        if line == GAP:
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


class _Shell:
    """Runs commands in one folder, with the programs of this Python first in the path."""

    def __init__(self, folder: Path, environment: Mapping[str, str], limit: float) -> None:
        self._folder, self._limit = folder, limit
        path = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
        self._environment = {**environment, "PATH": path, "COLUMNS": "100"}

    def run(self, command: str) -> list[str]:
        """The output of a command, of both streams.

        Raises
        ------
        PageError
            If it exceeds the time limit.
        """
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=self._limit)
        except subprocess.TimeoutExpired as error:
            raise PageError(f"not ended within {self._limit:g} s") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return [line.rstrip() for line in printed.decode(errors="replace").splitlines()]


def run_page(
    page: str,
    *,
    check: bool,
    slurm: bool = False,
    environment: Mapping[str, str] = os.environ,
    limit: float = 1200.0,
) -> str:
    """Run the sessions of a page.

    Parameters
    ----------
    page : str
        Text of the page.
    check : bool
        Skip the sessions that vary.
    slurm : bool
        Run only the sessions that need a Slurm.
    limit : float
        Seconds for one command.

    Returns
    -------
    str
        The text with updated outputs.

    Raises
    ------
    PageError
        If an output differs.
    """
    written, at = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for file in FILE.finditer(page):
            (Path(folder) / file["name"]).write_text(file["text"], encoding="utf-8")
        shell = _Shell(Path(folder), environment, limit)
        for session in sessions(page):
            if session.by_hand or session.slurm != slurm or (check and session.varies):
                continue
            for command in session.before:
                shell.run(command)
            body = []
            for command in session.commands:
                body.append(f"$ {command.text}")
                printed = shell.run(command.text)
                try:
                    body += fill_in(command.output, printed) if check or GAP in command.output else printed
                except PageError as error:
                    raise PageError(f"$ {command.text}\n{error}") from error
            written += [page[at : session.start], "\n".join(body), "\n"]
            at = session.end
    return "".join([*written, page[at:]])


def run_notebook(text: str, *, limit: float = 1200.0) -> str:
    """Execute a notebook in a new kernel of this Python.

    Parameters
    ----------
    text : str
        Text of the notebook.
    limit : float
        Seconds for one cell.

    Returns
    -------
    str
        The text with its outputs, independent of the kernel.

    Raises
    ------
    PageError
        If a cell raises an exception or exceeds the time limit.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError

    notebook = nbformat.reads(text, as_version=4)
    metadata = dict(notebook.metadata)
    client = NotebookClient(
        notebook, timeout=round(limit), startup_timeout=round(limit), kernel_name="python3", **NOTED
    )
    try:
        client.execute(cwd=str(ROOT / "docs"))
    except (CellExecutionError, CellTimeoutError) as error:
        raise PageError(str(error)) from error
    notebook.metadata = metadata
    return KERNEL.sub("", nbformat.writes(notebook)) + "\n"


def differing_cells(text: str, executed: str) -> list[str]:
    """Ids of the cells of a notebook whose outputs differ, except those with the tag ``varies``."""
    pairs = zip(json.loads(text)["cells"], json.loads(executed)["cells"], strict=True)
    return [cell["id"] for cell, new in pairs if cell != new and "varies" not in cell["metadata"].get("tags", ())]


def main() -> int:
    """Update or check pages; return the exit code."""
    parser = argparse.ArgumentParser(description="run the commands in the pages")
    parser.add_argument("pages", nargs="*", type=Path, default=(*PAGES, *NOTEBOOKS))
    parser.add_argument("--check", action="store_true", help="compare shapes without writing")
    parser.add_argument("--slurm", action="store_true", help="run only the sessions that need a Slurm")
    options = parser.parse_args()
    failed = 0
    # Pages contain `mpirun` commands; a Slurm job has several nodes.
    environment = mpirun_settings(oversubscribed=not options.slurm) | os.environ
    for path in options.pages:
        try:
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".ipynb":
                written = text if options.slurm else run_notebook(text)
                if options.check and (differing := differing_cells(text, written)):
                    raise PageError(f"cells with other outputs: {', '.join(differing)}")
            else:
                written = run_page(text, check=options.check, slurm=options.slurm, environment=environment)
            if not options.check:
                path.write_text(written, encoding="utf-8")
        except PageError as error:
            failed = 1
            print(f"{path.name}: {error}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
