"""Plots of studies: scaling, measured beside predicted times, maps of grids, and parts of the ranks' time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from hybridnn.drawing.figures import (
    COLORS,
    MUTED,
    ON_DARK,
    ON_LIGHT,
    PANEL,
    TEXT,
    Plots,
    column_figure,
    draw_parts,
    legend_above,
    plain_ticks,
    ratio_tick,
    tell_apart,
    tidy,
)
from hybridnn.study.answer import fastest_layouts
from hybridnn.study.curve_plots import MEASURES, draw_curves
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
MAP = 2.7  # inches, height of a map or of bars, whose labels may be upright
DARK = 0.6  # share of the colors of a map, from the lightest, after which text is white

PREDICTED = "_predicted, "
"""Before the label of the markers of predictions; the underscore keeps it out of legends."""

DISTURBED = "_disturbed, "
"""Before the label of the crosses on disturbed points."""

DASHED = "; dashed, and moved aside: lines that lie on another one"

INTERVALS = f"; bars: {CONFIDENCE:.0%} confidence intervals of the medians of {LEAST_REPEATS} or more repeated runs"


def draw_plots(results: StudyResults) -> Plots:
    """Draw the plots of a study whose axes vary."""
    plots: Plots = {}
    if lines := strong_lines(results):
        plots |= _explain_dashes(_draw_strong(results, lines))
    if lines := weak_lines(results):
        plots |= _explain_dashes(_draw_weak(lines))
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


def _explain_dashes(plots: Plots) -> Plots:
    """Say in the captions what dashed lines are, where there are any."""

    def explained(caption: str, figure: Figure) -> str:
        has_some = any(line.is_dashed() for axes in figure.axes for line in axes.get_lines())
        return f"{caption.removesuffix('.')}{DASHED}." if has_some else caption

    return {name: (explained(caption, figure), figure) for name, (caption, figure) in plots.items()}


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
    draw_parts(axes, bars)
    axes.set_xlabel("ranks, layout")
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


def _draw_legend(figure: Figure, axes: Axes) -> None:
    """Explain the curves, once each, the open markers of predictions, and the crosses on disturbed points.

    The axes have their last scale and limits: lines that lie on each other are told apart first.
    """
    tell_apart(axes, (PREDICTED, DISTURBED))
    handles, labels = axes.get_legend_handles_labels()
    named: dict[str, Any] = dict(zip(labels, handles, strict=True))
    for line in axes.get_lines():
        if str(line.get_label()).startswith(PREDICTED):
            named.setdefault("predicted", line)
        if str(line.get_label()).startswith(DISTURBED):
            named.setdefault("disturbed", line)
    legend_above(figure, named.values(), list(named))


def _rank_axis(axes: Axes, ranks: Sequence[int]) -> None:
    """Make the x axis a logarithmic one of ranks, with a tick for each number that occurs."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(ranks)), [str(count) for count in sorted(set(ranks))])
    axes.minorticks_off()
    axes.set_xlabel("ranks")
