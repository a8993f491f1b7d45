"""Errors of gradients and of weights on every stage of deep pipelines, beside the accuracy that they go with.

``python -m hybridnn_papers.staleness_picture PICTURE.svg`` trains on digits in one process, with the network and the
minibatches of the study stale-methods on 16 stages, one seed and one rate; `StalenessDiagnosis` measures the errors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from hybridnn import MLP, SGD, ProcessGrid, StalenessDiagnosis, Trainer
from hybridnn.data import Dataset, load_dataset
from hybridnn.data.preparation import StandardizedRows, Standardizer, split
from hybridnn.drawing.figures import PANEL, column_figure, draw_lines, figure_bytes, legend_above, tidy
from hybridnn.in_process import run_ranks
from hybridnn.training.staleness import StepStaleness

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("pipedream-vsync", "pipedream", "spectrain")
RATE = 0.01
QUANTITIES = {"gradient_distance": "error of gradients", "used_error": "error of weights"}


@dataclass(frozen=True)
class Diagnosed:
    """Test accuracy after the training with a method, and the staleness of its logged steps."""

    method: str
    accuracy: float
    steps: Sequence[StepStaleness]

    def of_stages(self, quantity: str) -> list[float]:
        """Medians over the steps of a quantity, by stage."""
        return [median(values) for values in zip(*(getattr(step, quantity) for step in self.steps), strict=True)]


def diagnosed(data: Dataset, method: str, *, stages: int = 16, epochs: int = 8) -> Diagnosed:
    """Train with a method, a layer of 32 neurons for each stage."""
    model = MLP([data.features, *[32] * (stages - 1), data.outputs], "tanh", residual=True, initializer="glorot")
    parts = split(data.train, 0.2, 0)
    standardizer = Standardizer.fit(parts[0])
    train, test = (StandardizedRows(part, standardizer) for part in parts)
    settings: Any = {"batch_size": 64, "drain_every": epochs, "log_every": 5, "partition": "uniform"}

    def program(comm: Any) -> tuple[float | None, list[StepStaleness]]:
        grid, diagnosis = ProcessGrid(comm, pipeline=comm.size), StalenessDiagnosis()
        trainer = Trainer(model, SGD(lr=RATE, momentum=0.9), grid=grid, method=method, **settings)
        trainer.fit(train, epochs=epochs, callbacks=[diagnosis])
        return trainer.evaluate(test).accuracy, diagnosis.steps

    accuracy, steps = run_ranks(stages, program).results[0]
    return Diagnosed(method, accuracy, steps)


def draw_staleness(found: Iterable[Diagnosed]) -> Figure:
    """Draw both errors over the stages: a line for each method, named with its accuracy."""
    figure, panels = column_figure(PANEL, PANEL)
    for axes, (quantity, label) in zip(panels, QUANTITIES.items(), strict=True):
        lines = [(f"{it.method}, {it.accuracy:.3f}", it.of_stages(quantity)) for it in found]
        draw_lines(axes, [(name, range(len(values)), values) for name, values in lines], "")
        axes.set_ylabel(label)
        axes.set_yscale("log")
        tidy(axes)
    panels[-1].set_xlabel("stage")
    legend_above(figure, *panels[0].get_legend_handles_labels())
    return figure


def main(picture: str) -> None:
    """Train with every method, and draw the errors."""
    data = load_dataset("digits")
    found = [diagnosed(data, method) for method in METHODS]
    for it in found:
        errors = ", ".join(f"{label} {it.of_stages(name)[0]:.3f}" for name, label in QUANTITIES.items())
        print(f"{it.method}: accuracy {it.accuracy:.3f}; on stage 0 {errors}")
    Path(picture).write_bytes(figure_bytes(draw_staleness(found), "svg"))


if __name__ == "__main__":
    main(*sys.argv[1:])
