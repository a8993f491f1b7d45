"""Plots of studies and runs: scaling, maps of grids, learning curves, measured beside predicted times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from hybridnn.drawing.figures import (
    CHARACTER,
    COLORS,
    DASHES,
    MUTED,
    ON_DARK,
    ON_LIGHT,
    PART_COLORS,
    TEXT,
    column_figure,
    legend_above,
    lies_on,
    plain_ticks,
    ratio_tick,
    tidy,
)
from hybridnn.runs.run_files import Moment
from hybridnn.study.answer import fastest_layouts
from hybridnn.study.results import StudyPoint, StudyResults, point_name
from hybridnn.study.scaling import (
    LAYOUT,
    Comparison,
    ScalingLine,
    alike_points,
    baseline_text,
    compare_points,
    family_of,
    grid_maps,
    layout_name,
    same_training,
    strong_lines,
    weak_lines,
)
from hybridnn.study.statistics import CONFIDENCE, LEAST_REPEATS, Estimate
from hybridnn.utils.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Panel = TypeVar("Panel")

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

MOST_MAPS = 6
MOST_CURVES = 16
MOST_MARKED = 15  # points of a curve that are drawn as dots as well
PANEL = 2.3  # inches, height of a plot
MAP = 2.7  # inches, height of a map or of bars, whose labels may be upright
BARS_INCHES = 2.6  # width of the bars of a breakdown
DARK = 0.6  # share of the colors of a map, from the lightest, after which text is white
LOG_SCALE_RATIO = 50.0  # times that span at least this factor are drawn on a logarithmic axis

LEAST_R2 = -0.2
"""Lower end of the axis of R²: smaller values, before the network has learned, would hide the rest of the plot."""

MEASURES: dict[str, Callable[[Moment], float | None]] = {
    "test accuracy": lambda moment: moment.accuracy,
    "test R²": lambda moment: moment.r2,
    "training loss": lambda moment: moment.train_loss,
}


PREDICTED = "_predicted, "
"""Before the label of the markers of predictions; the underscore keeps it out of legends."""

DISTURBED = "_disturbed, "
"""Before the label of the crosses on disturbed points."""

INTERVALS = f"; bars: {CONFIDENCE:.0%} confidence intervals of the medians of {LEAST_REPEATS} or more repeated runs"


Plots = dict[str, tuple[str, "Figure"]]
"""Captions and figures by name; a figure has one panel, as wide as a column of a page."""


def draw_plots(results: StudyResults) -> Plots:
    """Draw the plots of a study whose axes vary."""
    plots: Plots = {}
    if lines := strong_lines(results):
        plots |= _draw_strong(results, lines)
    if lines := weak_lines(results):
        plots |= _draw_weak(lines)
    if maps := grid_maps(results):
        caption = "Milliseconds per epoch of process grids, $P_r$ (model) x $P_c$ (batch) ranks; boxed: the fastest"
        plots |= _draw_each("grids", caption, maps, _draw_map)
    if bars := breakdowns_of(results):
        caption = (
            f"Where the ranks' time goes, against {baseline_text(results)}: compute is the efficiency, and the other "
            "parts are what it lacks"
        )
        plots |= _draw_each("breakdown", caption, bars, _draw_breakdown)
    return plots | draw_curves(results, MEASURES, "accuracy") | results.findings.draw()


def _draw_each(name: str, caption: str, panels: Mapping[str, Panel], draw: Callable[[str, Panel], Figure]) -> Plots:
    """Draw the first `MOST_MAPS` panels, whose titles are in their captions too if there are more than one."""
    shown = list(panels.items())[:MOST_MAPS]
    more = f" Shown are {MOST_MAPS} of {len(panels)}." if len(panels) > MOST_MAPS else ""
    return {
        f"{name}-{number}" if number > 1 else name: (
            f"{caption}{f'; {title}' * (len(shown) > 1)}.{more}",
            draw(title, panel),
        )
        for number, (title, panel) in enumerate(shown, start=1)
    }


def _marks(lines: Sequence[ScalingLine]) -> str:
    """What the bars and crosses of the lines are; empty where no point has one."""
    has_bars = any(found.low is not None for line in lines for found in line.seconds)
    has_crosses = any(line.disturbed for line in lines)
    return INTERVALS * has_bars + "; crosses: disturbed by other processes" * has_crosses


def _predicted(lines: Sequence[ScalingLine]) -> str:
    """What open markers are; empty where no point has one."""
    points = [point for line in lines for point in line.points if point.predicted_seconds_per_epoch is not None]
    doubtful = " from a doubtful machine file" * any(point.first.prediction_doubt for point in points)
    return f"; open markers: predicted{doubtful}" if points else ""


def _draw_strong(results: StudyResults, lines: Sequence[ScalingLine]) -> Plots:
    comparisons, fastest = compare_points(results), [found.point for found in fastest_layouts(results)]
    compared = [[comparisons.get(point.cells[0].id) for point in line.points] for line in lines]
    base, marks, predicted = baseline_text(results), _marks(lines), _predicted(lines)
    return {
        "strong_scaling": (
            "Strong scaling: the same work on more ranks, a line for each family of layouts. Written is the "
            f"fastest layout{marks}{predicted}.",
            _draw_strong_seconds(lines, fastest),
        ),
        "speed_up": (
            f"Speed-up of strong scaling against {base}{marks}{predicted}; grey: ideal.",
            _draw_speed_ups(lines, compared),
        ),
        "efficiency": (
            f"Efficiency of strong scaling, the speed-up against {base} per rank{marks}; grey: ideal.",
            _draw_efficiencies(lines, compared),
        ),
    }


def _draw_strong_seconds(lines: Sequence[ScalingLine], fastest: Sequence[StudyPoint]) -> Figure:
    figure, (axes,) = column_figure(PANEL)
    _draw_seconds(axes, lines)
    for point in fastest:
        place = point.first.ranks, point.seconds_per_epoch.value
        axes.annotate(layout_name(point), place, (-4, -3), textcoords="offset points", ha="right", va="top", size=TEXT)
    axes.margins(0.12, 0.2)  # room for them
    axes.set_yscale("log")
    plain_ticks(axes.yaxis)
    axes.set_ylabel("seconds per epoch")
    _draw_legend(figure, axes)
    return figure


Compared = Sequence[Sequence[Comparison | None]]
"""Comparisons of the points of some lines with the baseline."""


def _draw_speed_ups(lines: Sequence[ScalingLine], compared: Compared) -> Figure:
    figure, (axes,) = column_figure(PANEL)
    for number, (line, found) in enumerate(zip(lines, compared, strict=True)):
        shown = [(ranks, one.speed_up) for ranks, one in zip(line.ranks, found, strict=True) if one is not None]
        _draw_estimates(axes, shown, label=line.name, **_style(number))
        _cross_disturbed(axes, line, shown)
        if line.predicted[0] is not None:
            ratios = [(r, line.predicted[0] / p) for r, p in zip(line.ranks, line.predicted, strict=True) if p]
            _draw_predicted(axes, line.name, ratios, _style(number))
    bases = {one.base.first.ranks for found in compared for one in found if one is not None}
    for base_ranks in sorted(bases):
        most = max(line.ranks[-1] for line in lines)
        axes.plot([base_ranks, most], [1, most / base_ranks], color=MUTED, linewidth=1, label="ideal")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(ratio_tick)
    axes.set_ylabel(f"speed-up against {counted(min(bases), 'rank')}" if len(bases) == 1 else "speed-up")
    _finish(figure, axes, lines)
    return figure


def _draw_efficiencies(lines: Sequence[ScalingLine], compared: Compared) -> Figure:
    figure, (axes,) = column_figure(PANEL)
    for number, (line, found) in enumerate(zip(lines, compared, strict=True)):
        shares = [(ranks, one.efficiency) for ranks, one in zip(line.ranks, found, strict=True) if one is not None]
        _draw_estimates(axes, shares, label=line.name, **_style(number))
        _cross_disturbed(axes, line, shares)
    _format_efficiency(axes)
    _finish(figure, axes, lines)
    return figure


def _finish(figure: Figure, axes: Axes, lines: Sequence[ScalingLine]) -> None:
    """Give a plot its axis of ranks and its legend."""
    _rank_axis(axes, [count for line in lines for count in line.ranks])
    tidy(axes)
    _draw_legend(figure, axes)


def _format_efficiency(axes: Axes) -> None:
    axes.axhline(1, color=MUTED, linewidth=1)
    _start_at_zero(axes)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_ylabel("efficiency")


def _start_at_zero(axes: Axes) -> None:
    """Draw the values from 0, with room for the highest marker."""
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])


def _draw_weak(lines: Sequence[ScalingLine]) -> Plots:
    """Draw times and efficiencies of lines, those of epochs before those of steps."""
    both = {"epoch": [line for line in lines if not line.per_step], "step": [line for line in lines if line.per_step]}
    plots: Plots = {}
    for unit, chosen in both.items():
        if not chosen:
            continue
        end = "-steps" if unit == "step" and both["epoch"] else ""
        marks = f"{_marks(chosen)}{_predicted(chosen)}"
        caption = f"Weak scaling: work that grows with the ranks. Ideal is a level line{marks}."
        plots[f"weak_scaling{end}"] = caption, _draw_weak_seconds(chosen, unit)
        caption = f"Efficiency of weak scaling, per {unit}{_marks(chosen)}; grey: ideal."
        plots[f"weak_efficiency{end}"] = caption, _draw_weak_efficiencies(chosen)
    return plots


def _draw_weak_seconds(lines: Sequence[ScalingLine], unit: str) -> Figure:
    figure, (axes,) = column_figure(PANEL)
    _draw_seconds(axes, lines)
    axes.set_ylabel(f"seconds per {unit}")
    _start_at_zero(axes)
    _draw_legend(figure, axes)
    return figure


def _draw_weak_efficiencies(lines: Sequence[ScalingLine]) -> Figure:
    figure, (axes,) = column_figure(PANEL)
    for number, line in enumerate(lines):
        found = list(zip(line.ranks, line.weak_efficiency, strict=True))
        _draw_estimates(axes, found, label=line.name, **_style(number))
        _cross_disturbed(axes, line, found)
    _format_efficiency(axes)
    _finish(figure, axes, lines)
    return figure


def _draw_seconds(axes: Axes, lines: Sequence[ScalingLine]) -> None:
    """Draw seconds over ranks."""
    for number, line in enumerate(lines):
        style = _style(number)
        measured = list(zip(line.ranks, line.seconds, strict=True))
        _draw_estimates(axes, measured, label=line.name, **style)
        _cross_disturbed(axes, line, measured)
        found = [(r, p) for r, p in zip(line.ranks, line.predicted, strict=True) if p is not None]
        if found:
            _draw_predicted(axes, line.name, found, style)
    _rank_axis(axes, [count for line in lines for count in line.ranks])
    tidy(axes)


def _draw_predicted(axes: Axes, name: str, points: Sequence[tuple[int, float]], style: Mapping[str, Any]) -> None:
    """Draw predictions as open markers of the line's colour."""
    open_marker = {**style, "linestyle": "none", "markerfacecolor": "none", "label": f"{PREDICTED}{name}"}
    axes.plot(*zip(*points, strict=True), **open_marker)


