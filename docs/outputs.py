"""Run the commands that README.md, the pages and the notebooks of docs/ show, and put what they print below them.

    python docs/outputs.py [PAGE …]            print anew what the commands of these pages, or of all, print
    python docs/outputs.py --check [PAGE …]    compare the shape of it with the pages: exit code 1 where it differs

A session is a fenced block that begins with ``$ command``. Lines up to the next command are its output, where ``…``
stands for lines that are left out. The sessions of a page run one after another in one new folder, which has the files
that the page shows: fenced blocks below a line with nothing but the name of the file, in backquotes, and a colon. An
HTML comment above a session says more:

``<!-- before: COMMAND -->``
    Run this first, and show nothing of it.
``<!-- varies -->``
    The lines depend on the machine: print them anew, do not compare them.
``<!-- slurm -->``
    Needs a Slurm (``tests/slurm/slurm.sh start``): left alone unless ``--slurm`` is given, which runs these alone.
``<!-- by hand: REASON -->``
    Not run.

A notebook is executed from its first cell to its last, and compared whole, but for cells with the tag ``varies``.
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
"""Folder of the files that a kernel says its cells are in; it has the number of the process."""
NOTED = {"record_timing": False, "coalesce_streams": True}
"""So that a notebook depends neither on when its cells ran nor on when they were heard of."""

DRAWN = re.compile(r"[─━═\s]+")


class PageError(Exception):
    """What a command prints does not fit the page."""


@dataclass(frozen=True)
class Command:
    """A command of a session, and what the page shows of its output.

    Attributes
    ----------
    text : str
        As typed, continued lines included.
    output : tuple of str
    """

    text: str
    output: tuple[str, ...]


@dataclass(frozen=True)
class Session:
    """A fenced block of commands and outputs.

    Attributes
    ----------
    start, end : int
        Of its body in the text of the page.
    before : tuple of str
        Commands to run first.
    varies, slurm, by_hand : bool
        What the comments above it say.
    commands : tuple of Command
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
    """A line without what differs between two runs: numbers with their units, the length of rules and spaces."""
    return DRAWN.sub(" ", NUMBER.sub("0", line)).strip()


def fill_in(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """The lines of `printed` that stand where the page shows `shown`; gaps stay.

    Parameters
    ----------
    shown : sequence of str
        Lines of the page. Lines between two gaps must follow one another in `printed`, in the same shape.
    printed : sequence of str

    Raises
    ------
    PageError
        If a part of `shown` is not in `printed`, or without a gap `printed` has more.
    """
    parts = _parts(shown)
    filled: list[str] = []
    at = 0
    for number, part in enumerate(parts):
        wanted = [shape(line) for line in part]
        last = len(printed) - len(part)
        first = 0 if not number else last if number == len(parts) - 1 and part else at
        places = [first] if not number or first == last else range(at, last + 1)
        found = next((place for place in places if _shapes(printed, place, len(part)) == wanted), None)
        if found is None:
            raise PageError("\n".join(unified_diff(part, printed[at:], "the page", "printed", lineterm="")))
        filled += ([GAP] if number else []) + list(printed[found : found + len(part)])
        at = found + len(part)
    if at < len(printed) and (len(parts) == 1 or parts[-1]):
        raise PageError("printed too:\n" + "\n".join(printed[at:]))
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
    """Runs commands in one folder, with this Python's programs first."""

    def __init__(self, folder: Path, environment: Mapping[str, str], limit: float) -> None:
        self._folder, self._limit = folder, limit
        path = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
        self._environment = {**environment, "PATH": path, "COLUMNS": "100"}

    def run(self, command: str) -> list[str]:
        """What a command prints, on both streams.

        Raises
        ------
        PageError
            If it does not end in time.
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
            raise PageError(f"no end within {self._limit:g} s") from error
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
        Its text.
    check : bool
        Leave out the sessions that vary.
    slurm : bool
        Run the sessions that need a Slurm, and no others.
    environment : mapping
        Of the commands.
    limit : float
        Seconds for one command.

    Returns
    -------
    str
        The text with what was printed.

    Raises
    ------
    PageError
        Where the page shows something else.
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
        Its text.
    limit : float
        Seconds for one cell.

    Returns
    -------
    str
        The text with its outputs, without what differs between two kernels.

    Raises
    ------
    PageError
        If a cell raises, or does not end in time.
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
    """The names of the cells of a notebook whose outputs differ, but for those with the tag ``varies``."""
    pairs = zip(json.loads(text)["cells"], json.loads(executed)["cells"], strict=True)
    return [one["id"] for one, other in pairs if one != other and "varies" not in one["metadata"].get("tags", ())]


def main() -> int:
    """Print pages anew or check them; the exit code."""
    parser = argparse.ArgumentParser(description="run the commands that the pages show")
    parser.add_argument("pages", nargs="*", type=Path, default=(*PAGES, *NOTEBOOKS))
    parser.add_argument("--check", action="store_true", help="compare shapes, write nothing")
    parser.add_argument("--slurm", action="store_true", help="run the sessions that need a Slurm, and no others")
    given = parser.parse_args()
    failed = 0
    # Pages show `mpirun` too, and a job of Slurm has several nodes.
    environment = mpirun_settings(oversubscribed=not given.slurm) | os.environ
    for path in given.pages:
        try:
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".ipynb":
                written = text if given.slurm else run_notebook(text)
                if given.check and (differing := differing_cells(text, written)):
                    raise PageError(f"cells print something else: {', '.join(differing)}")
            else:
                written = run_page(text, check=given.check, slurm=given.slurm, environment=environment)
            if not given.check:
                path.write_text(written, encoding="utf-8")
        except PageError as error:
            failed = 1
            print(f"{path.name}: {error}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
