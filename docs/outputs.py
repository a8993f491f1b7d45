"""Run the commands and programs in README.md, pages of docs/, course/ and papers/, and notebooks; write their output.

    python docs/outputs.py [PAGE …]            update the outputs in these pages, or in all pages
    python docs/outputs.py --check [PAGE …]    compare the outputs: exit code 1 if one differs

A page has these fenced blocks, which run one after another in one new folder:

*file*
    Below a line with only the name of the file, in backquotes, and a colon. All files are written first.
*session*
    Begins with ``$ command``. Lines up to the next command are its output, where ``…`` replaces omitted lines.
*commands*
    Of the language ``bash``: commands without output, run by one shell up to the first that fails.
*program*
    Of the language ``python``, without a name.

Blocks of other languages (``toml``, ``text``, …) are not run. Every command has to succeed. HTML comments above a block
set options:

``<!-- before: COMMAND -->``
    Run this first, without output.
``<!-- fails -->``
    The last command has to fail.
``<!-- varies -->``
    The lines depend on the machine: update them, but do not compare them.
``<!-- numbers vary -->``
    The numbers depend on the machine, such as times and early stops: compare only the shape of the lines. In other
    blocks whole numbers, and numbers with units, have to be equal, and others, such as losses, within a tolerance.
``<!-- not in tests: REASON -->``
    Run by an update, not by a check.
``<!-- slurm -->``
    Needs a Slurm (``tests/slurm/slurm.sh start``): skipped unless ``--slurm`` is given, which runs only these.
``<!-- by hand: REASON -->``
    Not run.

A notebook is executed from its first cell to its last. Cells are compared unless they have the tag ``varies``. Widgets
are not stored, because they need a running kernel.
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
from math import isclose
from pathlib import Path

from hybridnn.comm.mpi import mpirun_settings

__all__ = [
    "NOTEBOOKS",
    "PAGES",
    "Block",
    "Command",
    "PageError",
    "blocks",
    "differing_cells",
    "fill_in",
    "run_notebook",
    "run_page",
    "shape",
]

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    *(ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))),
    *(ROOT / "course" / "README.md", *sorted((ROOT / "course" / "docs").rglob("*.md"))),
    *(ROOT / "papers" / "README.md", *sorted((ROOT / "papers" / "docs").rglob("*.md"))),
)
NOTEBOOKS = tuple(sorted((ROOT / "docs").rglob("*.ipynb")))

GAP = "…"
BLOCK = re.compile(
    r"(?P<notes>(?:^<!--(?:(?!-->).)*-->\n)*)(?:^`(?P<name>[\w.-]+)`:\n)?^```(?P<language>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
RUN_AS = {"bash": "commands", "python": "program"}
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?:-\d+)*\s?(?:%|(?:ns|us|µs|ms|min|s|B|kB|MB|GB)\b)?")
KERNEL = re.compile(r"(?:/[\w.+-]+)*/ipykernel_\d+/")
"""Folder of the files of cells, which contains the process id of the kernel."""
PACKAGE_LINE = re.compile(r'at hybridnn/[\w/]+\.py:\d+ in [^<"\\]+')
WIDGET = "application/vnd.jupyter.widget-view+json"
"""Type of the outputs that refer to a widget of the kernel."""
NOTED = {"record_timing": False, "coalesce_streams": True}
"""Options of the client that make a notebook independent of the timing of its cells."""

TOLERANCE = {"rel_tol": 0.05, "abs_tol": 0.02}
"""Of the figures of a training, whose rounding depends on the machine."""

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
class Block:
    """A fenced block of a page.

    Attributes
    ----------
    kind : str
        ``"file"``, ``"session"``, ``"commands"``, ``"program"``, or ``"text"``, which is not run.
    name : str
        The name of a file, otherwise empty.
    start, end : int
        Position of its body in the text of the page.
    notes : tuple of str
        The comments above it.
    """

    kind: str
    name: str
    language: str
    body: str
    start: int
    end: int
    notes: tuple[str, ...]

    def texts(self, option: str) -> tuple[str, ...]:
        """What follows an option in the comments, as the reason of ``by hand``."""
        return tuple(note.partition(":")[2].strip() for note in self.notes if note.partition(":")[0] == option)

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands of a session, or the lines of a block of commands."""
        if self.kind == "session":
            return tuple(_commands(self.body))
        return (Command(self.body, ()),) if self.kind == "commands" else ()


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for found in BLOCK.finditer(page):
        kind = RUN_AS.get(found["language"], "text")
        if found["name"]:
            kind = "file"
        elif found["body"].startswith("$ "):
            kind = "session"
        notes = tuple(re.findall(r"<!-- ?(.*?) ?-->", found["notes"], re.DOTALL))
        yield Block(kind, found["name"] or "", found["language"], found["body"], *found.span("body"), notes)


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


