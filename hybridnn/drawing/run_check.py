"""Pictures of runs: measured beside predicted times of steps and instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hybridnn.drawing.figures import COLORS, COLUMN, legend_above, new_figure, tidy
from hybridnn.runs.quantities import RunFigures, instruction_figures
from hybridnn.runs.run_files import RunRecord
from hybridnn.utils.text import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Bar = tuple[str, float | None, float | None]  # label, measured and predicted seconds


def draw_run_check(run: RunRecord, figures: RunFigures) -> Figure:
    """Draw one run: milliseconds per step, of the whole step and of every kind of instruction."""
    bars: list[Bar] = [("step", figures.seconds_per_step, figures.predicted_seconds_per_step)]
    bars += [(item.kind, item.seconds_per_step, item.predicted_seconds_per_step) for item in instruction_figures(run)]
    return _draw_bars(bars, f"{figures.network} on {counted(figures.ranks, 'rank')}, grid {figures.grid}")


def draw_runs_check(runs: Sequence[RunFigures]) -> Figure:
    """Draw several runs: milliseconds per step of each."""
    bars = [
        (
            f"{counted(run.ranks, 'rank')}, {run.grid}\n{run.network}",
            run.seconds_per_step,
            run.predicted_seconds_per_step,
        )
        for run in runs
    ]
    return _draw_bars(bars, "Steps of the runs")


def _draw_bars(bars: Sequence[Bar], title: str) -> Figure:
    figure = new_figure(COLUMN, 0.8 + 0.36 * len(bars))
    axes = figure.subplots()
    measured = [seconds for _, seconds, _ in bars]
    predicted = [seconds for _, _, seconds in bars]
    for label, color, shift, heights in (
        ("measured", COLORS[0], -0.19, measured),
        ("predicted", COLORS[1], 0.19, predicted),
    ):
        shown = [(index + shift, 1e3 * seconds) for index, seconds in enumerate(heights) if seconds is not None]
        if shown:
            positions, milliseconds = zip(*shown, strict=True)
            drawn = axes.barh(positions, milliseconds, 0.36, color=color, label=label)
            axes.bar_label(drawn, fmt="%.3g", padding=1)
    axes.set_yticks(range(len(bars)), [label for label, *_ in bars])
    axes.invert_yaxis()
    axes.margins(x=0.12)  # room for the numbers
    axes.set_xlabel("ms per step")
    axes.set_title(title)
    tidy(axes)
    legend_above(figure, *axes.get_legend_handles_labels())
    return figure
