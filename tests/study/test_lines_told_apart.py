"""Lines of a scaling plot that lie on each other: dashes, and markers, bars and predictions side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer

from hybridnn.drawing.figures import figure_bytes
from hybridnn.study.report_plots import draw_plots
from hybridnn.study.results import StudyResults
from reference.finished_runs import load_line, made_study, prediction_line

EQUAL = [4.0, 3.0, 2.0]
MARKER = 3.5  # points
STRONG, WEAK = ("strong_scaling", "speed_up", "efficiency"), ("weak_scaling", "weak_efficiency")


def _study(folder: Path, lines: Mapping[str, Sequence[float]], *, weak: bool = False, repeats: int = 1) -> StudyResults:
    """Families on 1, 2 and 4 ranks with these seconds; repeats differ by a tenth, and 2 ranks are disturbed."""
    runs: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for family, seconds in lines.items():
        kind, method = [*family.split(), "-"][:2]
        for ranks, taken in zip((1, 2, 4), seconds, strict=True):
            grid = {"batch": (1, ranks, 1), "model": (1, 1, ranks), "pipeline": (ranks, 1, 1)}[kind]
            values = {"ranks": ranks, "grid": "x".join(map(str, grid)), "method": method if ranks > 1 else "-"}
            options: dict[str, Any] = {"ranks": ranks, "grid": grid, "samples": 1000 * (ranks if weak else 1)}
            options["lines"] = [prediction_line(taken / 10), *([load_line(0.5)] if ranks == 2 else [])]
            if kind == "pipeline" and ranks > 1:
                options["method"] = method
            for repeat in range(repeats):
                more = {"seconds": [(1 + repeat / 10) * taken]}
                runs[f"{values['grid']}-{method}-{repeat}"] = values | {"repeat": repeat}, options | more
    return made_study(folder, runs, more={"compares": "times"})


def _families(axes: Axes) -> dict[str, ErrorbarContainer]:
    return {str(bars.get_label()): bars for bars in axes.containers if isinstance(bars, ErrorbarContainer)}


def _markers(axes: Axes, family: ErrorbarContainer) -> np.ndarray:
    """Where the markers of a family are drawn, in typographic points."""
    line = family.lines[0]
    return line.get_transform().transform(line.get_xydata()) * 72 / axes.figure.dpi


@pytest.mark.parametrize("weak", [False, True])
def test_equal_and_close_families_have_dashes_of_their_own_and_markers_side_by_side(tmp_path: Path, weak: bool) -> None:
    close = [4.0, 3.01, 2.01]  # a third of a percent: less than the width of a line
    lines = {"batch": EQUAL, "model": EQUAL, "pipeline 1f1b": close, "pipeline gpipe": [4.0, 9.0, 16.0]}
    plots = draw_plots(_study(tmp_path, lines, weak=weak))
    for name in WEAK if weak else STRONG:
        caption, figure = plots[name]
        assert caption.endswith("; dashed, and moved aside: lines that lie on another one.")
        (axes,) = figure.axes
        families = _families(axes)
        assert [bars.lines[0].is_dashed() for bars in families.values()] == [False, True, True, False]
        dashes = re.findall(r"stroke-dasharray: ([^;]+);", figure_bytes(figure, "svg").decode())
        assert len(set(dashes)) == 2
        places = [_markers(axes, families[label]) for label in list(lines)[:3]]
        for one, other in combinations(places, 2):
            assert (np.hypot(*(one - other).T) >= MARKER).all()


def test_lines_with_a_gap_between_them_are_solid_and_at_their_ranks(tmp_path: Path) -> None:
    plots = draw_plots(_study(tmp_path, {"batch": EQUAL, "model": [4.0, 3.5, 3.0]}))
    for name in STRONG:
        caption, figure = plots[name]
        assert "dashed" not in caption
        (axes,) = figure.axes
        for bars in _families(axes).values():
            assert not bars.lines[0].is_dashed()
            assert bars.lines[0].get_transform() == axes.transData


def test_lines_that_lie_on_different_neighbours_differ_from_both(tmp_path: Path) -> None:
    """The second lies on the first, and the third on the second, but not on the first."""
    lines = {"batch": [4.0, 3.0, 2.0], "model": [4.0, 3.036, 2.024], "pipeline 1f1b": [4.0, 3.073, 2.049]}
    (axes,) = draw_plots(_study(tmp_path, lines))["strong_scaling"][1].axes
    drawn = [bars.lines[0] for bars in _families(axes).values()]
    assert [line.is_dashed() for line in drawn] == [False, True, False]
    assert max(drawn, key=lambda line: line.get_zorder()) is drawn[1], "a solid line would hide it"


def test_bars_predictions_and_crosses_stand_where_their_line_does(tmp_path: Path) -> None:
    (axes,) = draw_plots(_study(tmp_path, {"batch": EQUAL, "model": EQUAL}, repeats=3))["strong_scaling"][1].axes
    line, caps, bars = _families(axes)["model"].lines
    marks = [one for one in axes.get_lines() if one.get_label() in ("_predicted, model", "_disturbed, model")]
    assert (len(caps), len(bars), len(marks)) == (2, 1, 2)
    for artist in (*caps, *bars, *marks):
        assert artist.get_transform().transform((2, 3)) == pytest.approx(line.get_transform().transform((2, 3)))
    assert line.get_transform().transform((2, 3)) != pytest.approx(axes.transData.transform((2, 3)))