def differing_numbers(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Pairs of numbers that differ in lines of the same shape: with a point and without a unit, by `TOLERANCE`."""
    lines = zip(shown, printed, strict=True)
    pairs = [pair for both in lines for pair in zip(*map(NUMBER.findall, both), strict=True)]
    return [
        f"{one.strip()} in the page, {other.strip()} printed"
        for one, other in pairs
        if one != other and not _are_close(one, other)
    ]


def _are_close(one: str, other: str) -> bool:
    try:
        return "." in one and isclose(float(one.replace(",", "")), float(other.replace(",", "")), **TOLERANCE)
    except ValueError:  # they have a unit
        return False


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

    def run(self, command: str, *, fails: bool = False) -> list[str]:
        """The output of a command, of both streams.

        Parameters
        ----------
        fails : bool
            The command has to end with an exit code other than 0.

        Raises
        ------
        PageError
            If it exceeds the time limit, or ends with an unexpected exit code.
        """
        process = subprocess.Popen(
            ["bash", "-ec", command],
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
        lines = [line.rstrip() for line in printed.decode(errors="replace").splitlines()]
        if (process.returncode != 0) != fails:
            raise PageError("\n".join([f"exit code {process.returncode}", *lines]))
        return lines


def run_page(
    page: str,
    *,
    check: bool,
    slurm: bool = False,
    environment: Mapping[str, str] = os.environ,
    limit: float = 1200.0,
) -> str:
    """Run the blocks of a page.

    Parameters
    ----------
    page : str
        Text of the page.
    check : bool
        Skip the blocks that are not for tests, and do not compare those that vary.
    slurm : bool
        Run only the blocks that need a Slurm.
    limit : float
        Seconds for one command.

    Returns
    -------
    str
        The text with updated outputs.

    Raises
    ------
    PageError
        If an output differs, or a command ends with an unexpected exit code.
    """
    written, at = [], 0
    # Batch jobs that a page has submitted may write into the folder while it is removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for block in blocks(page):
            if block.kind == "file":
                (Path(folder) / block.name).write_text(block.body, encoding="utf-8")
        shell = _Shell(Path(folder), environment, limit)
        for block in blocks(page):
            if block.kind in ("file", "text") or block.texts("by hand") or ("slurm" in block.notes) != slurm:
                continue
            if check and block.texts("not in tests"):
                continue
            for command in block.texts("before"):
                shell.run(command)
            if block.kind == "program":
                (Path(folder) / "program.py").write_text(block.body, encoding="utf-8")
                shell.run("python program.py")
                continue
            printed = _run_commands(block, shell, check)
            if block.kind == "session":
                written += [page[at : block.start], "\n".join(printed), "\n"]
                at = block.end
    return "".join([*written, page[at:]])


def _run_commands(block: Block, shell: _Shell, check: bool) -> list[str]:
    """The lines of a session with its outputs."""
    body = []
    for number, command in enumerate(block.commands, 1):
        fails = "fails" in block.notes and number == len(block.commands)
        body.append(f"$ {command.text}")
        try:
            printed = shell.run(command.text, fails=fails)
            if check and "varies" in block.notes:
                continue
            exact = block.kind == "session" and (check or GAP in command.output)
            body += fill_in(command.output, printed) if exact else printed
            if check and exact and "numbers vary" not in block.notes:
                differing = differing_numbers(command.output, body[len(body) - len(command.output) :])
                if differing:
                    raise PageError("\n".join(differing))
        except PageError as error:
            raise PageError(f"$ {command.text}\n{error}") from error
    return body


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
        The text with its outputs, without widgets, independent of the kernel.

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
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
    return KERNEL.sub("", nbformat.writes(notebook)) + "\n"


def differing_cells(text: str, executed: str) -> list[str]:
    """Ids of the cells of a notebook whose outputs differ, except those with the tag ``varies``.

    Lines and functions of the package are not compared, because every change of a file moves them.
    """
    cells = [json.loads(PACKAGE_LINE.sub("", notebook))["cells"] for notebook in (text, executed)]
    pairs = zip(*cells, strict=True)
    return [cell["id"] for cell, new in pairs if cell != new and "varies" not in cell["metadata"].get("tags", ())]


def main() -> int:
    """Update or check pages; return the exit code."""
    parser = argparse.ArgumentParser(description="run the commands in the pages")
    parser.add_argument("pages", nargs="*", type=Path, default=(*PAGES, *NOTEBOOKS))
    parser.add_argument("--check", action="store_true", help="compare the outputs without writing")
    parser.add_argument("--slurm", action="store_true", help="run only the blocks that need a Slurm")
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
