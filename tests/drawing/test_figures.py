"""Figures of matplotlib: dark on dark pages, one list of colours, text that can be read in a column."""

import re
import xml.etree.ElementTree as ElementTree
from functools import cache
from itertools import combinations

import pytest

from hybridnn.drawing.figures import (
    COLORS,
    MUTED,
    ON_LIGHT,
    PART_STYLES,
    column_figure,
    figure_bytes,
    legend_above,
    ratio_tick,
    tidy,
)
from reference.pictures import SIGHTS, contrast, difference, least_points, least_points_of_svg, lightness

SVG = "{http://www.w3.org/2000/svg}"
LEAST_DIFFERENCE = 17.0  # of two colours; Okabe's and Ito's have 17.8, without their yellow


@pytest.mark.parametrize("sight", SIGHTS)
def test_colours_differ_for_every_kind_of_sight(sight: str) -> None:
    for one, other in combinations(COLORS, 2):
        assert difference(one, other, sight) >= LEAST_DIFFERENCE, (one, other)


def test_parts_of_the_time_differ_in_grey() -> None:
    for one, other in combinations(PART_STYLES.values(), 2):
        apart = abs(lightness(one["facecolor"]) - lightness(other["facecolor"]))
        assert one["hatch"] != other["hatch"] or apart >= 20, (one, other)
    for style in PART_STYLES.values():
        assert not style["hatch"] or contrast(style["facecolor"], style["edgecolor"]) >= 2, "hatches can be seen"


@cache
def drawn() -> str:
    """An SVG with everything that figures have: curves, bars, a legend, cells with texts."""
    figure, (curves, bars, cells) = column_figure(1.5, 1.0, 1.5)
    for number, color in enumerate(COLORS):
        curves.plot([1, 2, 3], [number, number + 1, number], color=color, marker="o", label=f"curve {number}")
    curves.plot([1, 3], [0, 8], color="black", label="black")
    curves.set_title("a title")
    curves.set_ylabel("values")
    bars.bar([0, 1], [3, 4], color=COLORS[:2])
    cells.imshow([[0, 1]], cmap="cividis", aspect="auto")
    cells.text(0, 0, "dark", color="white")
    cells.text(1, 0, "light", color=ON_LIGHT)
    for axes in (curves, bars, cells):
        tidy(axes)
    legend_above(figure, curves.get_lines())
    return figure_bytes(figure, "svg").decode()


def dark_rules(svg: str) -> list[tuple[str, str, str, str]]:
    """Element, part of its style, attribute and dark colour of every rule; the first is that of the whole picture."""
    text = svg[svg.index("@media (prefers-color-scheme: dark) {") : svg.index("</style>")]
    found = [("", "", *re.findall(r"\.hn-figure \{ (fill): (#[0-9a-f]{6}) \}", text)[0])]
    rule = r"\.hn-figure (\w*)\[style\*='([^']*)'\] \{ (\w+): (#[0-9a-f]{6}) !important \}"
    return [*found, *re.findall(rule, text)]


def dark_color(element: ElementTree.Element, attribute: str, rules: list[tuple[str, str, str, str]]) -> str:
    """The colour on a dark page by those rules; empty for none."""
    style = element.get("style", "")
    for name, part, changed, color in rules[1:]:
        if name in ("", element.tag.removeprefix(SVG)) and part in style and changed == attribute:
            return color
    own = re.findall(rf"{attribute}: (#[0-9a-f]{{6}}|none)", style)
    return own[0] if own else rules[0][3] if attribute == "fill" else ""


def test_text_and_lines_have_contrast_on_light_and_dark_pages() -> None:
    svg = drawn()
    rules, root = dark_rules(svg), ElementTree.fromstring(svg)
    paper = next(path for path in root.iter(f"{SVG}path") if "fill: #ffffff" in path.get("style", ""))
    dark_paper = dark_color(paper, "fill", rules)
    assert contrast(dark_paper, "#ffffff") > 15
    texts = {text.text: text for text in root.iter(f"{SVG}text")}
    assert {"a title", "values", "curve 0", "dark", "light", "0"} <= set(texts)
    for words, text in texts.items():
        light = (re.findall(r"fill: (#[0-9a-f]{6})", text.get("style", "")) or ["#000000"])[0]
        if words in ("dark", "light"):  # on cells, which are the same on both pages
            assert dark_color(text, "fill", rules) == light
        else:
            assert contrast(light, "#ffffff") >= 4.5
            assert contrast(dark_color(text, "fill", rules), dark_paper) >= 4.5
    lines = [path for path in root.iter(f"{SVG}path") if "stroke-width: 1.5" in path.get("style", "")]
    assert len(lines) >= len(COLORS) + 1
    for line in lines:
        assert contrast(dark_color(line, "stroke", rules), dark_paper) >= 2.5


def test_the_colours_of_other_pictures_of_a_page_stay() -> None:
    selectors = re.findall(r"(?<=[{}] )[^{}]+(?= \{)", drawn().split("@media")[1].split("</style>")[0])
    assert len(selectors) > 5
    assert all(selector.startswith(".hn-figure") for selector in selectors[1:]), selectors
    assert '<svg class="hn-figure" ' in drawn()


def test_text_can_be_read_in_a_column() -> None:
    figure, (axes, _) = column_figure(1.0, 1.0)
    axes.plot([1, 2], [1, 2], color=MUTED, label="line")
    axes.set_title("a title")
    for panel in figure.axes:
        tidy(panel)
    legend_above(figure, axes.get_lines())
    assert least_points(figure) >= 6
    assert least_points_of_svg(figure_bytes(figure, "svg").decode()) >= 6


def test_ratios_are_whole_numbers_or_parts() -> None:
    assert [ratio_tick(value) for value in (2.0**-7, 0.5, 1.0, 32.0, 0.0)] == ["1/128", "1/2", "1", "32", "0"]


@pytest.mark.parametrize("entries", [2, 16])
def test_a_long_legend_makes_the_figure_higher_and_no_panel_lower(entries: int) -> None:
    figure, (axes,) = column_figure(2.3)
    for number in range(entries):
        axes.plot([1, 2], [number, 1], label=f"a family of layouts, width {number}")
    tidy(axes)
    legend_above(figure, axes.get_lines())
    figure.draw_without_rendering()
    assert axes.get_window_extent().height / figure.dpi >= 1.3, "inches"
