"""Curves of a plot; of those that lie on each other, every one can be seen: by dashes, rings, and a place aside."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.drawing.figures import COLORS, DASHES, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

MOST_MARKED = 15  # points of a curve that are drawn as dots as well
NEAR = 2.4  # typographic points: between nearer lines there is less than the width of one
ASIDE = 4.0  # typographic points between the places of lines that lie on each other: the size of a marker


def draw_lines(axes: Axes, curves: Sequence[tuple[str, Sequence[float], Sequence[float]]], label: str) -> None:
    """Draw curves of a name, xs and ys, over an axis with a label; those that lie on others are dashed, with rings.

    The y axis has its scale before. A curve lies on another if it is near it in half of the places or more.
    """
    drawn = []
    for number, (name, xs, ys) in enumerate(curves):
        color, marker = COLORS[number % len(COLORS)], "o" if len(xs) <= MOST_MARKED else ""
        drawn += axes.plot(xs, ys, color=color, linewidth=1.2, marker=marker, markersize=2.5, label=name)
    axes.set_xlabel(label)
    tidy(axes)
    paths = _paths(axes, drawn)
    places: list[int] = []
    for number, (line, path) in enumerate(zip(drawn, paths, strict=True)):
        taken = {place for place, earlier in zip(places, paths, strict=False) if np.mean(_near(earlier, path)) >= 0.5}
        # The ninth curve has the first colour again.
        places.append(next(place for place in count(number // len(COLORS)) if place not in taken))
        if places[-1]:
            _dash(line, places[-1])
            line.set_markersize(2.5 + 3 * min(places[-1], 2))  # a ring around the points of the curves below
            line.set_markerfacecolor("none")


def tell_apart(axes: Axes, marks: Sequence[str]) -> None:
    """Dash the lines with bars that lie on earlier ones, and move them aside, so that their markers stand side by side.

    Parameters
    ----------
    axes : Axes
        With its last scale and limits.
    marks : sequence of str
        What stands before the label of a line in the labels of other markers, which move with it.
    """
    from matplotlib.container import ErrorbarContainer
    from matplotlib.transforms import ScaledTranslation

    families = [family for family in axes.containers if isinstance(family, ErrorbarContainer)]
    paths = _paths(axes, [family.lines[0] for family in families])
    places: list[int] = []
    for family, path in zip(families, paths, strict=True):
        taken = {place for place, earlier in zip(places, paths, strict=False) if _lie_together(earlier, path)}
        places.append(next(place for place in range(len(paths)) if place not in taken))
        line, caps, bars = family.lines
        labels = {f"{mark}{family.get_label()}" for mark in marks}
        others = [other for other in axes.get_lines() if other.get_label() in labels]
        if places[-1]:
            _dash(line, places[-1])
            for artist in (line, *caps, *bars, *others):
                artist.set_transform(
                    axes.transData + ScaledTranslation(_inches_aside(places[-1]), 0, axes.figure.dpi_scale_trans)
                )


def _inches_aside(place: int) -> float:
    """Where a line stands: 1 at the right of 0, 2 at the left, 3 further at the right, and so on."""
    return ASIDE / 72 * ((place + 1) // 2) * (1 if place % 2 else -1)


def _dash(line: Line2D, place: int) -> None:
    """Dash a line that lies on others, and draw it above them; after the last dashes come the first again."""
    line.set_linestyle((0, DASHES[1 + (place - 1) % (len(DASHES) - 1)]))
    line.set_zorder(line.get_zorder() + place / 100)


def _paths(axes: Axes, lines: Sequence[Line2D]) -> list[NDArray[Any]]:
    """The points of lines in typographic points, with the scale and limits of now."""
    axes.get_xlim()  # brings the limits up to date, which the transform does not
    return [axes.transData.transform(line.get_xydata()) * 72 / axes.figure.dpi for line in lines]


def _near(one: NDArray[Any], other: NDArray[Any]) -> list[bool]:
    """Whether two lines are near each other, at every place of a point where both are; False where there is none."""
    if not len(one) or not len(other):
        return [False]
    first, last = max(one[0, 0], other[0, 0]), min(one[-1, 0], other[-1, 0])
    xs = sorted({x for x in (*one[:, 0], *other[:, 0]) if first <= x <= last})
    return [bool(abs(np.interp(x, *one.T) - np.interp(x, *other.T)) < NEAR) for x in xs] or [False]


def _lie_together(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two lines are near each other from one point to the next, or at the only place that they share."""
    near = _near(one, other)
    return near == [True] or any(a and b for a, b in pairwise(near))
