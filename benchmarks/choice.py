"""Which networks a benchmark measures, and how often: ``python -m benchmarks.NAME [--pairs N] [WORD ...]``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.cases import Case

__all__ = ["Choice", "read_choice"]


@dataclass(frozen=True)
class Choice:
    """What a command asks for.

    Attributes
    ----------
    words : tuple of str
        Only networks with one of them in ``name@batch`` are measured; all networks where there is none.
    pairs : int
        Runs of each program that are counted.
    """

    words: tuple[str, ...]
    pairs: int

    def among(self, cases: Iterable[Case]) -> list[Case]:
        """Those that are to be measured, in their order."""
        return [
            case
            for case in cases
            if not self.words or any(word in f"{case.name}@{case.batch_size}" for word in self.words)
        ]


def read_choice(pairs: int = 9) -> Choice:
    """Read the command line; `pairs` where it has no number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="part of a network's name, or of name@batch")
    parser.add_argument("--pairs", type=int, default=pairs, help="runs of each program (default: %(default)s)")
    arguments = parser.parse_args()
    return Choice(tuple(arguments.words), arguments.pairs)
