"""Pictures of schedules: one scale for all methods, and text that can be read in a column of a page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from hybridnn.drawing import shapes
from hybridnn.drawing.picture import lay_out, picture_bytes, svg_text
from hybridnn.drawing.timelines import ScheduleTimeline, schedule
from hybridnn.errors import SettingError
from hybridnn.pipeline.schedules.methods import METHODS
from reference.pictures import COLUMN, least_points_of_svg

SVG = "{http://www.w3.org/2000/svg}"


def widths(svg: str) -> list[tuple[float, float]]:
    """Duration, by its tooltip, and width of every box."""
    found = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        rect, title = group.find(f"{SVG}rect"), group.findtext(f"{SVG}title")
        if rect is not None and title:
            start, end = re.findall(r"time ([\d.]+) to ([\d.]+)", title)[0]
            found.append((float(end) - float(start), float(rect.attrib["width"])))
    return found


def labels(svg: str) -> list[list[str]]:
    """Texts of every box."""
    groups = ElementTree.fromstring(svg).iter(f"{SVG}g")
    return [[text.text or "" for text in group.iter(f"{SVG}text")] for group in groups if group.findtext(f"{SVG}title")]


def examples() -> dict[str, ScheduleTimeline]:
    """The pictures of the documentation."""
    made = {}
    for name, method in METHODS.items():
        options: dict[str, Any] = {"microbatches": 8} if method.cuts_minibatches else {"minibatches": 5, "backward": 1}
        made[name] = schedule(name, stages=4, **options)
    return made


@pytest.mark.parametrize("forward", [1.0, 0.01])
def test_all_methods_have_one_scale(forward: float) -> None:
    scales = set()
    for method in METHODS:
        made = schedule(method, forward=forward, backward=2 * forward)
        scales |= {round(width * forward / duration, 2) for duration, width in widths(made._repr_svg_())}
    assert len(scales) == 1


def expected_labels(made: ScheduleTimeline) -> list[list[str]]:
    boxes = [box for row in made.drawing.rows for box in row.boxes]
    return [[text for text in (box.label, box.version) if text] for box in boxes]


def test_in_a_column_text_has_5_points_and_more_and_little_is_left_out() -> None:
    for name, made in examples().items():
        assert labels(svg_text(made.drawing)) == expected_labels(made), name
        svg = picture_bytes(made.drawing, "svg", COLUMN).decode()
        assert float(ElementTree.fromstring(svg).attrib["width"]) == pytest.approx(COLUMN / 2.54 * 96, abs=0.001)
        assert least_points_of_svg(svg) >= 5 - 1e-3, name
        found, expected = labels(svg), expected_labels(made)
        if name in ("pipedream", "vanilla", "spectrain"):
            assert found == expected, name
        elif name != "interleaved":  # a chunk's pass is half as wide
            assert [texts[0] for texts in found] == [texts[0] for texts in expected], name


def test_a_large_schedule_has_a_smaller_scale() -> None:
    root = ElementTree.fromstring(svg_text(schedule("1f1b", stages=4, microbatches=200).drawing))
    assert 6000 < float(root.attrib["width"]) < 6200


def test_a_drawing_has_the_format_of_its_name(tmp_path: Path) -> None:
    made = schedule("1f1b", stages=2)
    for name, beginning in (("a.png", b"\x89PNG"), ("a.svg", b"<svg"), ("a.pdf", b"%PDF")):
        made.draw(tmp_path / name, width=COLUMN)
        assert (tmp_path / name).read_bytes().startswith(beginning)
    assert imread(tmp_path / "a.png").shape[1] == pytest.approx(COLUMN / 2.54 * 150, abs=1)
    with pytest.raises(SettingError, match="ends with"):
        made.draw(tmp_path / "a.gif")


def test_messages_are_drawn_in_every_format() -> None:
    """The middles of the arrows are as dark as ink, which they are not without messages."""
    made = schedule("1f1b", stages=2, microbatches=2, message=1.0)
    picture = lay_out(made.drawn(messages=True))
    lines = [
        item.shapes[0]
        for item in picture.shapes
        if isinstance(item, shapes.ShapeGroup) and isinstance(item.shapes[0], shapes.Path)
    ]
    assert len(lines) == svg_text(made.drawn(messages=True)).count("<polygon") == 4
    pixels = imread(BytesIO(picture.encoded("png")))
    for line in lines:
        (x1, y1), (x2, y2) = line.points
        x, y = (round(150 / 96 * (one + other) / 2) for one, other in ((x1, x2), (y1, y2)))
        assert pixels[y - 1 : y + 2, x - 1 : x + 2, :3].min() < 0.3
    assert picture_bytes(made.drawn(messages=True), "pdf").startswith(b"%PDF")
