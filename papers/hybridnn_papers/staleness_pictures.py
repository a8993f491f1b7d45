"""Pictures of staleness in pipelines on digits, in one process, with the table of the numbers beside each.

``python -m hybridnn_papers.staleness_pictures weights PICTURE.svg`` takes a minute: Chen et al. 2018, Figure 8, errors
of predicted and of stale weights, 1 to 3 updates ahead. The stages of a pipeline of four predict 3, 2, 1 and 0 updates
ahead by equation 4. The method is ``lwp``, which predicts for the update of the stage; ``spectrain`` predicts for the
end of the round trip. The network has selu as SNN, and is narrower; momentum 0.9 as in equation 1, with its factor
1 - 0.9 (dampening), and rate 0.001.

``stages`` in place of ``weights``: errors of gradients and of weights on every stage of 16, as medians over the logged
steps, beside the accuracy that they go with. The network and the minibatches are those of the study stale-methods.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from hybridnn import MLP, SGD, ProcessGrid, StalenessDiagnosis, Trainer
from hybridnn.data import Dataset, load_dataset
from hybridnn.data.preparation import StandardizedRows, Standardizer, split
from hybridnn.drawing.figures import (
    COLORS,
    PANEL,
    column_figure,
    draw_lines,
    figure_bytes,
    legend_above,
    plain_ticks,
    tidy,
)
from hybridnn.in_process import run_ranks
from hybridnn.study.report import write_csv
from hybridnn.training.staleness import StepStaleness

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]

STAGES = 4
SEEDS = 3
MOST_STEPS = 150  # that are drawn
FORM = {"layers": 8, "epochs": 14, "batch_size": 32, "log_every": 3}  # hidden layers, and the training
METHODS = ("pipedream-vsync", "pipedream", "spectrain")
RATE = 0.01
ERRORS = {"error of gradients": "gradient_distance", "error of weights": "used_error"}


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


def staleness(data: Dataset, method: str, *, stages: int = 16, epochs: int = 8) -> list[Row]:
    """A row for every stage, a layer of 32 neurons: test accuracy after the training with a method, and the errors."""
    model = MLP([data.features, *[32] * (stages - 1), data.outputs], "tanh", residual=True, initializer="glorot")
    parts = split(data.train, 0.2, 0)
    train, test = (StandardizedRows(part, Standardizer.fit(parts[0])) for part in parts)
    settings: Any = {"batch_size": 64, "drain_every": epochs, "log_every": 5, "partition": "uniform"}
    optimizer, about = SGD(lr=RATE, momentum=0.9), {"epochs": epochs, "test": test, "method": method, **settings}
    accuracy, steps = train_diagnosed(stages, model, optimizer, train, **about)
    return [
        {"method": method, "accuracy": accuracy, "stage": stage}
        | {label: median(getattr(step, name)[stage] for step in steps) for label, name in ERRORS.items()}
        for stage in range(stages)
    ]


def draw_staleness(rows: Sequence[Row]) -> Figure:
    """Draw both errors over the stages: a line for each method, named with its accuracy."""
    figure, panels = column_figure(PANEL, PANEL)
    for axes, error in zip(panels, ERRORS, strict=True):
        lines: dict[str, list[float]] = {}
        for row in rows:
            lines.setdefault(f"{row['method']}, {row['accuracy']:.3f}", []).append(row[error])
        draw_lines(axes, [(name, range(len(values)), values) for name, values in lines.items()], "")
        axes.set_ylabel(error)
        axes.set_yscale("log")
        tidy(axes)
    panels[-1].set_xlabel("stage")
    legend_above(figure, *panels[0].get_legend_handles_labels())
    return figure


def main(which: str, picture: str) -> None:
    """Train, write the table, and draw; of errors of weights, print the shares of better predictions."""
    data = load_dataset("digits")
    if which == "weights":
        of_seed = [weight_errors(data, seed=seed, **FORM) for seed in range(SEEDS)]
        print(*[f"seed {seed}: nearer in {better_predictions(found)}" for seed, found in enumerate(of_seed)], sep="\n")
        rows = [{"seed": seed} | row for seed, found in enumerate(of_seed) for row in found]
        figure = draw_weight_errors(of_seed[0])
    else:
        rows = [row for method in METHODS for row in staleness(data, method)]
        figure = draw_staleness(rows)
    texts = [{name: f"{it:.6g}" if isinstance(it, float) else it for name, it in row.items()} for row in rows]
    Path(picture).with_suffix(".csv").write_text(write_csv(texts), encoding="utf-8")
    Path(picture).write_bytes(figure_bytes(figure, "svg"))


if __name__ == "__main__":
    main(*sys.argv[1:])
