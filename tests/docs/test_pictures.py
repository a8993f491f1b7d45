"""Pictures of the documentation: as the commands draw them, and readable on light and on dark pages."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from hybridnn.drawing.figures import COLORS
from hybridnn.drawing.picture import svg_text
from hybridnn.drawing.timelines import schedule
from reference.pictures import contrast

DOCS = Path(__file__).resolve().parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"

EXACT, WITHOUT_MICROBATCHES = {"microbatches": 8}, {"minibatches": 5, "backward": 1.0}
SCHEDULES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("sequential", "pipedream", "vanilla", "spectrain"), WITHOUT_MICROBATCHES),
    **{name: {**WITHOUT_MICROBATCHES, "barriers": True} for name in ("ddg", "fr")},
    **dict.fromkeys(("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "v-min"), EXACT),
    "searched": {**EXACT, "message": 1.0},
}

BY_HAND = ("process-grid", "one-process", "layer-splits")
"""Pictures whose rules for dark pages are selected by attributes."""


def test_pictures_of_schedules_are_those_of_the_command() -> None:
    stored = {path.stem: path.read_text() for path in (DOCS / "pictures/schedules").glob("*.svg")}
    drawn = {name: svg_text(schedule(name, stages=4, **options).drawing) for name, options in SCHEDULES.items()}
    with_messages = schedule("1f1b", stages=4, microbatches=6, message=0.3).drawn(messages=True)
    assert stored.pop("measured-pipedream").startswith("<svg")
    assert stored == {**drawn, "1f1b-messages": svg_text(with_messages)}


def test_every_svg_has_colours_for_dark_pages() -> None:
    files = sorted([*DOCS.rglob("*.svg"), *(DOCS.parent / "papers").rglob("*.svg")])
    assert len(files) > 30
    assert [path.name for path in files if "prefers-color-scheme: dark" not in path.read_text()] == []


@pytest.mark.parametrize("name", BY_HAND)
def test_texts_of_pictures_made_by_hand_have_contrast_on_light_and_dark_pages(name: str) -> None:
    root = ElementTree.fromstring((DOCS / f"pictures/{name}.svg").read_text())
    dark = dict(re.findall(r'\[fill="(#\w{6})"\] \{ fill: (#\w{6}) \}', root.findtext(f"{SVG}style") or ""))
    assert len(dark) >= 5
    areas = [
        (rect, *(float(rect.get(key, "0")) for key in ("x", "y", "width", "height")))
        for rect in root.iter(f"{SVG}rect")
    ]
    for text in root.iter(f"{SVG}text"):
        x, y = float(text.attrib["x"]), float(text.attrib["y"]) - 4
        below = [
            rect for rect, left, top, width, height in areas if left <= x <= left + width and top <= y <= top + height
        ]
        colors = text.attrib["fill"], below[-1].attrib["fill"]
        assert contrast(*colors) >= 4.5, text.text
        assert contrast(*(dark.get(color, color) for color in colors)) >= 4.5, text.text


@pytest.mark.parametrize("name", ["benchmarks", "strong-scaling", "strong-scaling-efficiency"])
def test_plots_have_the_colours_of_the_list(name: str) -> None:
    drawn = (DOCS / f"pictures/{name}.svg").read_text().split("</style>")[1]
    used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6});? ", drawn))
    greys = {"#ffffff", "#000000", "#5f6b7a", "#d7dce2"}
    assert used - greys <= set(COLORS)
    assert used & set(COLORS)
