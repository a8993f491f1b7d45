"""How the csv files of a folder are read: outcome, and kind of every column.

::

    python -m benchmarks.public_tables FOLDER                     # one line a file, and a summary
    python -m benchmarks.public_tables FOLDER --sample 100        # columns of a seeded sample

The packages statsmodels, vega_datasets, scikit-learn and pydataset hold 1,002 public tables of many origins. Every
column is examined as an input, without a target. A file is *decided* if it can be used with settings for text and
missing values alone, *read* if a person has to look at cells first, and else *refused*.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from pathlib import Path

from hybridnn.data.table_fitting import Problem, TableCheck, check_table
from hybridnn.errors import HybridnnError

OPEN = {"categories", "missing", "drop_columns"}


def check(path: Path) -> TableCheck | str:
    """The columns of a file, or the reason why it is refused."""
    try:
        return check_table(path)
    except HybridnnError as error:
        return str(error).replace(str(path), path.name)


def outcome(found: TableCheck | str) -> str:
    """``refused``, ``read`` or ``decided``."""
    if isinstance(found, str):
        return "refused"
    return "decided" if all(map(is_usual, found.problems)) else "read"


def is_usual(problem: Problem) -> bool:
    """Whether settings that a person has to decide in any table with text and gaps solve it."""
    return bool(problem.settings) and set(problem.settings) <= OPEN


def describe(path: Path, found: TableCheck | str) -> str:
    """A line about a file: the columns of each kind with an example of text, and what a person has to look at."""
    if isinstance(found, str):
        return f"refused: {found[:250]}"
    names: dict[str, list[str]] = {}
    for line in found.columns[:20]:
        example = "" if line.holds == "numbers" else f" ({line.values})"
        names.setdefault(line.holds, []).append(line.name + example)
    kinds = [f"{kind}: {', '.join(columns)}" for kind, columns in names.items()]
    problems = [f"{problem.text}; {problem.advice}" for problem in found.problems if not is_usual(problem)]
    return f"{outcome(found)}: {path.name}: {'; '.join([*kinds, *problems])[:400]}"


def main() -> None:
    """Check all files, or show a sample."""
    parser = argparse.ArgumentParser(description="How the csv files of a folder are read.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sample", type=int, default=0, help="files to show with their columns")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    paths = sorted(options.folder.rglob("*.csv"))
    if options.sample:
        for path in random.Random(options.seed).sample(paths, options.sample):
            print(describe(path, check(path)))
        return
    counts: Counter[str] = Counter()
    for path in paths:
        found = check(path)
        counts[outcome(found)] += 1
        if outcome(found) != "decided":
            print(describe(path, found))
    print(", ".join(f"{count} {name}" for name, count in counts.items()), f"of {len(paths)} files")


if __name__ == "__main__":
    main()
