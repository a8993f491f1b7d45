"""The plots of a study, each as PNG, and only those whose axes vary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hybridnn.study.plot_style import COLORS, MARKERS, MUTED, new_figure, png_bytes, rank_axis, tidy
from hybridnn.study.report.curves import draw_curves
from hybridnn.study.report.groups import GridMap, ScalingLine, grid_maps, strong_lines, weak_lines
from hybridnn.study.report.results import StudyResults
from hybridnn.utils.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_MAPS = 6
COLUMNS = 3


def draw_plots(results: StudyResults) -> dict[str, tuple[str, bytes]]:
    """Draw what can be drawn of a study.

    Returns
    -------
    dict of str to (str, bytes)
        By the name of the file: a caption, and the PNG.
    """
    plots: dict[str, tuple[str, bytes]] = {}
    if lines := strong_lines(results):
        plots["strong_scaling.png"] = (
            "Strong scaling: the same work on more ranks. Of several grids the fastest; bars from least to greatest "
            "of repeated runs; dashed: predicted; grey: ideal.",
            _draw_strong(lines),
        )
    if lines := weak_lines(results):
        plots["weak_scaling.png"] = (
            "Weak scaling: work that grows with the ranks. Ideal is a level line.",
            _draw_weak(lines),
        )
    if maps := grid_maps(results):
        more = f" Shown are {MOST_MAPS} of {len(maps)}." if len(maps) > MOST_MAPS else ""
        plots["grids.png"] = (
            "Milliseconds per epoch of process grids, P_r (batch) x P_c (model) ranks; boxed: the fastest." + more,
            _draw_maps(maps[:MOST_MAPS]),
        )
    if curves := draw_curves(results):
        plots["accuracy.png"] = curves
    return plots


def _draw_strong(lines: Sequence[ScalingLine]) -> bytes:
    figure = new_figure(10.5, 4.3)
    left, right = figure.subplots(1, 2)
    _draw_seconds(left, lines)
    left.set_yscale("log")
    left.set_ylabel("seconds per epoch")
    bases = {line.ranks[0] for line in lines}
    for number, line in enumerate(lines):
        base, style = line.seconds[0].median, _style(number)
        right.plot(line.ranks, [base / spread.median for spread in line.seconds], label=line.name, **style)
        if line.predicted[0] is not None:
            ratios = [(r, line.predicted[0] / p) for r, p in zip(line.ranks, line.predicted, strict=True) if p]
            right.plot(*zip(*ratios, strict=True), color=style["color"], linestyle="--", linewidth=1)
    for base_ranks in sorted(bases):
        most = max(line.ranks[-1] for line in lines if line.ranks[0] == base_ranks)
        right.plot([base_ranks, most], [1, most / base_ranks], color=MUTED, linewidth=1, label="ideal")
    right.set_yscale("log", base=2)
    right.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    rank_axis(right, [count for line in lines for count in line.ranks])
    word = counted(min(bases), "rank") if len(bases) == 1 else "the fewest ranks of the line"
    right.set_ylabel(f"speed-up against {word}")
    tidy(right)
    _legend(left)
    return png_bytes(figure)


def _draw_weak(lines: Sequence[ScalingLine]) -> bytes:
    both = {"epoch": [line for line in lines if not line.per_step], "step": [line for line in lines if line.per_step]}
    kinds = {word: chosen for word, chosen in both.items() if chosen}
    figure = new_figure(5.6 * len(kinds), 4.3)
    for axes, (word, chosen) in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds.items(), strict=True):
        _draw_seconds(axes, chosen)
        axes.set_ylabel(f"seconds per {word}")
        axes.set_ylim(bottom=0)
        _legend(axes)
    return png_bytes(figure)


def _draw_seconds(axes: Axes, lines: Sequence[ScalingLine]) -> None:
    for number, line in enumerate(lines):
        medians = [spread.median for spread in line.seconds]
        below = [spread.median - spread.least for spread in line.seconds]
        above = [spread.most - spread.median for spread in line.seconds]
        style = _style(number)
        axes.errorbar(line.ranks, medians, yerr=[below, above], label=line.name, capsize=2, **style)
        found = [(r, p) for r, p in zip(line.ranks, line.predicted, strict=True) if p is not None]
        if found:
            axes.plot(*zip(*found, strict=True), color=style["color"], linestyle="--", linewidth=1)
    rank_axis(axes, [count for line in lines for count in line.ranks])
    tidy(axes)


def _draw_maps(maps: Sequence[GridMap]) -> bytes:
    columns = min(COLUMNS, len(maps))
    rows = -(-len(maps) // columns)
    figure = new_figure(4.2 * columns, 3.8 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, grids in zip(panels, maps, strict=False):
        _draw_map(axes, grids)
    for axes in panels[len(maps) :]:
        axes.set_visible(False)
    return png_bytes(figure)


def _draw_map(axes: Axes, grids: GridMap) -> None:
    from matplotlib.colors import LogNorm

    batches = sorted({batch for batch, _ in grids.seconds})
    models = sorted({model for _, model in grids.seconds})
    missing = float("nan")
    values = [[1e3 * grids.seconds.get((batch, model), missing) for model in models] for batch in batches]
    fastest = min(grids.seconds, key=lambda place: grids.seconds[place])
    image = axes.imshow(values, norm=LogNorm(), cmap="YlOrBr", origin="lower", aspect="auto")
    middle = (min(grids.seconds.values()) * max(grids.seconds.values())) ** 0.5
    for (batch, model), seconds in grids.seconds.items():
        box = {"boxstyle": "round", "facecolor": "none", "edgecolor": "black"} if (batch, model) == fastest else None
        color = "white" if seconds > 1.5 * middle else "black"
        place = models.index(model), batches.index(batch)
        axes.text(*place, f"{1e3 * seconds:.3g}", ha="center", va="center", fontsize=8, bbox=box, color=color)
    axes.set_xticks(range(len(models)), [str(model) for model in models])
    axes.set_yticks(range(len(batches)), [str(batch) for batch in batches])
    axes.set_xlabel("P_c (model ranks)")
    axes.set_ylabel("P_r (batch ranks)")
    axes.set_title(grids.name, fontsize=9)
    bar = axes.figure.colorbar(image, ax=axes, label="ms per epoch")
    bar.ax.yaxis.set_major_formatter("{x:g}")
    bar.ax.yaxis.set_minor_formatter("{x:g}")


def _style(number: int) -> dict[str, Any]:
    return {
        "color": COLORS[number % len(COLORS)],
        # The ninth line has the first colour again, with another marker.
        "marker": MARKERS[(number + number // len(COLORS)) % len(MARKERS)],
        "markersize": 4.5,
        "linewidth": 1.6,
    }


def _legend(axes: Axes) -> None:
    axes.legend(frameon=False, fontsize=7)
