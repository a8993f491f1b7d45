"""Bars of measured beside predicted seconds."""

from __future__ import annotations

from collections.abc import Sequence

from hybridnn.runs.run_record import RunRecord
from hybridnn.study.figures import RunFigures, instruction_figures
from hybridnn.study.plot_style import COLORS, new_figure, png_bytes, tidy

Bar = tuple[str, float | None, float | None]


def draw_run_check(run: RunRecord, figures: RunFigures) -> bytes:
    """Draw one run as PNG: milliseconds per step, of the whole step and of every kind of instruction."""
    bars: list[Bar] = [("step", figures.seconds_per_step, figures.predicted_seconds_per_step)]
    bars += [(item.kind, item.seconds_per_step, item.predicted_seconds_per_step) for item in instruction_figures(run)]
    return _draw(bars, f"{figures.network} on {figures.ranks} ranks, grid {figures.grid}")


def draw_runs_check(runs: Sequence[RunFigures]) -> bytes:
    """Draw several runs as PNG: milliseconds per step of each."""
    bars = [
        (f"{run.ranks} ranks\n{run.grid}\n{run.network}", run.seconds_per_step, run.predicted_seconds_per_step)
        for run in runs
    ]
    return _draw(bars, "Steps of the runs")


def _draw(bars: Sequence[Bar], title: str) -> bytes:
    figure = new_figure(max(5.2, 0.95 * len(bars) + 1.5), 3.9)
    axes = figure.subplots()
    measured = [seconds for _, seconds, _ in bars]
    predicted = [seconds for _, _, seconds in bars]
    sides = ("measured", COLORS[0], -0.19, measured), ("predicted", COLORS[1], 0.19, predicted)
    for label, color, shift, heights in sides:
        shown = [(place + shift, 1e3 * seconds) for place, seconds in enumerate(heights) if seconds is not None]
        if shown:
            xs, milliseconds = zip(*shown, strict=True)
            drawn = axes.bar(xs, milliseconds, 0.36, color=color, label=label)
            axes.bar_label(drawn, fmt="%.3g", fontsize=7, padding=1)
    axes.set_xticks(range(len(bars)), [label for label, *_ in bars], fontsize=8)
    axes.set_ylabel("ms per step")
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False)
    tidy(axes)
    return png_bytes(figure)