def _cross_disturbed(axes: Axes, line: ScalingLine, points: Sequence[tuple[int, Estimate]]) -> None:
    """Draw a cross over the points of which a cell was disturbed."""
    found = [(ranks, estimate.value) for ranks, estimate in points if ranks in line.disturbed]
    if found:
        label = f"{DISTURBED}{line.name}"
        axes.plot(*zip(*found, strict=True), "x", color=COLORS[-1], markersize=7, label=label, zorder=3)


def _draw_estimates(axes: Axes, points: Sequence[tuple[int, Estimate]], **style: Any) -> None:
    """Draw values over ranks, with their intervals as bars, where there are any."""
    values = [found.value for _, found in points]
    below = [0.0 if found.low is None else found.value - found.low for _, found in points]
    above = [0.0 if found.high is None else found.high - found.value for _, found in points]
    bars = [below, above] if any(below) or any(above) else None
    axes.errorbar([ranks for ranks, _ in points], values, yerr=bars, capsize=2, **style)


def _draw_map(title: str, grids: Mapping[tuple[int, int], float]) -> Figure:
    from matplotlib.colors import LogNorm

    figure, (axes,) = column_figure(MAP)
    batches = sorted({batch for batch, _ in grids})
    models = sorted({model for _, model in grids})
    values = [[1e3 * grids.get((batch, model), math.nan) for model in models] for batch in batches]
    fastest = min(grids, key=lambda grid: grids[grid])
    least, most = min(grids.values()), max(grids.values())
    image = axes.imshow(values, norm=LogNorm(), cmap="YlOrBr", origin="lower", aspect="auto")
    for (batch, model), seconds in grids.items():
        box = (
            {"boxstyle": "round,pad=0.2", "facecolor": "none", "edgecolor": ON_LIGHT}
            if (batch, model) == fastest
            else None
        )
        is_dark = seconds > least * (most / least) ** DARK  # the colors are those of the logarithm
        color = ON_DARK if is_dark else ON_LIGHT
        position = models.index(model), batches.index(batch)
        text = f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:,.0f}"
        axes.text(*position, text, ha="center", va="center", bbox=box, color=color)
    axes.set_xticks(range(len(models)), [str(model) for model in models])
    axes.set_yticks(range(len(batches)), [str(batch) for batch in batches])
    axes.set_xlabel("$P_r$ (model ranks)")
    axes.set_ylabel("$P_c$ (batch ranks)")
    axes.set_title(title)
    tidy(axes, grid=False)
    bar = figure.colorbar(image, ax=axes, label="ms per epoch")
    bar.ax.yaxis.set_major_formatter("{x:g}")
    bar.ax.yaxis.set_minor_formatter("{x:g}")
    tidy(bar.ax, grid=False)
    return figure


