"""Errors of gradients and of weights on every stage of deep pipelines, beside the accuracy that they go with.

``python -m hybridnn_papers.staleness_picture PICTURE.svg`` trains on digits in one process, with the network and the
minibatches of the study stale-methods on 16 stages, one seed and one rate; `StalenessDiagnosis` measures the errors.
The table beside the picture, ``PICTURE.csv``, has their medians over the logged steps.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from hybridnn import MLP, SGD
from hybridnn.data import Dataset, load_dataset
from hybridnn.data.preparation import StandardizedRows, Standardizer, split
from hybridnn.drawing.figures import PANEL, column_figure, draw_lines, figure_bytes, legend_above, tidy
from hybridnn.study.report import write_csv
from hybridnn_papers.weight_errors import train_diagnosed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("pipedream-vsync", "pipedream", "spectrain")
RATE = 0.01
ERRORS = {"error of gradients": "gradient_distance", "error of weights": "used_error"}


def staleness(data: Dataset, method: str, *, stages: int = 16, epochs: int = 8) -> list[dict[str, Any]]:
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


def draw_staleness(rows: Sequence[Mapping[str, Any]]) -> Figure:
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


def main(picture: str) -> None:
    """Train with every method, write the errors, and draw them."""
    data = load_dataset("digits")
    rows = [row for method in METHODS for row in staleness(data, method)]
    Path(picture).with_suffix(".csv").write_text(write_csv(rows), encoding="utf-8")
    Path(picture).write_bytes(figure_bytes(draw_staleness(rows), "svg"))


if __name__ == "__main__":
    main(*sys.argv[1:])
