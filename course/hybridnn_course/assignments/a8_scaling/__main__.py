"""Simulate the study in this folder, or print what the data in it show.

``python -m hybridnn_course.assignments.a8_scaling simulate`` writes ``results.csv`` and ``machine.toml``;
``python -m hybridnn_course.assignments.a8_scaling table`` prints speed-ups and efficiencies with their intervals.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hybridnn.cost.machine_file import write_machine
from hybridnn.errors import HybridnnError
from hybridnn.study.report_files import write_csv
from hybridnn.utils.files import read_text, write_atomically
from hybridnn_course.assignments.a8_scaling.machines import machine_of, simulated_rows
from hybridnn_course.assignments.a8_scaling.submitted import QUANTITIES, RESULTS, STUDY, Submitted
from hybridnn_course.execution import StudentError
from hybridnn_course.work_folder import WorkFolder

MACHINE = "machine.toml"
USAGE = "usage: python -m hybridnn_course.assignments.a8_scaling (simulate | table)"


def simulate(work: WorkFolder) -> None:
    """Write the machine of the variant, and the times of the study's cells on it."""
    files = Submitted({STUDY: read_text(work.folder / STUDY, 1 << 20)}, work.variant)
    name = work.variant["machine"]
    rows = simulated_rows(files.cells, name, work.manifest.student)
    write_atomically(work.folder / RESULTS, write_csv(rows))
    if not (work.folder / MACHINE).exists():
        write_machine(machine_of(name), work.folder / MACHINE)
    print(f"{len(rows)} cells on the machine {name}: {RESULTS}; {MACHINE} describes it")


def table(work: WorkFolder) -> None:
    """Print the quantities of every point."""
    files = Submitted({RESULTS: read_text(work.folder / RESULTS, 1 << 20)}, work.variant)
    for point in sorted(files.points, key=lambda point: point.ranks):
        base = files.base_of(point)
        print(", ".join(f"{label} {text}" for label, text in point.values.items()))
        for quantity in QUANTITIES:
            if base is None and not quantity.startswith("seconds"):
                continue
            if point.ranks > 1 or quantity.startswith("seconds"):
                print(f"    {quantity:18} {files.measured(quantity, point, base).format('.5g')}")


def main(arguments: list[str]) -> int:
    """Run the command; its exit code."""
    if arguments not in (["simulate"], ["table"]):
        print(USAGE, file=sys.stderr)
        return 2
    try:
        work = WorkFolder.open(Path())
        (simulate if arguments == ["simulate"] else table)(work)
    except StudentError as error:
        print(f"Error: {error.failure.text}", file=sys.stderr)
        return 2
    except HybridnnError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
