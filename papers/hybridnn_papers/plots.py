"""Plots of what the papers draw beside scaling and accuracy: training losses, and the errors of predicted weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hybridnn.drawing.figures import COLORS, column_figure, legend_above, plain_ticks, tidy
from hybridnn.study.report_plots import PANEL, draw_curves
from hybridnn.study.results import StudyPoint, StudyResults

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ERRORS = 3  # points whose errors of weights are drawn
MOST_STEPS = 150  # steps of a curve that has a value for each


def draw_paper_plots(results: StudyResults, *, losses: bool) -> dict[str, tuple[str, Figure]]:
    """Draw training losses, if the study names any, and errors of weights; returns captions and figures by name."""
    plots = {}
    if losses and (curves := draw_curves(results, ["training loss"])):
        plots["training_loss"] = curves
    recorded = [point for point in results.points if any(step.stale_error for step in point.cells[0].run.steps)]
    if recorded:
        plots["weight_error"] = draw_weight_errors(recorded[:MOST_ERRORS])
    return plots


def draw_weight_errors(points: Sequence[StudyPoint]) -> tuple[str, Figure]:
    """Draw the errors of predicted and of stale weights over the steps, those of the first run of each point.

    Chen et al. 2018, Figure 8.
    """
    figure, panels = column_figure(*[PANEL] * len(points))
    for axes, point in zip(panels, points, strict=True):
        steps = [step for step in point.cells[0].run.steps if step.stale_error]
        steps = steps[:: -(-len(steps) // MOST_STEPS)]
        for number in range(max(len(step.stale_error) for step in steps)):
            shown = [step for step in steps if len(step.stale_error) > number]
            xs, color = [step.step for step in shown], COLORS[number % len(COLORS)]
            for kind, line in (("stale", "--"), ("predicted", "-")):
                ys = [getattr(step, f"{kind}_error")[number] for step in shown]
                axes.plot(xs, ys, line, color=color, linewidth=1.2, label=f"{kind}, {number + 1} ahead")
        axes.set_yscale("log")
        plain_ticks(axes.yaxis)
        axes.set_xlabel("step")
        axes.set_ylabel("error of the weights")
        tidy(axes)
    legend_above(figure, *panels[0].get_legend_handles_labels())
    caption = "Root-mean-square errors of predicted and of stale weights, of the first run"
    return f"{caption}{' of each point' * (len(points) > 1)}; at most {MOST_STEPS} steps are drawn.", figure
