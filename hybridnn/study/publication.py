"""Tables of a study as LaTeX, and the points of its plots as rows of a CSV file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "²": r"\textsuperscript{2}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "µ": r"$\mu$",
    "\u2013": "--",
    "…": r"\ldots{}",
}
"""Characters that LaTeX reads in another way or not at all, and what it prints them for."""

NUMBER = re.compile(r"-|[-+]?[0-9][0-9.,e+-]*( .*)?")
"""A number, which may be followed by its interval or deviation, or a missing one."""

UNNAMED = re.compile(r"_(child|container)\d+|_nolegend_")
"""Labels that matplotlib gives to what has none."""

POINT_COLUMNS = ("plot", "panel", "curve", "x_name", "x", "y_name", "y", "low", "high")

PointRow = dict[str, object]


def latex_table(rows: Sequence[Mapping[str, str]], notes: Iterable[str] = ()) -> str:
    """A table with the rules of the package booktabs, with notes below; to be put into a ``table`` with a caption."""
    columns = "".join("r" if all(NUMBER.fullmatch(row[title]) for row in rows) else "l" for title in rows[0])
    lines = [f"\\begin{{tabular}}{{{columns}}}", "\\toprule", _latex_row(rows[0]), "\\midrule"]
    lines += [_latex_row(row.values()) for row in rows]
    lines += ["\\bottomrule", "\\end{tabular}"]
    lines += [f"\\par\\smallskip{{\\footnotesize {latex_escape(note)}\\par}}" for note in notes]
    return "\n".join(lines) + "\n"


def _latex_row(texts: Iterable[str]) -> str:
    return " & ".join(map(latex_escape, texts)) + r" \\"


def latex_escape(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(LATEX.get(character, character) for character in text)


def plotted_points(plots: Mapping[str, Figure]) -> list[PointRow]:
    """Every point of every curve, bar and map of the plots, as drawn, with the ends of its interval where it has one.

    Curves are named by their labels, of which those with an underscore before them are not in the legend.
    """
    rows = []
    for name, figure in plots.items():
        y_name = ""
        for axes in figure.axes:
            if axes.get_visible() and axes.get_label() != "<colorbar>":
                y_name = axes.get_ylabel() or y_name  # panels that share an axis name it once
                about = {"plot": name, "panel": axes.get_title(), "x_name": axes.get_xlabel(), "y_name": y_name}
                rows += [dict.fromkeys(POINT_COLUMNS, "") | about | point for point in _points_of(axes)]
    return rows


def _points_of(axes: Any) -> Iterator[PointRow]:
    from matplotlib.container import BarContainer, ErrorbarContainer

    ticks = [tick.get_text().replace("\n", " ") for tick in axes.get_xticklabels()]
    for container in axes.containers:
        curve = {"curve": _curve_name(container.get_label())}
        if isinstance(container, ErrorbarContainer):
            errorbar: Any = container.lines
            line, _, bars = errorbar
            ends = [segment[:, 1] for bar in bars for segment in bar.get_segments()]
            for number, (x, y) in enumerate(zip(*line.get_data(), strict=True)):
                low, high = ends[number] if number < len(ends) else (y, y)
                interval = {"low": low, "high": high} if low < high else {}
                yield {**curve, "x": x, "y": y, **interval}
        elif isinstance(container, BarContainer):
            for tick, bar in zip(ticks, container.patches, strict=False):
                yield {**curve, "x": tick, "y": bar.get_height()}
    for line in axes.lines:
        if not UNNAMED.fullmatch(str(line.get_label())):
            for x, y in zip(*line.get_data(), strict=True):
                yield {"curve": _curve_name(line.get_label()), "x": x, "y": y}
    for image in axes.images:
        names = [tick.get_text() for tick in axes.get_yticklabels()]
        for name, values in zip(names, image.get_array(), strict=False):
            for tick, value in zip(ticks, values, strict=False):
                if value == value:  # not a grid that did not run
                    yield {"curve": f"{axes.get_ylabel()} = {name}", "y_name": "", "x": tick, "y": value}


def _curve_name(label: object) -> str:
    text = str(label)
    return "" if UNNAMED.fullmatch(text) else text.removeprefix("_")
