"""Options of a benchmark: ``python -m benchmarks.NAME [--pairs N] [WORD ...]`` selects networks and number of runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.cases import Case

__all__ = ["Choice", "read_choice"]


@dataclass(frozen=True)
class Choice:
    """Options of a command.

    Attributes
    ----------
    words : tuple of str
        Networks whose ``name@batch`` contains one of them are measured; all networks if it is empty.
    pairs : int
        Runs of each program.
    """

    words: tuple[str, ...]
    pairs: int

    def among(self, cases: Iterable[Case]) -> list[Case]:
        """The selected cases, in their order."""
        return [
            case
            for case in cases
            if not self.words or any(word in f"{case.name}@{case.batch_size}" for word in self.words)
        ]


def read_choice(pairs: int = 9) -> Choice:
    """Parse the command line; `pairs` is the default number of runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="part of name@batch of a network")
    parser.add_argument("--pairs", type=int, default=pairs, help="runs of each program (default: %(default)s)")
    arguments = parser.parse_args()
    return Choice(tuple(arguments.words), arguments.pairs)
