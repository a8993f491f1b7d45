"""LaTeX tables and the points of plots."""

from __future__ import annotations

import math
import re

from hybridnn.drawing.figures import new_figure
from hybridnn.study.report_files import latex_escape, latex_table
from hybridnn.study.report_plots import plotted_points


def test_latex_table_has_the_rules_of_booktabs_and_numbers_at_the_right() -> None:
    rows = [
        {"method": "ddg", "speed-up": "1.5 [1.2, 1.8]", "R²": "-"},
        {"method": "fr_2", "speed-up": "-", "R²": "0.9 ± 0.1"},
    ]
    assert latex_table(rows, ["100 % of it"]).splitlines() == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"method & speed-up & R\textsuperscript{2} \\",
        r"\midrule",
        r"ddg & 1.5 [1.2, 1.8] & - \\",
        r"fr\_2 & - & 0.9 $\pm$ 0.1 \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip{\footnotesize 100 \% of it\par}",
    ]


def test_characters_that_latex_reads_otherwise_are_escaped() -> None:
    text = latex_escape("".join(f"a{character}b" for character in "&%$#_{}~^\\"))
    assert text.count("a\\") == 10
    assert not re.search(r"(?<!\\)[&%$#_~^]", text)


def test_points_of_every_kind_of_plot_are_listed_with_their_intervals() -> None:
    figure = new_figure(4, 4)
    left, right = figure.subplots(1, 2)
    left.errorbar([1, 2], [10.0, 20.0], yerr=[[1, 0], [2, 0]], capsize=2, label="measured")
    left.plot([1, 2], [9, 19], label="_predicted, measured")
    left.plot([1, 2], [0, 0])  # a line without a name is decoration
    left.axhline(1)
    left.set_xlabel("ranks")
    left.set_ylabel("seconds")
    left.set_title("one")
    right.bar([0, 1], [3, 4], label="computing")
    right.set_xticks([0, 1], ["1\n1x1", "2\n2x1"])
    rows = plotted_points({"p": figure})
    assert [(row["curve"], row["x"], row["y"], row["low"], row["high"]) for row in rows] == [
        ("measured", 1, 10, 9, 12),
        ("measured", 2, 20, "", ""),
        ("predicted, measured", 1, 9, "", ""),
        ("predicted, measured", 2, 19, "", ""),
        ("computing", "1 1x1", 3, "", ""),
        ("computing", "2 2x1", 4, "", ""),
    ]
    assert (rows[0]["plot"], rows[0]["panel"], rows[0]["x_name"], rows[0]["y_name"]) == ("p", "one", "ranks", "seconds")
    assert rows[-1]["y_name"] == "seconds"


def test_map_is_listed_without_its_empty_fields() -> None:
    figure = new_figure(4, 4)
    axes = figure.subplots()
    image = axes.imshow([[1.0, 2.0], [math.nan, 4.0]])
    axes.set_xticks([0, 1], ["1", "2"])
    axes.set_yticks([0, 1], ["4", "8"])
    axes.set_ylabel("batch")
    figure.colorbar(image, ax=axes)
    rows = plotted_points({"map": figure})
    assert [(row["curve"], row["x"], row["y"]) for row in rows] == [
        ("batch = 4", "1", 1),
        ("batch = 4", "2", 2),
        ("batch = 8", "2", 4),
    ]
