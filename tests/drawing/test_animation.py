"""The page of a schedule: what it shows of weights, memory and messages, and that it is complete in itself."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybridnn.drawing.animation import Stored, html_page
from hybridnn.drawing.timelines import schedule
from hybridnn.errors import SettingError
from reference.animations import moments, shown

STAGES = 4


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script id="schedule" type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(found[1])


def held(items: Iterable[Stored], time: float) -> tuple[str, ...]:
    return tuple(item.label for item in items if item.start <= time < item.end)


@pytest.mark.parametrize(
    ("method", "sizes"),
    [
        ("1f1b", {"microbatches": 6}),
        ("gpipe", {"microbatches": 6, "weight_grad": "merged"}),
        ("zb-h1", {"microbatches": 6}),
        ("ddg", {}),
        ("fr", {}),
        ("pipedream-vsync", {"message": 0.5}),
        ("vanilla", {}),
        ("spectrain", {"forward": 1.5, "backward": 1.5}),
    ],
)
def test_stages_hold_what_later_passes_need(method: str, sizes: dict[str, Any]) -> None:
    made = schedule(method, stages=STAGES, **sizes)
    peaks = []
    for stage, found in enumerate(made.animation.stages):
        merged = "weight_grad" in sizes
        for time in moments(made.timeline):
            expected = shown(made.timeline, stage, time)
            assert held(found.weights, time) == expected.weights
            if not merged:  # the product over all microbatches needs them until then, which the plan below counts
                assert held(found.activations, time) == expected.activations
        peaks.append(
            tuple(
                max(len(held(items, time)) for time in moments(made.timeline))
                for items in (found.activations, found.weights)
            )
        )
    assert peaks == [(plan.peak_live_activations, plan.peak_weight_versions) for plan in made.timeline.plans]


def test_features_replay_holds_inputs_until_they_are_recomputed() -> None:
    made = schedule("fr", stages=STAGES)
    for stage, found in enumerate(made.animation.stages):
        peak = max(len(held(found.inputs, time)) for time in moments(made.timeline))
        # Kang 2019, Table 1; the last one recomputes nothing.
        assert peak == (STAGES - stage if stage < STAGES - 1 else 0)
    assert not any(stage.inputs for stage in schedule("pipedream", stages=STAGES).animation.stages)


@pytest.mark.parametrize(("method", "chunks"), [("1f1b", 1), ("interleaved", 2), ("pipedream-2bw", 1)])
def test_every_message_leaves_after_its_computation_and_is_used_by_the_next_one(method: str, chunks: int) -> None:
    made = schedule(method, stages=3, minibatches=2, microbatches=6, chunks=chunks, message=0.25)
    virtual, messages = 3 * chunks, made.animation.messages
    assert len(messages) == 2 * (virtual - 1) * 2 * 6
    starts = [{(box.kind, box.start) for box in row.boxes} for row in made.drawing.rows]
    ends = [{(box.kind, box.end) for box in row.boxes} for row in made.drawing.rows]
    for message in messages:
        kind = "backward" if message.gradients else "forward"
        assert (kind, message.start) in ends[message.sender]
        assert (kind, message.use) in starts[message.receiver]
        assert message.arrival == message.start + 0.25 <= message.use
        assert (message.receiver - message.sender) % 3 == (2 if message.gradients else 1)


def test_the_data_in_the_page_are_those_of_the_animation() -> None:
    made = schedule("pipedream", stages=3, minibatches=5)
    found = data_of(html_page(made.animation))
    for row, drawn in zip(found["rows"], made.drawing.rows, strict=True):
        boxes = [(start, end, found["kinds"][kind]["name"], *texts) for start, end, kind, *texts in row["boxes"]]
        assert boxes == [(box.start, box.end, box.kind, box.label, box.version) for box in drawn.boxes]
    assert found["makespan"] == made.makespan
    assert found["stages"][2]["weights"][-1] == ["v5", made.timeline.stages[2][-1].end, None]
    assert len(found["messages"]) == 2 * 2 * 5


def test_the_page_loads_nothing() -> None:
    page = html_page(schedule("zb-h1", stages=3, microbatches=4).animation)
    assert not re.search(r"https?:|\bsrc\s*=|url\(|@import|\bimport\b|fetch\(|XMLHttpRequest", page)
    assert re.findall(r"<link [^>]*>", page) == ['<link rel="icon" href="data:,">']
    assert "{{" not in page


def test_a_name_cannot_add_elements_to_the_page() -> None:
    made = schedule("1f1b", stages=2, microbatches=2).animation
    hostile = "</script><script>alert(1)</script><!-- {{ data }}"
    page = html_page(replace(made, drawing=replace(made.drawing, title=hostile)))
    assert page.count("<script") == 2
    assert "<!-- " not in page
    assert data_of(page)["title"] == hostile


def test_a_page_is_a_file_whose_name_says_so(tmp_path: Path) -> None:
    made = schedule("1f1b", stages=2, microbatches=2)
    made.animate(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == html_page(made.animation)
    with pytest.raises(SettingError, match=r"ends with \.html"):
        made.animate(tmp_path / "page.svg")
    with pytest.raises(SettingError, match="cannot be written"):
        made.animate(tmp_path / "missing" / "page.html")
