"""Start of commands, over the start of PyTorch: ``python -m benchmarks.start [--rounds N]``.

Every command runs once in each round, one after the other, in an empty folder; a ratio is that of the medians of the
wall times. The table is Markdown.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.harness import in_turn

PEER = "import torch"
COMMANDS = {
    PEER: ["python", "-c", "import torch"],
    "hybridnn train --epochs 1": ["hybridnn", "train", "--epochs", "1"],
    "hybridnn train -n 4 --epochs 1": ["hybridnn", "train", "-n", "4", "--epochs", "1"],
    "from hybridnn import Trainer": ["python", "-c", "from hybridnn import Trainer"],
    "hybridnn --help": ["hybridnn", "--help"],
}
ASKED = dict(zip(COMMANDS, (1.0, 0.6, 1.5, 0.2, 0.2), strict=True))
"""Ratios that should not be exceeded."""


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="Start of commands, over the start of PyTorch.")
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    programs = Path(sys.executable).parent
    with TemporaryDirectory() as folder:
        runs = {
            name: partial(subprocess.run, [programs / program, *rest], cwd=folder, check=True, capture_output=True)
            for name, (program, *rest) in COMMANDS.items()
        }
        seconds = in_turn(runs, rounds)
    print("| command | seconds | ratio | at most |\n|---|---:|---:|---:|")
    for name, taken in seconds.items():
        ratio = median(taken) / median(seconds[PEER])
        print(f"| `{name}` | {median(taken):.2f} | {ratio:.2f} | {ASKED[name]} |")


if __name__ == "__main__":
    main()
