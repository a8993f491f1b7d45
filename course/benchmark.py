"""The class kit: what students and lecturers wait for.

``python -m course.benchmark [--pairs N] [WORD ...]`` prints a JSON object for each row whose quantity contains one of
the words. Every check runs N times as a command, including the start of Python, in a folder with the reference
solution, for which all checks run; a row has the median. Proofs and notebooks run once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import read_choice, seconds_of
from hybridnn_course.work_folder import Manifest, write_files
from hybridnn_course_staff.assignment import Assignment, assignment_packages, load_assignment
from hybridnn_course_staff.handing_out import start_files

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "learn" / "notebooks"
ROUNDS = 3
LIMIT = 1800  # seconds of a command

ASKED_TASK, ASKED_ASSIGNMENT, ASKED_NOTEBOOK = 3.0, 20.0, 60.0
ASKED_PROOF = 60.0  # of all assignments in one variant
"""Targets in seconds."""

KIT = "hybridnn_course_staff.assignment"
SOLVED = f"""\
from {KIT} import load_assignment

{{name}} = load_assignment({{id!r}}).task({{task!r}}).solution({{variant!r}})
"""

Row = dict[str, Any]
Quantity = tuple[str, float, Callable[[], float]]
"""What is measured, its target, and the measurement, in seconds."""


def write_solved(assignment: Assignment, folder: Path) -> None:
    """Write the files of a student who has the reference solution of every task."""
    variant = assignment.standard
    files = start_files(assignment, Manifest(assignment=assignment.id, variant=variant, modules=(KIT,)))
    for task in assignment.tasks:
        about = {"id": assignment.id, "task": task.name, "variant": variant}
        files[task.file] += SOLVED.format(name=task.function, **about).encode()
    write_files(folder, files)


def run_kit(*arguments: str) -> None:
    """Run a command of the kit, which has to succeed."""
    command = [sys.executable, "-m", "hybridnn", "course", *arguments]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=LIMIT)


def seconds_of_check(folder: Path, rounds: int, *task: str) -> float:
    """Median time of ``course check``."""
    return median(seconds_of(partial(run_kit, "check", *task, "-q", "--folder", str(folder))) for _ in range(rounds))


def run_notebook(path: Path) -> None:
    """Execute a notebook, in a kernel of its own."""
    import nbformat
    from nbclient import NotebookClient

    NotebookClient(nbformat.read(path, as_version=4), timeout=LIMIT, kernel_name="python3").execute()


def quantities(folder: Path, rounds: int, names: Sequence[str]) -> Iterator[Quantity]:
    """All that is measured, with the work folders of some assignments."""
    for assignment in filter(lambda one: one.tasks, map(load_assignment, names)):
        name, work = assignment.id, folder / assignment.id
        write_solved(assignment, work)
        for task in assignment.tasks:
            yield f"check {task.name} of {name}", ASKED_TASK, partial(seconds_of_check, work, rounds, task.name)
        yield f"check all of {name}", ASKED_ASSIGNMENT, partial(seconds_of_check, work, rounds)
    for variants in (1, 3):
        proof = partial(run_kit, "verify", "--variants", str(variants))
        yield f"verify all, variants: {variants}", variants * ASKED_PROOF, partial(seconds_of, proof)
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        yield f"notebook {path.stem}", ASKED_NOTEBOOK, partial(seconds_of, partial(run_notebook, path))


def measured_rows(words: Sequence[str], rounds: int, names: Sequence[str]) -> Iterator[Row]:
    """Rows of the chosen quantities."""
    with TemporaryDirectory() as folder:
        os.environ["IPYTHONDIR"] = folder
        for quantity, asked, measure in quantities(Path(folder), rounds, names):
            if not words or any(word in quantity for word in words):
                yield {"quantity": quantity, "unit": "s", "measured": measure(), "asked": asked}


def main() -> None:
    """Print the rows."""
    choice = read_choice(ROUNDS)
    for row in measured_rows(choice.words, choice.pairs, list(assignment_packages())):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