def breakdowns_of(results: StudyResults) -> dict[str, dict[str, dict[str, float]]]:
    """Parts of the ranks' time by the name of a point, for points that differ in their layout, by their other values.

    For each family and number of ranks the fastest layout. Points without the records of their steps or a base have no
    bar, and fewer than two bars are no breakdown.
    """
    comparisons, panels = compare_points(results), {}
    for points in alike_points(results.points, LAYOUT, lambda point: ()):
        fastest: dict[tuple[int, str], tuple[str, dict[str, float]]] = {}
        for point in sorted(points, key=lambda point: (point.first.ranks, point.seconds_per_epoch.value)):
            parts = None if (found := comparisons.get(point.cells[0].id)) is None else found.parts
            if parts is not None:
                bar = f"{point.first.ranks}\n{layout_name(point)}", parts
                fastest.setdefault((point.first.ranks, family_of(point)), bar)
        if len(fastest) > 1:
            panels[point_name(results, points[0], without=LAYOUT)] = dict(fastest.values())
    return panels


def _draw_breakdown(title: str, bars: Mapping[str, Mapping[str, float]]) -> Figure:
    figure, (axes,) = column_figure(MAP)
    bottoms = [0.0] * len(bars)
    for part, color in PART_COLORS.items():
        heights = [shares[part] for shares in bars.values()]
        if any(heights):
            axes.bar(range(len(bars)), heights, 0.7, bottom=bottoms, color=color, label=part)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    longest = max(len(line) for label in bars for line in label.split("\n"))
    is_level = longest * CHARACTER * len(bars) < BARS_INCHES
    axes.set_xticks(range(len(bars)), list(bars), rotation=0 if is_level else 90)
    axes.set_xlabel("ranks, layout")
    axes.set_ylabel("share of the ranks' time")
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_title(title)
    tidy(axes)
    legend_above(figure, *axes.get_legend_handles_labels())
    return figure


