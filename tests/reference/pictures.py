"""Sizes of the text of pictures, and colours as people see them."""

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLUMN = 8.0  # centimetres
SVG = "{http://www.w3.org/2000/svg}"


def least_points(figure: Any) -> float:
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


Floats = NDArray[np.float64]

SIGHTS = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
"""Matrices of Machado, Oliveira and Fernandes 2009, Table 1, for linear red, green and blue."""

TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


def linear(color: str) -> Floats:
    """Linear red, green and blue of ``#rrggbb``, from 0 to 1."""
    channels = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def luminance(color: str) -> float:
    """Relative luminance, from 0 to 1."""
    return float(TO_XYZ[1] @ linear(color))


def lightness(color: str) -> float:
    """CIE L* of a colour, from 0 to 100."""
    return 116 * luminance(color) ** (1 / 3) - 16


def contrast(one: str, other: str) -> float:
    """Contrast ratio by WCAG 2.2."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def difference(one: str, other: str, sight: str) -> float:
    """Distance in CIE L*a*b* of two colours, for one of `SIGHTS`."""
    return float(np.linalg.norm(_lab(one, sight) - _lab(other, sight)))


def _lab(color: str, sight: str) -> Floats:
    ratios = TO_XYZ @ np.clip(SIGHTS[sight] @ linear(color), 0, 1) / WHITE
    x, y, z = np.where(ratios > (6 / 29) ** 3, np.cbrt(ratios), ratios / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
