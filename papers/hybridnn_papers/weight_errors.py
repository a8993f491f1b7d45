"""Chen et al. 2018, Figure 8: errors of predicted and of stale weights, 1 to 3 updates ahead, in a pipeline.

``python -m hybridnn_papers.weight_errors PICTURE.svg`` trains on digits in one process, for a minute; with ``cifar10``
as a second argument on CIFAR-10. The stages of a pipeline of four predict 3, 2, 1 and 0 updates ahead by
equation 4. The method is ``lwp``, which predicts for the update of the stage; ``spectrain`` predicts for the end of the
round trip. The network has selu as SNN, and is narrower; momentum 0.9 as in equation 1, with its factor 1 - 0.9
(dampening), and rate 0.001.
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
from hybridnn.training.staleness import StepStaleness

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STAGES = 4
SEEDS = 3
MOST_STEPS = 150  # that are drawn
FORMS: dict[str, dict[str, int]] = {
    "digits": {"layers": 8, "epochs": 14, "batch_size": 32, "log_every": 3},
    "cifar10": {"layers": 16, "epochs": 13, "batch_size": 128, "log_every": 15},
}
"""Hidden layers, and the training; the weights of logged steps are kept to the end of an epoch."""


def diagnosed(data: Dataset, *, layers: int, epochs: int, **settings: Any) -> list[StepStaleness]:
    """Staleness of the logged steps of a training with so many hidden layers."""
    model = MLP([data.features, *[256] * layers, data.outputs], "selu")

    def program(comm: Any) -> list[StepStaleness]:
        grid, diagnosis = ProcessGrid(comm, pipeline=comm.size), StalenessDiagnosis()
        optimizer = SGD(lr=0.001, momentum=0.9, dampening=0.9)
        trainer = Trainer(model, optimizer, grid=grid, method="lwp", **settings)
        trainer.fit(data.train, epochs=epochs, callbacks=[diagnosis])
        return diagnosis.steps

    found: list[StepStaleness] = run_ranks(STAGES, program).results[0]
    return found


def better_predictions(steps: Sequence[StepStaleness]) -> list[float]:
    """Share of the steps with predicted weights nearer than stale ones, 1, 2, ... updates ahead.

    A step counts if a prediction was made for it: the first ones find an empty pipeline.
    """
    ahead = range(1, STAGES)
    pairs = [[(step.used_error[-1 - s], step.stale_error[-1 - s]) for step in steps] for s in ahead]
    return [fmean(used < stale for used, stale in of_distance if used != stale) for of_distance in pairs]


def draw_weight_errors(steps: Sequence[StepStaleness]) -> Figure:
    """Draw the errors of predicted and of stale weights over the steps: a colour for each distance."""
    figure, (axes,) = column_figure(PANEL)
    shown = steps[:: -(-len(steps) // MOST_STEPS)]
    for ahead in range(1, STAGES):
        for kind, line in (("stale", "--"), ("predicted", "-")):
            errors = [(step.used_error if kind == "predicted" else step.stale_error)[-1 - ahead] for step in shown]
            label = f"{kind}, {ahead} ahead"
            axes.plot([step.step for step in shown], errors, line, color=COLORS[ahead - 1], linewidth=1.2, label=label)
    axes.set_yscale("log")
    plain_ticks(axes.yaxis)
    axes.set_xlabel("step")
    axes.set_ylabel("error relative to the weights")
    tidy(axes)
    legend_above(figure, *axes.get_legend_handles_labels())
    return figure


def main(picture: str, name: str = "digits") -> None:
    """Train with several seeds, print the shares of better predictions, and draw the errors of the first one."""
    data = load_dataset(name)
    for seed in range(SEEDS):
        steps = diagnosed(data, seed=seed, **FORMS[name])
        shares = ", ".join(f"{share:.3f}" for share in better_predictions(steps))
        means = ", ".join(f"{fmean(step.stale_error[-1 - ahead] for step in steps):.2e}" for ahead in range(1, STAGES))
        print(f"seed {seed}: predictions are nearer in {shares} of the steps; stale weights are {means} away")
        if seed == 0:
            Path(picture).write_bytes(figure_bytes(draw_weight_errors(steps), "svg"))


if __name__ == "__main__":
    main(*sys.argv[1:])
