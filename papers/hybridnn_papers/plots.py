"""Plots of what the papers draw beside scaling and accuracy: training losses, and the errors of predicted weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridnn.drawing.figures import COLORS, column_figure, legend_above, plain_ticks, tidy
from hybridnn.study.report_plots import PANEL, Plots, draw_curves
from hybridnn.study.results import StudyPoint, StudyResults, point_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ERRORS = 3  # points whose errors of weights are drawn
MOST_STEPS = 150  # steps of a curve that has a value for each


def draw_paper_plots(results: StudyResults, *, losses: bool) -> Plots:
    """Draw training losses, if the study names any, and errors of weights; returns captions and figures by name."""
    plots = draw_curves(results, ["training loss"], "training_loss") if losses else {}
    recorded = [point for point in results.points if any(step.stale_error for step in point.cells[0].run.steps)]
    for number, point in enumerate(recorded[:MOST_ERRORS], start=1):
        name = f"weight_error-{number}" if number > 1 else "weight_error"
        of = f" of {point_name(results, point)}" * (len(recorded) > 1)
        caption = f"Root-mean-square errors of predicted and of stale weights, of the first run{of}"
        plots[name] = f"{caption}; at most {MOST_STEPS} steps are drawn.", draw_weight_errors(point)
    return plots


def draw_weight_errors(point: StudyPoint) -> Figure:
    """Draw the errors of predicted and of stale weights over the steps, those of the first run of a point.

    Chen et al. 2018, Figure 8.
    """
    figure, (axes,) = column_figure(PANEL)
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
    axes.set_ylabel("RMS error of the weights")
    tidy(axes)
    legend_above(figure, *axes.get_legend_handles_labels())
    return figure
