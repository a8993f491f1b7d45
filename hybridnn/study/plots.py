"""Plots of studies: scaling, measured beside predicted times, maps of grids, parts of the time, learning curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from hybridnn.drawing.figures import (
    COLORS,
    GRID,
    MUTED,
    ON_LIGHT,
    PANEL,
    Plots,
    column_figure,
    draw_lines,
    draw_parts,
    legend_above,
    line_style,
    plain_ticks,
    ratio_tick,
    tidy,
)
from hybridnn.runs.run_files import Moment
from hybridnn.study.answer import ComparedTraining, compare_trainings, fastest_layouts
from hybridnn.study.judgement import CONFIDENCE, LEAST_REPEATS, Estimate, in_common_rounds
from hybridnn.study.results import StudyPoint, StudyResults, fastest_by, mark_note, marked, point_name
from hybridnn.study.scaling import (
    LAYOUT,
    Comparison,
    ScalingLine,
    alike_points,
    baseline_text,
    compare_points,
    compare_with,
    family_of,
    grid_maps,
    layout_name,
    strong_lines,
    training_of,
    weak_lines,
)
from hybridnn.utils.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer
    from matplotlib.figure import Figure

Panel = TypeVar("Panel")

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
MARKS = ("ideal", "predicted", "disturbed")  # labels that come last in a legend
ASIDE = 3.5  # typographic points between the places of two lines at one number of ranks: the size of a marker

MOST_MAPS = 6
MAP = 2.7  # inches, height of a map or of bars, whose labels may be upright

MOST_CURVES = 16
BAND = 0.15  # opacity
ROW = 0.35  # inches, height of a difference
SEEDS_BELOW, SEED_ROW = 0.2, 0.06  # of rows, from a mean to the first seed and between two seeds
LOG_SCALE_RATIO = 50.0  # times that span at least this factor are drawn on a logarithmic axis
LEAST_R2 = -0.2
"""Lower end of the axis of R²: smaller values, before the network has learned, would hide the rest of the plot."""

MEASURES: dict[str, Callable[[Moment], float | None]] = {
    "test accuracy": lambda moment: moment.accuracy,
    "test R²": lambda moment: moment.r2,
    "training loss": lambda moment: moment.train_loss,
}


def draw_plots(results: StudyResults) -> Plots:
    """Draw the plots of a study whose axes vary."""
    plots: Plots = {}
    if lines := strong_lines(results):
        plots |= _draw_strong(results, lines)
    if lines := weak_lines(results):
        plots |= _draw_weak(lines)
    if maps := grid_maps(results):
        caption = (
            "Mean milliseconds per epoch of process grids, $P_r$ (model) x $P_c$ (batch) ranks, in the rounds that all "
            "have; boxed: the least time"
        )
        note = mark_note(point for grids in maps.values() for point in grids.values())
        plots |= _draw_each("grids", caption, note, maps, _draw_map)
    if bars := breakdowns_of(results):
        caption = (
            f"Where the ranks' time goes, against {baseline_text(results)}: compute is the efficiency, and the other "
            "parts are what it lacks"
        )
        plots |= _draw_each("breakdown", caption, mark_note(results.points), bars, _draw_breakdown)
    plots |= draw_curves(results, MEASURES, "accuracy")
    if compared := [found for found in compare_trainings(results) if found.last is not None]:
        plots |= _draw_differences(compared)
    return plots | results.findings.draw()


def _draw_each(
    name: str, caption: str, note: str, panels: Mapping[str, Panel], draw: Callable[[Panel], Figure]
) -> Plots:
    """Draw the first `MOST_MAPS` panels, whose titles are in their captions if there are more than one."""
    shown = list(panels.items())[:MOST_MAPS]
    more = f" Shown are {MOST_MAPS} of {len(panels)}." if len(panels) > MOST_MAPS else ""
    return {
        f"{name}-{number}" if number > 1 else name: (
            f"{caption}{f'; {title}' * (len(shown) > 1)}.{more} {note}".rstrip(),
            draw(panel),
        )
        for number, (title, panel) in enumerate(shown, start=1)
    }


# -- scaling -----------------------------------------------------------------------------------------------------------

Measured = Sequence[tuple[int, Estimate, bool]]
"""Values of a line: the ranks, the value, and whether processes of others disturbed it."""

Predicted = Sequence[tuple[int, float]]


def _draw_strong(results: StudyResults, lines: Sequence[ScalingLine]) -> Plots:
    comparisons = compare_points(results)
    compared = [[comparisons[point.id] for point in line.points if point.id in comparisons] for line in lines]
    speed_ups = [_values(line, "speed_up") for line in compared]
    ratios = [
        [(found.point.first.ranks, found.predicted_speed_up) for found in line if found.predicted_speed_up is not None]
        for line in compared
    ]
    bases = {found.base.first.ranks for line in compared for found in line}
    base, marks, predicted = baseline_text(results), _marks(speed_ups), _predicted(lines)
    least_times = [(item.point, f"{item.name}, " * bool(item.name)) for item in fastest_layouts(results)]
    names = ", ".join(f"{layout_name(point)} ({name}{point.first.ranks} ranks)" for point, name in least_times)
    least = f"; the least times have {names}" * bool(names)

    label = f"speed-up against {counted(min(bases), 'rank')}" if len(bases) == 1 else "speed-up"
    most = max(line.ranks[-1] for line in lines)
    ideal = [([ranks, most], [1, most / ranks]) for ranks in sorted(bases)]
    speed_up, axes = _draw_scaling(lines, speed_ups, ratios, label, ideal)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(ratio_tick)
    of_times, times, axes = _draw_times(lines, "seconds per epoch")
    axes.set_yscale("log")
    plain_ticks(axes.yaxis)
    return {
        "strong_scaling": (
            f"Strong scaling: the same work on more ranks, a line for each family of layouts{least}{of_times}.",
            times,
        ),
        "speed_up": (f"Speed-up of strong scaling against {base}{marks}{predicted}; grey: ideal.", speed_up),
        "efficiency": (
            f"Efficiency of strong scaling, the speed-up against {base} per rank{marks}; grey: ideal.",
            _draw_efficiencies(lines, compared),
        ),
    }


def _draw_weak(lines: Sequence[ScalingLine]) -> Plots:
    """Draw times and efficiencies of lines, those of epochs before those of steps."""
    plots: Plots = {}
    for unit in ("epoch", "step"):
        if chosen := [line for line in lines if line.per_step == (unit == "step")]:
            end = "-steps" if unit == "step" and plots else ""
            of_times, figure, axes = _draw_times(chosen, f"seconds per {unit}")
            _start_at_zero(axes)
            caption = f"Weak scaling: work that grows with the ranks. Ideal is a level line{of_times}."
            plots[f"weak_scaling{end}"] = caption, figure
            compared = [[compare_with(point, line.points[0]) for point in line.points] for line in chosen]
            if unit == "step":
                compared = [[_by_steps(found) for found in line] for line in compared]
            marks = _marks([_values(line, "efficiency") for line in compared])
            caption = f"Efficiency of weak scaling, per {unit}{marks}; grey: ideal."
            plots[f"weak_efficiency{end}"] = caption, _draw_efficiencies(chosen, compared)
    return plots


def _by_steps(found: Comparison) -> Comparison:
    """With the efficiency of steps, whose number per epoch differs."""
    steps = found.point.first.steps_per_epoch / found.base.first.steps_per_epoch
    return replace(found, efficiency=found.speed_up.scaled(steps))


def _values(compared: Sequence[Comparison], name: Literal["speed_up", "efficiency"]) -> Measured:
    return [(found.point.first.ranks, getattr(found, name), found.is_disturbed) for found in compared]


def _marks(lines: Sequence[Measured]) -> str:
    """What bars, crosses and places aside are; empty where no point has one."""
    texts = {
        "lines are moved aside, so that none hides another": len(lines) > 1,
        f"bars: {CONFIDENCE:.0%} confidence intervals of {LEAST_REPEATS} or more repeated runs": any(
            found.low is not None for line in lines for _, found, _ in line
        ),
        "crosses: disturbed by other processes": any(crossed for line in lines for *_, crossed in line),
    }
    return "".join(f"; {text}" for text, is_there in texts.items() if is_there)


def _predicted(lines: Sequence[ScalingLine]) -> str:
    """What open markers are; empty where no point has one."""
    points = [point for line in lines for point in line.points if point.predicted_seconds_per_epoch is not None]
    doubtful = " from a doubtful machine file" * any(point.first.prediction_doubt for point in points)
    return f"; open markers: predicted{doubtful}" if points else ""


def _draw_times(lines: Sequence[ScalingLine], label: str) -> tuple[str, Figure, Axes]:
    """Draw seconds over ranks, and those predicted; the text is what the marks are."""
    measured = [
        [(point.first.ranks, found, point.is_disturbed) for point, found in zip(line.points, line.seconds, strict=True)]
        for line in lines
    ]
    drawn = _draw_scaling(lines, measured, [line.predicted for line in lines], label)
    return _marks(measured) + _predicted(lines), *drawn


def _draw_efficiencies(lines: Sequence[ScalingLine], compared: Sequence[Sequence[Comparison]]) -> Figure:
    values = [_values(line, "efficiency") for line in compared]
    figure, axes = _draw_scaling(lines, values, [()] * len(lines), "efficiency")
    axes.axhline(1, color=MUTED, linewidth=1)
    axes.yaxis.set_major_formatter("{x:.0%}")
    _start_at_zero(axes)
    return figure


def _start_at_zero(axes: Axes) -> None:
    """Draw the values from 0, with room for the highest marker."""
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])


def _draw_scaling(
    lines: Sequence[ScalingLine],
    measured: Sequence[Measured],
    predicted: Sequence[Predicted],
    label: str,
    ideal: Iterable[tuple[Sequence[float], Sequence[float]]] = (),
) -> tuple[Figure, Axes]:
    """Draw values of lines over ranks: intervals as bars, predictions as open markers, and disturbed ones crossed."""
    from matplotlib.transforms import ScaledTranslation

    figure, (axes,) = column_figure(PANEL)
    for number, (line, points, expected) in enumerate(zip(lines, measured, predicted, strict=True)):
        # Of lines that lie on each other every one can be seen: each has its dashes, and its place at the ranks.
        aside = ASIDE / 72 * ((number + 1) // 2) * (1 if number % 2 else -1)  # at the right, the left, further right …
        place = axes.transData + ScaledTranslation(aside, 0, figure.dpi_scale_trans)
        # The ninth line has the first colour again, with another marker.
        marker = MARKERS[(number + number // len(COLORS)) % len(MARKERS)]
        style = {**line_style(number), "marker": marker, "markersize": 3.5}
        drawn = list(_draw_estimates(axes, points, label=line.name, **style).get_children())
        if expected:
            style |= {"linestyle": "none", "markerfacecolor": "none", "label": "predicted"}
            drawn += axes.plot(*zip(*expected, strict=True), **style)
        if crossed := [(ranks, found.value) for ranks, found, disturbed in points if disturbed]:
            cross: dict[str, Any] = {"color": COLORS[-1], "markersize": 7, "zorder": 3, "label": "disturbed"}
            drawn += axes.plot(*zip(*crossed, strict=True), "x", **cross)
        for artist in drawn:
            artist.set_transform(place)
    for xs, ys in ideal:
        axes.plot(xs, ys, color=MUTED, linewidth=1, label="ideal")
    ranks = sorted({count for line in lines for count in line.ranks})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(count) for count in ranks])
    axes.minorticks_off()
    axes.set_xlabel("ranks")
    axes.set_ylabel(label)
    tidy(axes)
    draw_legend(figure, [axes])
    return figure, axes


def _draw_estimates(axes: Axes, points: Measured, along: str = "y", **style: Any) -> ErrorbarContainer:
    """Draw values over ranks, or along x beside places, with their intervals as bars, where there are any."""
    places, estimates = [place for place, *_ in points], [found for _, found, _ in points]
    values = [found.value for found in estimates]
    below = [0.0 if found.low is None else found.value - found.low for found in estimates]
    above = [0.0 if found.high is None else found.high - found.value for found in estimates]
    style[f"{along}err"] = [below, above] if any(below) or any(above) else None
    return axes.errorbar(*((places, values) if along == "y" else (values, places)), capsize=2, **style)


def draw_legend(figure: Figure, panels: Iterable[Axes]) -> None:
    """Explain the lines of some panels, each name once."""
    shown = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in panels]
    handles = {str(label): handle for pairs in shown for handle, label in pairs}
    labels = sorted(handles, key=lambda label: label in MARKS)
    legend_above(figure, [handles[label] for label in labels], labels)


# -- grids and parts of the time ---------------------------------------------------------------------------------------


def _draw_map(grids: Mapping[tuple[int, int], StudyPoint]) -> Figure:
    from matplotlib.colors import LogNorm

    figure, (axes,) = column_figure(MAP)
    batches = sorted({batch for batch, _ in grids})
    models = sorted({model for _, model in grids})
    _, samples = in_common_rounds([point.times for point in grids.values()])
    times = {grid: sample.mean for grid, sample in zip(grids, samples, strict=True)}
    values = [[times.get((batch, model), math.nan) for model in models] for batch in batches]
    fastest = min(times, key=lambda grid: times[grid])
    places = range(len(models)), range(len(batches))
    axes.pcolormesh(*places, values, norm=LogNorm(), cmap="Wistia", edgecolors="face")  # dark text is legible on it
    for (batch, model), seconds in times.items():
        is_disturbed = grids[batch, model].is_disturbed
        text = marked(f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:,.0f}", is_disturbed)
        box = {"boxstyle": "round,pad=0.2", "facecolor": "none", "edgecolor": ON_LIGHT}
        place = models.index(model), batches.index(batch)
        shown = box if (batch, model) == fastest else None
        axes.text(*place, text, ha="center", va="center", color=ON_LIGHT, bbox=shown)
    axes.set_xticks(range(len(models)), [str(model) for model in models])
    axes.set_yticks(range(len(batches)), [str(batch) for batch in batches])
    axes.set_xlabel("$P_r$ (model ranks)")
    axes.set_ylabel("$P_c$ (batch ranks)")
    tidy(axes, grid=False)
    return figure


def breakdowns_of(results: StudyResults) -> dict[str, dict[str, dict[str, float]]]:
    """Parts of the ranks' time by the name of a point, for points that differ in their layout, by their other values.

    For each family and number of ranks the fastest layout. Points without the records of their steps or a base have no
    bar, and fewer than two bars are no breakdown.
    """
    comparisons, panels = compare_points(results), {}
    for points in alike_points(results.points, LAYOUT, lambda point: ()):
        measured = [point for point in points if point.id in comparisons and comparisons[point.id].parts is not None]
        measured.sort(key=lambda point: point.first.ranks)
        fastest = fastest_by(measured, lambda point: (point.first.ranks, family_of(point))).values()
        if len(fastest) > 1:
            panels[point_name(results, points[0], without=LAYOUT)] = {
                f"{point.first.ranks}\n{marked(layout_name(point), found.is_disturbed)}": found.parts or {}
                for point, found in ((point, comparisons[point.id]) for point in fastest)
            }
    return panels


def _draw_breakdown(bars: Mapping[str, Mapping[str, float]]) -> Figure:
    figure, (axes,) = column_figure(MAP)
    draw_parts(axes, bars)
    axes.set_xlabel("ranks, layout")
    tidy(axes)
    draw_legend(figure, [axes])
    return figure


# -- learning curves ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MedianCurve:
    """One measure of a point after each evaluation, in epochs from the start: medians over its cells.

    `seconds` are the training time until then, without evaluation; `low` and `high` the ends of the band of the cells.
    """

    name: str
    epochs: tuple[float, ...]
    seconds: tuple[float, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    diverged: int = 0  # cells whose training diverged
    timed_name: str = ""  # with a mark where its times are disturbed


def curves_of(results: StudyResults, measure: str) -> list[MedianCurve]:
    """Curves of the points that have the measure, for each training its fastest layout, in the order of the study.

    The points are those that the tables show.
    """
    fastest = fastest_by(results.findings.points, training_of)
    curves = [_curve(results, point, MEASURES[measure]) for point in fastest.values()]
    return [curve for curve in curves if curve.epochs]


def _curve(results: StudyResults, point: StudyPoint, value: Callable[[Moment], float | None]) -> MedianCurve:
    runs = [cell.run.moments for cell in point.cells]
    longest, rows = max(runs, key=len), []
    for number, moment in enumerate(longest):
        moments = [run[number] for run in runs if number < len(run)]
        measured = [known for known in map(value, moments) if known is not None and math.isfinite(known)]
        if measured:
            spent = median(moment.seconds for moment in moments)
            rows.append((moment.epochs, spent, median(measured), min(measured), max(measured)))
    epochs, seconds, values, low, high = zip(*rows, strict=True) if rows else ((),) * 5
    diverged = sum(cell.diverged for cell in point.cells)
    count = f", {diverged} of {len(point.cells)} diverged" if diverged else ""
    name = point_name(results, point) + count
    return MedianCurve(name, epochs, seconds, values, low, high, diverged, marked(name, point.is_disturbed))


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
    grids = ", for each training on its fastest grid" if results.timed else ""
    has_bands = any(curve.low != curve.high for curve in shown)
    bands = "; bands: from the least to the greatest of the runs, lines: their medians" * has_bands
    plots = {name: (f"{title} epochs{grids}{bands}.{more}", _draw_curves(shown, measure, "epochs"))}
    if results.timed:
        note = mark_note(results.findings.points)
        title += f" time{grids}{bands}.{more} {note}"
        plots[f"{name}-time"] = title.rstrip(), _draw_curves(shown, measure, "seconds")
    return plots


def _draw_curves(curves: Sequence[MedianCurve], measure: str, over: str) -> Figure:
    """Draw curves over their `epochs` or `seconds`; where a training diverged, the end has a cross."""
    from matplotlib.ticker import MaxNLocator

    figure, (axes,) = column_figure(PANEL)
    is_time = over == "seconds"
    drawn = [(curve.timed_name if is_time else curve.name, getattr(curve, over), curve.values) for curve in curves]
    draw_lines(axes, drawn, "seconds of training" if is_time else "epoch")
    for number, curve in enumerate(curves):
        if curve.low != curve.high:
            color = line_style(number)["color"]
            axes.fill_between(getattr(curve, over), curve.low, curve.high, color=color, alpha=BAND, linewidth=0)
    moments = [moment for _, xs, _ in drawn for moment in xs]
    if not is_time:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        for number, curve in enumerate(curves):
            if curve.diverged:
                style = line_style(number) | {"marker": "x", "markersize": 9, "markeredgewidth": 2}
                axes.plot(curve.epochs[-1:], curve.values[-1:], **style)
    elif max(moments) > LOG_SCALE_RATIO * min(moments):
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)
    axes.set_ylabel(f"{measure}, mean per sample" if "loss" in measure else measure)
    tidy(axes)
    if measure == "test R²" and min(min(curve.values) for curve in curves) < LEAST_R2:
        axes.set_ylim(LEAST_R2, 1.02)
    draw_legend(figure, [axes])
    return figure


def _draw_differences(compared: Sequence[ComparedTraining]) -> Plots:
    """Draw the differences of trainings to the baseline: of every seed, and the mean with its interval."""
    figure, (axes,) = column_figure(0.8 + ROW * len(compared))
    names, margin = [], compared[0].margin
    for place, found in enumerate(reversed(compared)):
        assert found.last is not None
        estimate, line = found.last.estimate, line_style(0)
        _draw_estimates(axes, [(place, estimate, False)], along="x", marker="o", markersize=3.5, **line)
        below = [place - SEEDS_BELOW - SEED_ROW * number for number in range(len(found.last.pairs))]
        axes.plot([*found.last.pairs.values()], below, ".", color=MUTED, markersize=3)
        names.append("\n".join(filter(None, [found.group, *found.names])))
    if margin is not None:
        axes.axvspan(-margin, margin, color=GRID, alpha=0.6, linewidth=0)
    axes.axvline(0, color=MUTED, linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.locator_params(axis="x", nbins=5)
    metric, bases = compared[0].base.first.metric_name, {found.base_name for found in compared}
    axes.set_xlabel(f"{metric}, difference to {bases.pop() if len(bases) == 1 else 'the baseline'}")
    tidy(axes)
    shaded = "; shaded: the margin within which a training costs nothing" * (margin is not None)
    bars = f"with {CONFIDENCE:.0%} confidence intervals of all {counted(compared[0].comparisons, 'comparison')}"
    caption = f"Differences to the baseline, seed by seed: means {bars}, and below them every seed{shaded}."
    return {"accuracy-differences": (caption, figure)}
