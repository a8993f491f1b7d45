"""Drawings of schedules as text and pictures: boxes, versions and messages, one scale, and text for a column."""

import re
from collections import Counter
from io import BytesIO
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from hybridnn import schedule
from hybridnn.drawing import shapes
from hybridnn.drawing.drawing import KINDS, Box, Drawing, Row, axis_ticks, draw_timeline
from hybridnn.drawing.picture import lay_out, picture_bytes, svg_text
from hybridnn.drawing.text import text_lines
from hybridnn.drawing.timelines import ScheduleTimeline
from hybridnn.errors import SettingError
from hybridnn.pipeline.checks.simulated_schedule import Durations, simulate
from hybridnn.pipeline.schedules.methods import METHODS, make_schedule
from reference.pictures import COLUMN, contrast, least_points_of_svg, lightness

SVG = "{http://www.w3.org/2000/svg}"


def drawn(method: str, *durations: float, weight_grad: str = "per-microbatch", **counts: int) -> Drawing:
    schedule = make_schedule(method, weight_grad=weight_grad, **counts)
    return draw_timeline(simulate(schedule, Durations(*durations)))


def text_of(drawing: Drawing, *arguments: int) -> str:
    return "".join(line.plain.rstrip() + "\n" for line in text_lines(drawing, *arguments))


def rows_of(text: str) -> list[str]:
    """Return the rows of the stages without their names."""
    return [line.removeprefix(line[:9]) for line in text.splitlines() if re.match(r"stage \d  ", line)]


def rows(drawing: Drawing, width: int = 100) -> list[str]:
    return rows_of(text_of(drawing, width))


def one_row(*boxes: Box, makespan: float = 0.0, label: str = "stage 0") -> Drawing:
    return Drawing("a title", (Row(label, boxes),), makespan or max(box.end for box in boxes))


def test_text_of_methods() -> None:
    # Kang 2019, Figure 5: four devices, forward and backward of equal length.
    assert rows(drawn("pipedream", 1, 1, 0.5, stages=4, minibatches=5)) == [
        "F1 F2 F3 F4 .........B1 F5 B2 ...B3 ...B4 ...B5",
        "...F1 F2 F3 ......B1 F4 B2 F5 B3 ...B4 ...B5 ...",
        "......F1 F2 ...B1 F3 B2 F4 B3 F5 B4 ...B5 ......",
        ".........F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 .........",
    ]
    # Barriers separate the forward pass from the backward passes; the last stage recomputes nothing.
    assert rows(drawn("fr", 1, 2, 1, stages=2, minibatches=2, barriers=True)) == [
        "F1 .........F2 ...R1 B1=== R2 B2===",
        "...F1 B1=== ...F2 B2=== ............",
    ]
    # Zero bubble, K = 2: weight gradients of stage 1 one microbatch late.
    text = text_of(drawn("zb-h1", 1, 2, 1, stages=2, minibatches=1, microbatches=2))
    assert rows_of(text) == ["F1 F2 ...I1 W1 I2 W2", "...F1 I1 F2 I2 W1 W2"]
    legend = "F forward   I input gradient   W weight gradient   . idle   number: microbatch, from 1"
    assert text.splitlines()[-1] == legend
    # Three stages, three items, forward only: 3 + 3 - 1 slots instead of 9; passes without duration have no box.
    drawing = drawn("gpipe", 1, 0, 0, stages=3, minibatches=1, microbatches=3)
    assert drawing.makespan == 5
    assert rows(drawing) == ["F1 F2 F3 ......", "...F1 F2 F3 ...", "......F1 F2 F3"]


def test_labels_of_microbatches_and_chunks() -> None:
    both = rows(drawn("gpipe", 1, 1, 0.5, stages=1, minibatches=2, microbatches=2))
    assert both == ["F1.1 F1.2 B1.1 B1.2 F2.1 F2.2 B2.1 B2.2"]
    merged = rows(drawn("gpipe", 1, 2, 1, weight_grad="merged", stages=1, minibatches=1, microbatches=2))
    assert merged == ["F1 F2 I1 I2 W===="]
    chunks = drawn("interleaved", 2, 2, 1, stages=2, minibatches=1, microbatches=2, chunks=2)
    assert rows(chunks) == [
        "F1a F2a F1b F2b ....B1b ....B2b B1a B2a",
        "....F1a F2a F1b B1b F2b B2b B1a B2a ....",
    ]


