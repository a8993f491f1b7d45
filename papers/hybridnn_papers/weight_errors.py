"""Chen et al. 2018, Figure 8: errors of predicted and of stale weights, 1 to 3 updates ahead, in a pipeline.

``python -m hybridnn_papers.weight_errors PICTURE.svg`` trains on digits in one process, for a minute. The errors of all
seeds are in a table beside the picture, ``PICTURE.csv``. The stages
of a pipeline of four predict 3, 2, 1 and 0 updates ahead by equation 4. The method is ``lwp``, which predicts for the
update of the stage; ``spectrain`` predicts for the end of the round trip. The network has selu as SNN, and is narrower;
momentum 0.9 as in equation 1, with its factor 1 - 0.9 (dampening), and rate 0.001.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hybridnn import MLP, SGD, ProcessGrid, StalenessDiagnosis, Trainer
from hybridnn.data import Dataset, load_dataset
from hybridnn.drawing.figures import COLORS, PANEL, column_figure, figure_bytes, legend_above, plain_ticks, tidy
from hybridnn.in_process import run_ranks
from hybridnn.study.report import write_csv
from hybridnn.training.staleness import StepStaleness

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, float]

STAGES = 4
SEEDS = 3
MOST_STEPS = 150  # that are drawn
FORM = {"layers": 8, "epochs": 14, "batch_size": 32, "log_every": 3}  # hidden layers, and the training


def train_diagnosed(
    stages: int, model: MLP, optimizer: SGD, train: Any, *, epochs: int, test: Any, **settings: Any
) -> tuple[float, list[StepStaleness]]:
    """Train a pipeline in this process; returns the test accuracy and the staleness of the logged steps."""

    def program(comm: Any) -> tuple[float | None, list[StepStaleness]]:
        grid, diagnosis = ProcessGrid(comm, pipeline=comm.size), StalenessDiagnosis()
        trainer = Trainer(model, optimizer, grid=grid, **settings)
        trainer.fit(train, epochs=epochs, callbacks=[diagnosis])
        return trainer.evaluate(test).accuracy, diagnosis.steps

    found: tuple[float, list[StepStaleness]] = run_ranks(stages, program).results[0]
    return found


def weight_errors(data: Dataset, *, layers: int, epochs: int, **settings: Any) -> list[Row]:
    """Errors relative to the weights, a row for every logged step and distance in updates."""
    model = MLP([data.features, *[256] * layers, data.outputs], "selu")
    optimizer = SGD(lr=0.001, momentum=0.9, dampening=0.9)
    about: Any = {"epochs": epochs, "test": data.train, "method": "lwp", **settings}
    return [
        {"step": step.step, "ahead": s, "stale": step.stale_error[-1 - s], "predicted": step.used_error[-1 - s]}
        for step in train_diagnosed(STAGES, model, optimizer, data.train, **about)[1]
        for s in range(1, STAGES)
    ]


def better_predictions(rows: Sequence[Row]) -> list[float]:
    """Share of the steps with predicted weights nearer than stale ones, 1, 2, ... updates ahead.

    A step counts if a prediction was made for it: the first ones find an empty pipeline.
    """
    made = [row for row in rows if row["predicted"] != row["stale"]]
    return [fmean(row["predicted"] < row["stale"] for row in made if row["ahead"] == s) for s in range(1, STAGES)]


def draw_weight_errors(rows: Sequence[Row]) -> Figure:
    """Draw the errors of predicted and of stale weights over the steps: a colour for each distance."""
    figure, (axes,) = column_figure(PANEL)
    for s in range(1, STAGES):
        of_distance = [row for row in rows if row["ahead"] == s]
        shown = of_distance[:: -(-len(of_distance) // MOST_STEPS)]
        for kind, line in (("stale", "--"), ("predicted", "-")):
            points = [row["step"] for row in shown], [row[kind] for row in shown]
            axes.plot(*points, line, color=COLORS[s - 1], linewidth=1.2, label=f"{kind}, {s} ahead")
    axes.set_yscale("log")
    plain_ticks(axes.yaxis)
    axes.set_xlabel("step")
    axes.set_ylabel("error relative to the weights")
    tidy(axes)
    legend_above(figure, *axes.get_legend_handles_labels())
    return figure


def main(picture: str) -> None:
    """Train with several seeds, write the errors, print the shares of better predictions, and draw the first seed."""
    data = load_dataset("digits")
    found = [weight_errors(data, seed=seed, **FORM) for seed in range(SEEDS)]
    for seed, rows in enumerate(found):
        shares = ", ".join(f"{share:.3f}" for share in better_predictions(rows))
        print(f"seed {seed}: predictions are nearer in {shares} of the steps")
    texts = [
        {"seed": seed} | {key: f"{value:.6g}" for key, value in row.items()}
        for seed, rows in enumerate(found)
        for row in rows
    ]
    Path(picture).with_suffix(".csv").write_text(write_csv(texts), encoding="utf-8")
    Path(picture).write_bytes(figure_bytes(draw_weight_errors(found[0]), "svg"))


if __name__ == "__main__":
    main(*sys.argv[1:])
