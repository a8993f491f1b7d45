"""Sizes of text in pictures that are printed in a column of a page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN = 8.0  # centimetres
SVG = "{http://www.w3.org/2000/svg}"


def least_points(figure: Figure) -> float:
    """Size of the smallest text of a figure of matplotlib that is scaled to the width of a column."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    # Exponents have seven tenths of the size.
    sizes = [text.get_fontsize() * (0.7 if "^" in text.get_text() else 1) for text in texts]
    return min(sizes) * COLUMN / 2.54 / figure.get_figwidth()


def least_points_of_svg(svg: str) -> float:
    """Size of the smallest text of an SVG that is scaled to the width of a column."""
    root = ElementTree.fromstring(svg)
    width = float(root.attrib["viewBox"].split()[2])
    usual = root.get("font-size", "0")
    sizes = [
        float(re.findall(r"font-size: ([\d.]+)px", text.get("style", ""))[0])
        if "style" in text.attrib
        else float(text.get("font-size", usual))
        for text in root.iter(f"{SVG}text")
    ]
    return min(sizes) / width * COLUMN / 2.54 * 72
