"""Plots beside scaling and accuracy: training losses, and the largest stable rates."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING

from hybridnn.drawing.figures import MUTED, PANEL, Plots, column_figure, plain_ticks, tidy
from hybridnn.pipeline.schedules.methods import find_method
from hybridnn.study.plots import draw_legend, draw_lines
from hybridnn.study.results import StudyPoint, StudyResults, point_name
from hybridnn_papers.measures import MEASURES, measured
from hybridnn_papers.stability import closed_form, largest_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATE = "optimizer.lr"
DEPTH = ("ranks", "grid", RATE)  # labels that differ within a line of a map of rates


def draw_stability(results: StudyResults, target: float | None) -> Plots:
    """Draw the largest rate that trains over the delay of the first stage, on a quadratic and in the study.

    In the study it is the largest rate of the axis with which every seed reaches the target. There is a line for each
    combination of the other axes, and each momentum has panels of its own.
    """
    lines: dict[float, dict[str, list[StudyPoint]]] = {}
    for point in results.points:
        if RATE in point.values and point.grid[0] > 1:
            momentum = getattr(point.cells[0].run.settings.optimizer, "momentum", 0.0)
            name = point_name(results, point, without=(*DEPTH, "optimizer.momentum"))
            lines.setdefault(momentum, {}).setdefault(name.removeprefix("method "), []).append(point)
    if not lines:
        return {}
    figure, panels = column_figure(*[PANEL] * 2 * len(lines))
    for number, (momentum, named) in enumerate(sorted(lines.items())):
        delays = sorted({point.grid[0] - 1 for points in named.values() for point in points})
        quadratic, trained = panels[2 * number : 2 * number + 2]
        exact = [closed_form(delay, momentum) for delay in delays]
        quadratic.plot(delays, exact, color=MUTED, linewidth=4, alpha=0.4, label="roots")
        for axes in (quadratic, trained):
            axes.set_yscale("log")
        draw_lines(quadratic, [(name, *_on_quadratic(points)) for name, points in named.items()], "")
        draw_lines(trained, [(name, *_in_study(points, target)) for name, points in named.items()], "")
        quadratic.set_ylabel("rate × curvature")
        trained.set_ylabel("learning rate")
        trained.set_xlabel("delay of the first stage, updates" if trained is panels[-1] else "")
        for axes, what in ((quadratic, "quadratic"), (trained, results.cells[0].run.header.data)):
            axes.set_title(f"{what}, momentum {momentum:g}")
            plain_ticks(axes.yaxis)
            _number_axis(axes, delays)
    draw_legend(figure, panels)
    reached = "trains" if target is None else f"reaches {target:g}"
    caption = f"Largest rates that train: on a quadratic, and in the study those with which every seed {reached}."
    return {"stability": (caption, figure)}


def draw_depths(results: StudyResults, points: Sequence[StudyPoint], target: float | None) -> Plots:
    """Draw the best metric and the epochs to the target over the stages, of some points: a line for each method."""
    lines: dict[str, list[StudyPoint]] = {}
    for point in points:
        if point.grid[0] > 1:
            name = point_name(results, point, without=DEPTH)
            lines.setdefault(name.removeprefix("method "), []).append(point)
    figure, panels = column_figure(PANEL, PANEL)
    for axes, measure in zip(panels, ("best_metric", "epochs_to_target"), strict=True):
        curves = []
        for name, found in lines.items():
            values = [(point.grid[0], _mean(point, measure, target)) for point in found]
            shown = [(stages, value) for stages, value in values if isfinite(value)]
            curves.append((name, [stages for stages, _ in shown], [value for _, value in shown]))
        draw_lines(axes, curves, "stages" if axes is panels[-1] else "")
        axes.set_ylabel(MEASURES[measure].text)
        _number_axis(axes, sorted({point.grid[0] for point in points}))
    draw_legend(figure, panels)
    caption = "Best test metric, and epochs until every seed has reached the target, over the stages"
    return {"depths": (f"{caption}; means over the seeds.", figure)}


def _mean(point: StudyPoint, measure: str, target: float | None) -> float:
    """Mean of a measure over the cells of a point; infinite where one has not reached the target."""
    found = [measured(cell.run, cell.figures, measure, target) for cell in point.cells]
    return fmean(value for value in found if value is not None)


def _number_axis(axes: Axes, numbers: Sequence[int]) -> None:
    """Make the x axis a logarithmic one with a tick for each of some numbers."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.xaxis.minorticks_off()
    tidy(axes)


def _on_quadratic(points: list[StudyPoint]) -> tuple[list[int], list[float]]:
    """Delays of the first stage, and the largest rates on a quadratic, with the method and optimizer of some points."""
    found = {}
    for point in points:
        method = find_method(point.cells[0].run.header.layout.method)
        if point.grid[0] - 1 not in found:
            found[point.grid[0] - 1] = largest_rate(method, point.cells[0].run.settings.optimizer, point.grid[0])
    return list(found), list(found.values())


def _in_study(points: list[StudyPoint], target: float | None) -> tuple[list[int], list[float]]:
    """Delays of the first stage, and the largest rates of some points with which all seeds converge."""
    found: dict[int, float] = {}
    for point in points:
        if all(measured(cell.run, cell.figures, "converged", target) for cell in point.cells):
            delay = point.grid[0] - 1
            found[delay] = max(found.get(delay, 0.0), float(point.values[RATE]))
    return sorted(found), [found[delay] for delay in sorted(found)]
