"""Pictures of stale methods show the weights that every pass reads."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import pytest

from hybridnn.drawing.picture import picture_bytes, svg_text
from hybridnn.drawing.timelines import schedule

STAGES, MINIBATCHES = 4, 7
SVG = "{http://www.w3.org/2000/svg}"

Rule = Callable[[int, int], int]
"""Version by stage k and minibatch t, both from 0."""


def stale(k: int, t: int) -> int:
    return max(0, t - (STAGES - 1 - k))


def current(k: int, t: int) -> int:
    return t


READS: dict[str, tuple[Rule, Rule]] = {
    "ddg": (stale, stale),
    "fr": (stale, current),
    "pipedream": (stale, stale),
    "vanilla": (stale, current),
    "spectrain": (stale, current),
}
"""Versions of the forward and of the backward pass: Kang 2019, Table 2, and Chen et al. 2018, section 3."""


def shown(svg: str) -> list[tuple[int, str, int, str]]:
    """Stage, kind, minibatch and version of every box of an SVG."""
    found = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        title, texts = group.find(f"{SVG}title"), [item.text or "" for item in group.findall(f"{SVG}text")]
        if title is not None and title.text is not None and len(texts) == 2:
            kind, minibatch, stage = re.match(r"(\w+) of minibatch (\d+), stage (\d+)", title.text).groups()  # type: ignore[union-attr]
            assert texts[0] == minibatch
            found.append((int(stage), kind, int(minibatch) - 1, texts[1]))
    return found


@pytest.mark.parametrize("method", READS)
def test_boxes_show_the_versions_that_the_papers_define(method: str) -> None:
    boxes = shown(schedule(method, stages=STAGES, minibatches=MINIBATCHES)._repr_svg_())
    forward, backward = READS[method]
    for kind, rule in (("forward", forward), ("backward", backward)):
        found = {(k, t): text.split("+")[0] for k, name, t, text in boxes if name == kind}
        assert found == {(k, t): f"v{rule(k, t)}" for k in range(STAGES) for t in range(MINIBATCHES)}


def test_predictions_are_those_of_spectrain_in_a_full_pipeline() -> None:
    """Equations 5 and 6 of Chen et al. 2018: k//2 + K-k-1 updates ahead of the forward pass, k//2 of the backward."""
    boxes = shown(schedule("spectrain", stages=STAGES, minibatches=20)._repr_svg_())
    full = [box for box in boxes if STAGES <= box[2] < 20 - STAGES]
    assert full
    for k, kind, t, text in full:
        ahead = k // 2 + (STAGES - k - 1 if kind == "forward" else 0)
        version = stale(k, t) if kind == "forward" else t
        assert text == (f"v{version}+{ahead}" if ahead else f"v{version}"), (k, kind, t)


def test_estimates_of_pipemare_go_back_to_the_forward_pass() -> None:
    drawn = schedule("pipemare", stages=STAGES, minibatches=9)
    for k, kind, t, text in shown(drawn._repr_svg_()):
        back = t - stale(k, t)
        assert text == (f"v{stale(k, t)}" if kind == "forward" else f"v{t}" + f"-{back}" * (back > 0)), (k, kind, t)
    assert drawn.drawing.versions.endswith("; v2-1: estimated 1 update back")


def test_exact_methods_show_no_versions() -> None:
    for method in ("gpipe", "zb-h1", "sequential"):
        drawing = schedule(method, stages=3).drawing
        assert drawing.versions == ""
        assert not any(box.version for row in drawing.rows for box in row.boxes)


def test_versions_need_room_and_are_drawn_as_png_too() -> None:
    drawing = schedule("spectrain", stages=4).drawing
    assert drawing.versions == "v2: weights after 2 updates; v2+1: predicted 1 update ahead"
    pictures = [ElementTree.fromstring(svg_text(schedule(name).drawing)) for name in ("1f1b", "fr")]
    assert float(pictures[1].attrib["height"]) == float(pictures[0].attrib["height"]) + 4 * 11.0
    assert picture_bytes(drawing, "png").startswith(b"\x89PNG")