def test_ticks_are_above_their_columns() -> None:
    text = text_of(drawn("pipedream", 1, 1, 0.5, stages=4, minibatches=5))
    axis = next(line for line in text.splitlines() if line.startswith("time"))
    for label in re.finditer(r"\d+", axis):
        assert label.start() == len("stage 0  ") + 3 * int(label.group())
    assert "10" in axis


def test_wide_drawings_continue_below_and_are_cut_with_a_note() -> None:
    boxes = [Box(t, t + 1, str(t), "forward", t) for t in range(60)]
    drawing = one_row(*boxes)
    # "stage 0  " leaves 20 columns: five boxes of four columns a band.
    text = text_of(drawing, 29)
    assert rows_of(text) == [
        "F0= F1= F2= F3= F4=",
        "F5= F6= F7= F8= F9=",
        "F10 F11 F12 F13 F14",
        "F15 F16 F17 F18 F19",
    ]
    assert "shown up to time 20 of 60" in text
    complete = text_of(one_row(*boxes[:20]), 29)
    assert len(rows_of(complete)) == 4
    assert "shown up to" not in complete


@given(
    st.lists(st.tuples(st.floats(1e-6, 10), st.floats(0, 10), st.sampled_from(sorted(KINDS))), min_size=1, max_size=40),
    st.integers(24, 200),
)
def test_measured_times_never_break_the_page(parts: list[tuple[float, float, str]], width: int) -> None:
    boxes, clock = [], 0.0
    for number, (duration, idle, kind) in enumerate(parts):
        boxes.append(Box(clock + idle, clock + idle + duration, str(number), kind, number))
        clock += idle + duration
    drawing = Drawing("measured", (Row("rank 0", tuple(boxes)),), clock, unit="s")
    drawn_lines = [line for line in text_of(drawing, width).splitlines() if line.startswith(("rank", "time"))]
    assert 2 <= len(drawn_lines) <= 8
    assert all(len(line) <= max(width, 24) for line in drawn_lines)
    styles = {str(span.style) for line in text_lines(drawing, width) for span in line.spans}
    assert styles <= {kind.style for kind in KINDS.values()}


def test_a_short_box_or_kind_does_not_determine_the_scale() -> None:
    boxes = [Box(t, t + 1, "1", "forward", 0) for t in range(9)]
    assert rows(one_row(*boxes, Box(9, 9 + 1e-9, "1", "forward", 0), makespan=10)) == ["F1 " * 9 + "..."]
    # Three columns, a letter, a digit and a gap, are a tenth of the long one.
    drawing = one_row(Box(0, 10, "1", "forward", 0), Box(10, 10.001, "1", "backward", 0), Box(10.001, 11, "", "wait"))
    assert rows(drawing) == ["F1" + "=" * 27 + " ~="]


class SvgBox(NamedTuple):
    """A box of a picture, with its texts from above."""

    x: float
    width: float
    fill: str
    texts: list[str]
    tooltip: str


def svg_boxes(text: str) -> list[SvgBox]:
    found = []
    for group in ElementTree.fromstring(text).iter(f"{SVG}g"):
        rect, tooltip = group.find(f"{SVG}rect"), group.findtext(f"{SVG}title")
        if rect is not None and tooltip is not None:
            texts = [item.text or "" for item in group.iter(f"{SVG}text")]
            found.append(
                SvgBox(float(rect.attrib["x"]), float(rect.attrib["width"]), rect.attrib["fill"], texts, tooltip)
            )
    return found


def test_svg_boxes_are_at_their_times() -> None:
    stages, microbatches = 3, 4
    boxes = svg_boxes(svg_text(drawn("gpipe", 1, 2, 1, stages=stages, minibatches=1, microbatches=microbatches)))
    assert len(boxes) == 2 * stages * microbatches
    left, scale = boxes[0].x, boxes[0].width
    found = {(*box.texts, box.fill, round((box.x - left) / scale, 2), round(box.width / scale, 2)) for box in boxes}
    last_forward = stages + microbatches - 1
    forward = {
        (str(m + 1), KINDS["forward"].fill, float(k + m), 1.0) for k in range(stages) for m in range(microbatches)
    }
    backward = {
        (str(m + 1), KINDS["backward"].fill, float(last_forward + 2 * (stages - 1 - k + m)), 2.0)
        for k in range(stages)
        for m in range(microbatches)
    }
    assert found == forward | backward