def _style(number: int) -> dict[str, Any]:
    return {
        "color": COLORS[number % len(COLORS)],
        # The ninth line has the first colour again, with another marker.
        "marker": MARKERS[(number + number // len(COLORS)) % len(MARKERS)],
        "markersize": 3.5,
        "linewidth": 1.2,
    }


@dataclass(frozen=True)
class MedianCurve:
    """One measure of a point after each evaluation, in epochs from the start: medians over its cells.

    `seconds` are the training time until then, without evaluation.
    """

    name: str
    epochs: tuple[float, ...]
    seconds: tuple[float, ...]
    values: tuple[float, ...]
    diverged: int = 0  # cells whose training diverged


def curves_of(results: StudyResults, measure: str) -> list[MedianCurve]:
    """Curves of the points that have the measure, for each training its fastest layout, in the order of the study.

    The points are those that the tables show.
    """
    fastest = [
        min(points, key=lambda point: (not point.is_timed, point.seconds_per_epoch.value))
        for points in same_training(results.findings.points)
    ]
    curves = [_curve(results, point, MEASURES[measure]) for point in fastest]
    return [curve for curve in curves if curve.epochs]


def draw_curves(results: StudyResults, measures: Iterable[str], name: str) -> Plots:
    """Draw the first measure that the cells have, over epochs and, in a study of times, over seconds.

    The plots are called `name` and `name`-time; there are none if no run has two moments.
    """
    found = ((measure, curves_of(results, measure)) for measure in measures)
    measure, curves = next(((name, curves) for name, curves in found if curves), ("", []))
    if not any(len(curve.epochs) > 1 for curve in curves):
        return {}
    shown = curves[:MOST_CURVES]
    more = f" Shown are {MOST_CURVES} of {len(curves)}." if len(curves) > MOST_CURVES else ""
    title = f"{measure[0].upper()}{measure[1:]} against"
    if not results.is_timed:
        return {name: (f"{title} epochs.{more}", _draw_epochs(shown, measure))}
    grids = "for each training on its fastest grid"
    return {
        name: (f"{title} epochs, {grids}.{more}", _draw_epochs(shown, measure)),
        f"{name}-time": (f"{title} time, {grids}.{more}", _draw_times(shown, measure)),
    }


def _draw_epochs(curves: Sequence[MedianCurve], measure: str) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure, (axes,) = column_figure(PANEL)
    draw_lines(axes, [(curve.name, curve.epochs, curve.values) for curve in curves], "epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if any(curve.diverged for curve in curves):
        _mark_diverged(axes, curves)
    _finish_curves(figure, axes, curves, measure)
    return figure


def _draw_times(curves: Sequence[MedianCurve], measure: str) -> Figure:
    figure, (axes,) = column_figure(PANEL)
    draw_lines(axes, [(curve.name, curve.seconds, curve.values) for curve in curves], "seconds of training")
    moments = [seconds for curve in curves for seconds in curve.seconds]
    if max(moments) > LOG_SCALE_RATIO * min(moments):
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)
    _finish_curves(figure, axes, curves, measure)
    return figure


def _finish_curves(figure: Figure, axes: Axes, curves: Sequence[MedianCurve], measure: str) -> None:
    axes.set_ylabel(f"{measure}, mean per sample" if "loss" in measure else measure)
    tidy(axes)
    if measure == "test R²" and min(min(curve.values) for curve in curves) < LEAST_R2:
        axes.set_ylim(LEAST_R2, 1.02)
    _draw_legend(figure, axes)


def _curve(results: StudyResults, point: StudyPoint, value: Callable[[Moment], float | None]) -> MedianCurve:
    runs = [cell.run.moments for cell in point.cells]
    longest, rows = max(runs, key=len), []
    for number, moment in enumerate(longest):
        moments = [run[number] for run in runs if number < len(run)]
        measured = [known for known in map(value, moments) if known is not None and math.isfinite(known)]
        if measured:
            rows.append((moment.epochs, median(moment.seconds for moment in moments), median(measured)))
    epochs, seconds, values = zip(*rows, strict=True) if rows else ((), (), ())
    diverged = sum(cell.diverged for cell in point.cells)
    count = f", {diverged} of {len(point.cells)} diverged" if diverged else ""
    return MedianCurve(point_name(results, point) + count, epochs, seconds, values, diverged)


def _mark_diverged(axes: Axes, curves: Sequence[MedianCurve]) -> None:
    """Draw a cross at the end of the curves of which a training diverged."""
    for number, curve in enumerate(curves):
        if curve.diverged:
            color = COLORS[number % len(COLORS)]
            axes.plot(curve.epochs[-1:], curve.values[-1:], "x", color=color, markersize=9, markeredgewidth=2)


def _draw_legend(figure: Figure, axes: Axes) -> None:
    """Explain the curves, once each, the open markers of predictions, and the crosses on disturbed points."""
    handles, labels = axes.get_legend_handles_labels()
    named: dict[str, Any] = dict(zip(labels, handles, strict=True))
    for line in axes.get_lines():
        if str(line.get_label()).startswith(PREDICTED):
            named.setdefault("predicted", line)
        if str(line.get_label()).startswith(DISTURBED):
            named.setdefault("disturbed", line)
    legend_above(figure, named.values(), list(named))


def draw_lines(axes: Axes, curves: Sequence[tuple[str, Sequence[float], Sequence[float]]], label: str) -> None:
    """Draw curves of a name, xs and ys, over an axis with a label; one that hides others is dashed, with rings."""
    points = [list(zip(xs, ys, strict=True)) for _, xs, ys in curves]
    for number, (name, xs, ys) in enumerate(curves):
        hidden = sum(lies_on(earlier, points[number]) for earlier in points[:number])
        dashing = (hidden + number // len(COLORS)) % len(DASHES)
        axes.plot(
            xs,
            ys,
            color=COLORS[number % len(COLORS)],
            linestyle=(0, DASHES[dashing]) if dashing else "-",
            linewidth=1.2,
            marker="o" if len(xs) <= MOST_MARKED else "",
            # Rings around the points of the curves below.
            markersize=2.5 + 3 * dashing,
            markerfacecolor="none" if dashing else COLORS[number % len(COLORS)],
            label=name,
        )
    axes.set_xlabel(label)
    tidy(axes)


def _rank_axis(axes: Axes, ranks: Sequence[int]) -> None:
    """Make the x axis a logarithmic one of ranks, with a tick for each number that occurs."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(ranks)), [str(count) for count in sorted(set(ranks))])
    axes.minorticks_off()
    axes.set_xlabel("ranks")
