"""Size of the library, and what one training step imports; exit code 1 if a figure is above its limit.

``python -m benchmarks.code_figures``
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

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


def figures() -> Iterator[tuple[str, int, int]]:
    """Name, figure and limit; a limit of 0 is none."""
    files, step, without = sources(LIBRARY), imported("with MPI"), imported("without MPI")
    core = sources(*(LIBRARY / name for name in CORE))
    tables = [*(LIBRARY / "data").glob("table_*.py"), LIBRARY / "data/user_file.py"]
    own = [name for name, entry in COMMANDS.items() if not entry.distribution]
    parsers: Any = whole_parser()
    commands = [leaf for name in own for leaf in leaves(parsers.commands[name])]
    options = [item for command in commands for item in command.params if item.param_type_name == "option"]
    pages = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    yield "files of hybridnn/", len(files), 205
    yield "lines of hybridnn/", lines_of(files), 44_700
    yield f"lines of {', '.join(CORE)}", lines_of(core), 12_600
    yield "lines for tables", lines_of(tables), 1_000
    yield "lines of hybridnn/doctor", lines_of(sources(LIBRARY / "doctor")), 900
    yield "files that a step imports", len(step), 55
    yield "lines that a step imports", lines_of(step), 9_800
    yield "files that a step imports without an MPI library", len(without), 0
    yield "files of cost models among them", sum("cost" in path.parts for path in {*step, *without}), 0
    yield "settings, [data.csv] as one", len({row.name for row in settings() if "data.csv." not in row.name}), 76
    yield "commands", len(commands), 30
    yield "options of commands", len(options), 170
    yield "lines of tests/", lines_of(sources(ROOT / "tests")), 43_500
    yield "lines of benchmarks/", lines_of(sources(ROOT / "benchmarks")), 3_600
    yield "words of docs/", len(pages.split()), 44_000


def main() -> None:
    """Print the figures with their limits."""
    above = 0
    for name, figure, limit in figures():
        above += (figure > limit) if limit else 0
        print(f"{figure:7,} {name}{f' (at most {limit:,})' if limit else ''}{' ABOVE' * (limit and figure > limit)}")
    sys.exit(1 if above else 0)


if __name__ == "__main__":
    main()