def test_svg_document() -> None:
    """Tooltips name the weights; a title, a view box and a white background."""
    text = svg_text(drawn("spectrain", 1, 1, 0.5, stages=2, minibatches=3))
    tooltips = [box.tooltip for box in svg_boxes(text)]
    assert "forward of minibatch 3, stage 0, time 4 to 5, weights after 1 updates, predicted 1 ahead" in tooltips
    assert "backward of minibatch 3, stage 0, time 7 to 8, weights after 2 updates" in tooltips
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert root.findtext(f"{SVG}title") == "spectrain: 2 stages, 3 minibatches"
    assert root.attrib["viewBox"] == f"0 0 {root.attrib['width']} {root.attrib['height']}"
    background = root.find(f"{SVG}rect")
    assert (background.attrib["width"], background.attrib["fill"]) == (root.attrib["width"], "#ffffff")
    names = {text.text for text in root.iter(f"{SVG}text")}
    assert {"stage 0", "stage 1", "forward", "backward", "idle", "time", "number: minibatch, from 1"} <= names
    boxes = root.findall(f"{SVG}g/{SVG}g/{SVG}rect")
    right = max(float(rect.attrib["x"]) + float(rect.attrib["width"]) for rect in boxes)
    assert right <= float(root.attrib["width"])


def test_svg_escapes_text_and_leaves_out_labels_that_do_not_fit() -> None:
    boxes = Box(0, 1, "<1>", "forward", 0, "a & b"), Box(1, 2, "2", "forward", 1), Box(2, 2.1, "123", "wait", 2)
    found = svg_boxes(svg_text(one_row(*boxes, label="<rank>")))
    assert [(box.texts, box.tooltip) for box in found] == [(["<1>"], "a & b"), (["2"], "forward"), ([], "wait")]


def test_png_shows_every_box_in_its_colour() -> None:
    content = picture_bytes(drawn("gpipe", 1, 2, 1, stages=2, minibatches=1, microbatches=4), "png")
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    picture = np.rint(imread(BytesIO(content))[..., :3] * 255).astype(int)
    height, width, _ = picture.shape
    assert 150 < height < 600
    assert 700 < width < 2000
    pixels = Counter(map(tuple, picture.reshape(-1, 3).tolist()))
    forward, backward = (
        pixels[tuple(int(KINDS[name].fill[i : i + 2], 16) for i in (1, 3, 5))] for name in ("forward", "backward")
    )
    # As many of both, twice as long; numbers and edges take a little.
    assert backward / forward == pytest.approx(2, rel=0.15)


def test_png_of_a_large_schedule_keeps_its_size() -> None:
    drawing = one_row(*(Box(t, t + 1, str(t), "forward", t) for t in range(1000)))
    width = int.from_bytes(picture_bytes(drawing, "png")[16:20], "big")  # of the header
    assert 1000 < width < 10_000


def test_colours_differ_in_lightness_and_labels_are_readable() -> None:
    computations = [kind for kind in KINDS.values() if kind.computes]
    for one, other in combinations(computations, 2):
        assert abs(lightness(one.fill) - lightness(other.fill)) > 5, (one.name, other.name)
    for kind in KINDS.values():
        assert contrast(kind.ink, kind.fill) > 4.5, kind.name
    assert len({kind.letter for kind in KINDS.values()}) == len(KINDS)


@given(st.floats(1e-6, 1e6), st.integers(2, 50))
def test_ticks_are_few_round_and_on_the_axis(end: float, most: int) -> None:
    times = [time for time, _ in axis_ticks(end, most)]
    assert times[0] == 0
    assert len(times) <= most
    assert times[-1] <= end * (1 + 1e-9)
    if len(times) > 1:
        digits = f"{times[1]:.0e}"[0]
        assert digits in "125"
        assert times[1] == pytest.approx(float(f"{times[1]:.0e}"))
    assert [label for _, label in axis_ticks(10, 6)] == ["0", "2", "4", "6", "8", "10"]


def test_text_has_contrast_on_light_and_dark_pages() -> None:
    root = ElementTree.fromstring(svg_text(drawn("spectrain", 1, 2, 0.5, stages=3, minibatches=4)))
    dark = dict(re.findall(r"\.(hn-[a-z]+) \{ (?:fill|stroke): (#[0-9a-f]{6}) \}", root.findtext(f"{SVG}style") or ""))
    texts = [text for text in root.iter(f"{SVG}text") if "class" in text.attrib]
    assert {text.attrib["class"] for text in texts} == {"hn-ink", "hn-muted"}
    for text in texts:
        assert contrast(text.attrib["fill"], "#ffffff") >= 4.5
        assert contrast(dark[text.attrib["class"]], dark["hn-paper"]) >= 4.5
    light = [
        element for element in root.iter() if element.attrib.get("fill") == "#ffffff" and element.tag != f"{SVG}text"
    ]
    assert all("class" in element.attrib for element in light)


