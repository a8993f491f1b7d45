"""Size of the library, and what one training step imports: ``python -m benchmarks.code_figures``."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

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


def lines_of(paths: Iterable[Path]) -> int:
    """Number of lines of files."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def imported(how: str) -> list[Path]:
    """Files of the library that one process imports for a step."""
    program = [sys.executable, "-c", STEP, how]
    return [Path(line) for line in subprocess.check_output(program, text=True, cwd=ROOT).split("\n") if line]


def docs() -> list[Path]:
    """Pages of the documentation, without those of the distributions beside the library."""
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def words_of(paths: Iterable[Path]) -> int:
    """Number of words of pages."""
    return sum(len(re.findall(r"\S+", path.read_text(encoding="utf-8"))) for path in paths)


def main() -> None:
    """Print the figures, one in a line."""
    sources, tests = list(LIBRARY.rglob("*.py")), list((ROOT / "tests").rglob("*.py"))
    core = [path for name in CORE for path in (LIBRARY / name).rglob("*.py")]
    step, without = imported("with MPI"), imported("without MPI")
    written, generated = words_of(docs()), words_of((ROOT / "docs/reference").glob("*.md"))
    rows: list[tuple[str, list[Path]]] = [
        ("hybridnn/", sources),
        (", ".join(CORE), core),
        ("imported by a step", step),
        ("imported by a step without an MPI library", without),
        ("tests/", tests),
    ]
    for what, paths in rows:
        print(f"{what}: {len(paths)} files, {lines_of(paths):,} lines")
    cost = sorted({str(path.relative_to(LIBRARY)) for path in {*step, *without} if "cost" in path.parts})
    print(f"cost models among them: {', '.join(cost) or 'none'}")
    print(f"words of README and docs: {written - generated:,}, and {generated:,} of the generated reference")


if __name__ == "__main__":
    main()
