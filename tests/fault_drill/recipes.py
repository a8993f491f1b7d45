"""Trainings of the drill: one small network on several layouts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

from mpi_runner.launch import find_mpirun

__all__ = ["RECIPES", "Recipe", "new_run"]

EPOCHS, SAMPLES, BATCH_SIZE = 4, 240, 20


@dataclass(frozen=True)
class Recipe:
    """A layout."""

    name: str
    grid: tuple[int, int, int]  # stages of the pipeline, batch ranks, model ranks
    settings: tuple[str, ...] = ()  # further options of ``hybridnn train``
    exact: bool = True  # whether the method is exact, so that the run may resume on another exact layout
    launched: bool = True  # whether mpirun starts the ranks

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return prod(self.grid)

    @property
    def layout(self) -> list[str]:
        """Options of ``hybridnn train`` that set the layout, for a new or a resumed run."""
        axes = zip(("--pipeline", "--batch", "--model"), map(str, self.grid), strict=True)
        return [*chain.from_iterable(axes), *self.settings]

    def command(self, orders: str, arguments: Sequence[str]) -> list[str]:
        """The command of a run; `orders` describes the fault for its ranks."""
        python = [sys.executable, "-m", "fault_drill.rank", orders, *arguments]
        return [find_mpirun(), "-n", str(self.ranks), *python] if self.launched else python


RECIPES = (
    Recipe("one process", (1, 1, 1), launched=False),
    Recipe("batch 2", (1, 2, 1)),
    Recipe("model 2, alternating", (1, 1, 2), ("--set", "parallel.model_split=alternating")),
    Recipe("gpipe over 2", (2, 1, 1), ("--method", "gpipe")),
    Recipe("pipedream over 2", (2, 1, 1), ("--method", "pipedream"), exact=False),
    Recipe("batch 2 x model 2", (1, 2, 2)),
    Recipe("interleaved over 2 x batch 2", (2, 2, 1), ("--method", "interleaved")),
    Recipe("zb-h1 over 4", (4, 1, 1), ("--method", "zb-h1")),
    Recipe("spectrain over 4", (4, 1, 1), ("--method", "spectrain"), exact=False),
)


def new_run(recipe: Recipe, folder: str) -> list[str]:
    """Arguments of ``hybridnn`` for a new run."""
    sizes = ["--data", "synthetic", "--hidden", "12,11,10,9", "--epochs", str(EPOCHS), "--batch-size", str(BATCH_SIZE)]
    settings = {
        "training.dtype": "float64",
        "data.rows": SAMPLES,
        "data.synthetic.test_samples": 40,
        "output.log_every": 1,
    }
    sets = [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
    optimizer = ["--optimizer", "adam" if recipe.exact else "sgd", "--lr", "0.01"]
    return ["train", *sizes, "--seed", "5", *sets, *optimizer, *recipe.layout, "--out", folder, "-q"]