@pytest.mark.parametrize("method", ["zb-h1", "pipedream"])
def test_arrows_lead_from_the_end_of_a_pass_to_the_pass_that_uses_it(method: str) -> None:
    made = schedule(method, stages=3, message=0.25)
    sends = {"forward": 1, "backward": -1, "input gradient": -1}
    times = {
        (sends[item.instruction.name], stage, item.instruction.part): (item.start, item.end)
        for stage, items in enumerate(made.timeline.stages)
        for item in items
        if item.instruction.name in sends
    }
    expected = {
        (stage, stage + step, end, times[step, stage + step, part][0])
        for (step, stage, part), (_, end) in times.items()
        if 0 <= stage + step < 3
    }
    drawing = made.drawn(messages=True)
    assert {(arrow.source, arrow.target, arrow.start, arrow.end) for arrow in drawing.arrows} == expected
    assert svg_text(drawing).count("<polygon") == len(expected)
    assert picture_bytes(drawing, "pdf") == picture_bytes(drawing, "pdf") != picture_bytes(made.drawing, "pdf")
    assert made.drawing.arrows == ()


def test_edges_do_not_hide_short_computations() -> None:
    drawing = one_row(Box(0, 0.5, "", "forward"), Box(0.5, 100, "", "backward"))
    root = ElementTree.fromstring(picture_bytes(drawing, "svg", 8.4))
    fills = [KINDS[name].fill for name in ("forward", "backward")]
    found = {
        rect.get("fill"): rect.get("stroke") for group in root.iter(f"{SVG}g") for rect in group.findall(f"{SVG}rect")
    }
    assert [found[fill] is None for fill in fills] == [True, False]


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
        for box in svg_boxes(made._repr_svg_()):
            start, end = re.findall(r"time ([\d.]+) to ([\d.]+)", box.tooltip)[0]
            scales.add(round(box.width * forward / (float(end) - float(start)), 2))
    assert len(scales) == 1


def expected_labels(made: ScheduleTimeline) -> list[list[str]]:
    boxes = [box for row in made.drawing.rows for box in row.boxes]
    return [[text for text in (box.label, box.version) if text] for box in boxes]


def test_in_a_column_text_has_5_points_and_more_and_little_is_left_out() -> None:
    for name, made in examples().items():
        assert [box.texts for box in svg_boxes(svg_text(made.drawing))] == expected_labels(made), name
        svg = picture_bytes(made.drawing, "svg", COLUMN).decode()
        assert float(ElementTree.fromstring(svg).attrib["width"]) == pytest.approx(COLUMN / 2.54 * 96, abs=0.001)
        assert least_points_of_svg(svg) >= 5 - 1e-3, name
        found, expected = [box.texts for box in svg_boxes(svg)], expected_labels(made)
        if name in ("pipedream", "vanilla", "spectrain"):
            assert found == expected, name
        elif made.timeline.schedule.chunks == 1:  # a chunk's pass is half as wide
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


@pytest.mark.parametrize(
    "method", [name for name, method in METHODS.items() if not (method.exact or method.cuts_minibatches)]
)
def test_boxes_show_the_versions_that_their_passes_read(method: str) -> None:
    made, found = schedule(method, stages=4, minibatches=9), []
    for box in svg_boxes(made._repr_svg_()):
        name, minibatch, stage = re.match(r"(\w+) of minibatch (\d+), stage (\d+)", box.tooltip).groups()  # type: ignore[union-attr]
        assert box.texts[0] == minibatch
        found.append((int(stage), name, int(minibatch) - 1, *box.texts[1:]))
    assert found == [
        (stage, item.instruction.name, item.instruction.minibatch, f"v{item.read.version}" + signed(item.read.ahead))
        for stage, items in enumerate(made.timeline.stages)
        for item in items
        if item.read is not None and item.end > item.start
    ]


def signed(updates: int) -> str:
    """``+2``, ``-1``, or nothing for 0."""
    return f"{updates:+d}" if updates else ""


def test_versions_need_room_and_are_drawn_as_png_too() -> None:
    drawing = schedule("spectrain", stages=4).drawing
    assert drawing.versions == "v2: weights after 2 updates; v2+1: predicted 1 update ahead"
    assert schedule("pipemare", stages=4).drawing.versions.endswith("; v2-1: estimated 1 update back")
    pictures = [ElementTree.fromstring(svg_text(schedule(name).drawing)) for name in ("1f1b", "fr")]
    assert float(pictures[1].attrib["height"]) == float(pictures[0].attrib["height"]) + 4 * 11.0
    assert picture_bytes(drawing, "png").startswith(b"\x89PNG")
