"""Size of the library, and what one training step imports; exit code 1 if a figure is above its limit.

``python -m benchmarks.code_figures``. Where a figure is still above its aim, the limit is what was reached: it may only
become smaller. `docs/design.md` says what is missing to the aims.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hybridnn.cli.main import COMMANDS, whole_parser
from hybridnn.config.reference import settings

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "hybridnn"
CORE = ("nn", "comm", "parallel", "pipeline", "training")
STEP = """
import sys
import numpy as np
import hybridnn
if sys.argv[1] == "without MPI":
    sys.modules["mpi4py"] = None
hybridnn.Trainer(hybridnn.MLP([4, 8, 1])).fit(np.eye(8, 4), np.eye(8, 1), epochs=1)
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] == "hybridnn" and getattr(module, "__file__", None):
        print(module.__file__)
"""


def sources(*folders: Path) -> list[Path]:
    """Python files of folders."""
    return [path for folder in folders for path in folder.rglob("*.py")]


def lines_of(paths: Iterable[Path]) -> int:
    """Number of lines of files."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def imported(how: str) -> list[Path]:
    """Files of the library that one process imports for a step."""
    program = [sys.executable, "-c", STEP, how]
    return [Path(line) for line in subprocess.check_output(program, text=True, cwd=ROOT).split("\n") if line]


def leaves(command: Any) -> Iterator[Any]:
    """The commands below a command, without its groups."""
    children = getattr(command, "commands", {}).values()
    for child in children:
        yield from leaves(child)
    if not children:
        yield command


class Figure(NamedTuple):
    """A size; a limit of 0 is none."""

    name: str
    value: int
    limit: int = 0
    aim: int = 0  # where the limit is above it


def figures() -> Iterator[Figure]:
    """The sizes that `docs/design.md` limits."""
    files, step, without = sources(LIBRARY), imported("with MPI"), imported("without MPI")
    core = sources(*(LIBRARY / name for name in CORE))
    tables = (LIBRARY / "data").glob("table_*.py")
    own = [name for name, entry in COMMANDS.items() if not entry.distribution]
    parsers: Any = whole_parser()
    commands = [leaf for name in own for leaf in leaves(parsers.commands[name])]
    options = [item for command in commands for item in command.params if item.param_type_name == "option"]
    pages = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    names = {row.name for row in settings() if "data.csv." not in row.name}
    yield Figure("files of hybridnn/", len(files), 205)
    yield Figure("lines of hybridnn/", lines_of(files), 45_950)
    yield Figure(f"lines of {', '.join(CORE)}", lines_of(core), 12_850)
    yield Figure("lines for tables", lines_of(tables), 1_135, 1_000)
    yield Figure("lines of hybridnn/doctor", lines_of(sources(LIBRARY / "doctor")), 900)
    yield Figure("files that a step imports", len(step), 55)
    yield Figure("lines that a step imports", lines_of(step), 9_900)
    yield Figure("files that a step imports without an MPI library", len(without))
    yield Figure("files of cost models among them", sum("cost" in path.parts for path in {*step, *without}))
    yield Figure("settings, [data.csv] as one", len(names), 76)
    yield Figure("commands", len(commands), 30)
    yield Figure("options of commands", len(options), 170)
    yield Figure("lines of tests/", lines_of(sources(ROOT / "tests")), 43_500, 43_500)
    yield Figure("lines of benchmarks/", lines_of(sources(ROOT / "benchmarks")), 3_600)
    yield Figure("words of docs/", len(pages.split()), 48_350)


def main() -> None:
    """Print the figures with their limits."""
    found = list(figures())
    for figure in found:
        aim = f"; aim {figure.aim:,}" if figure.aim else ""
        limit = f" (at most {figure.limit:,}{aim})" if figure.limit else ""
        print(f"{figure.value:7,} {figure.name}{limit}{' ABOVE' * (0 < figure.limit < figure.value)}")
    sys.exit(any(0 < figure.limit < figure.value for figure in found))


if __name__ == "__main__":
    main()
