"""The page of a schedule in a browser: every step, playing, sizes, colours, and what assistive technology reads.

The state that the page shows is compared with the simulated schedule, from which `reference.animations` derives it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridnn.drawing.timelines import ScheduleTimeline, schedule
from mpi_runner.slowness import deadline
from reference.animations import Shown, at_barrier, moments, shown, unread
from reference.pictures import contrast, luminance

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.browser

METHODS: dict[str, dict[str, Any]] = {
    "zb-h1": {"microbatches": 5},
    "ddg": {"minibatches": 5, "backward": 1.5, "barriers": True},
    "fr": {"minibatches": 5},
    "spectrain": {"minibatches": 6, "message": 0.5},
}

STATE = """() => [...document.querySelectorAll(".stage")].map(({ dataset }) =>
    [dataset.kind, dataset.label, dataset.version, dataset.current, dataset.weights, dataset.activations || ""])"""
TOKENS = """() => [...lanes].flatMap(([ends, lane]) => [...lane.querySelectorAll(".token")].map((token) =>
    [+ends.split(" ")[1], ends.endsWith(" 1"), token.textContent]))"""
UNNAMED = """() => [...document.querySelectorAll("input, select")].filter(
  (control) => !control.labels.length && !control.ariaLabel).length"""
COLOURS = """(selector) => [...document.querySelectorAll(selector)].map((element) => {
  const colour = getComputedStyle(element).color;
  let around = element;
  while (getComputedStyle(around).backgroundColor === "rgba(0, 0, 0, 0)") around = around.parentElement;
  return [colour, getComputedStyle(around).backgroundColor];
})"""
DRAWN = """() => [getComputedStyle(document.body).backgroundColor,
  getComputedStyle(document.querySelector("#legend span:nth-child(2) i")).backgroundColor, chart.toDataURL()]"""
AT_BARRIER = """() => [...document.querySelectorAll(".stage")].filter((card) =>
    card.querySelector(".number").textContent === "a barrier").map((card) => +card.dataset.stage)"""
LEAST_CONTRAST = 4.5  # of text, Web Content Accessibility Guidelines 2.2, criterion 1.4.3


@contextmanager
def opened(browser: Browser, folder: Path, made: ScheduleTimeline, **options: Any) -> Iterator[Page]:
    """Open the page of a schedule; nothing may be requested or complained about until it is closed."""
    file = folder / "page.html"
    made.animate(file)
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
    context.set_default_timeout(1000 * deadline(30))
    page, problems, requests = context.new_page(), [], []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    yield page
    assert problems == []
    assert [url for url in requests if not url.startswith("data:")] == [file.as_uri()]
    context.close()


def states(page: Page) -> list[Shown]:
    """What the cards of all stages show."""
    return [Shown(*texts[:4], *(tuple(text.split()) for text in texts[4:])) for texts in page.evaluate(STATE)]


def expected(made: ScheduleTimeline, time: float) -> list[Shown]:
    return [shown(made.timeline, stage, time) for stage in range(made.timeline.schedule.stages)]


def time_of(page: Page) -> float:
    """The time that the slider has."""
    return float(page.get_by_role("slider", name="Time").input_value())


def next_frames(page: Page, count: int) -> None:
    """Wait until the browser has drawn some frames."""
    page.evaluate(
        "count => new Promise(done => { const next = () => count-- ? requestAnimationFrame(next) : done(); next(); })",
        count,
    )


@pytest.mark.parametrize("method", METHODS)
def test_every_step_shows_what_the_schedule_says(browser: Browser, tmp_path: Path, method: str) -> None:
    made = schedule(method, stages=4, **METHODS[method])
    with opened(browser, tmp_path, made) as page:
        for time in moments(made.timeline):
            assert time_of(page) == pytest.approx(time, abs=1e-6)
            assert states(page) == expected(made, time)
            tokens = sorted((receiver, gradients, label) for receiver, gradients, label in page.evaluate(TOKENS))
            assert set(unread(made.timeline, time)) <= set(tokens)
            assert page.evaluate(AT_BARRIER) == at_barrier(made.timeline, time)
            page.keyboard.press("ArrowRight")
        assert time_of(page) == pytest.approx(made.makespan)
        for time in reversed(moments(made.timeline)[-4:-1]):
            page.get_by_role("button", name="Step back").click()
            assert states(page) == expected(made, time)


def set_time(page: Page, time: float) -> None:
    page.get_by_role("slider", name="Time").fill(str(time))


def is_dim(element: Locator) -> bool:
    return "dim" in (element.get_attribute("class") or "").split()


def test_controls_and_what_they_show(browser: Browser, tmp_path: Path) -> None:
    """The keyboard, names, the slider and the chart, a followed minibatch, the end, the table and the sentence."""
    made = schedule("vanilla", stages=3, minibatches=5)
    with opened(browser, tmp_path, made) as page:
        for name in ("pipeline", "start", "back", "play", "step", "end", "time", "speed", "follow", "future"):
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.id") == name
        names = {"To the start", "Step back", "Play", "Step forward", "To the end"}
        assert {button.get_attribute("aria-label") for button in page.get_by_role("button").all()} == names
        assert page.evaluate(UNNAMED) == 0

        for time in (7.5, 3.25):
            set_time(page, time)
            assert states(page) == expected(made, time)
            value = page.get_by_role("slider", name="Time").get_attribute("aria-valuetext")
            assert value == f"time {time:g} of {made.makespan:g}"
        chart = page.locator("#chart").bounding_box()
        page.mouse.click(chart["x"] + chart["width"] - 2, chart["y"] + 10)
        assert time_of(page) == pytest.approx(made.makespan, rel=0.02)

        page.get_by_label("follow").select_option("3")
        set_time(page, 2.5)
        tiles = {tile.locator(".number").inner_text(): is_dim(tile) for tile in page.locator(".tile:not(.idle)").all()}
        assert tiles == {"3": False, "2": True, "1": True}
        chips = [(chip.inner_text(), is_dim(chip)) for chip in page.locator("[data-stage='0'] .kept").all()]
        assert chips == [("1", True), ("2", True), ("3", False)]

        page.get_by_role("button", name="To the end").click()
        assert states(page) == [Shown("", "", "", "v5", ("v5",), ())] * 3
        caption = page.locator("#caption")
        assert caption.inner_text().startswith("All is done at time 21")
        assert f"{100 * made.bubble_fraction:.1f} %" in caption.inner_text()
        page.get_by_text("All computations as a table").click()
        rows = page.locator("#table tbody tr")
        rows.last.wait_for()
        assert rows.count() == 2 * 3 * 5
        assert rows.first.inner_text().split("\t") == ["stage 0", "0", "1", "forward", "1", "v0"]
        assert page.get_by_role("img", name=re.compile("filled in up to time 21 of 21")).count() == 1
        page.keyboard.press("Home")
        assert states(page) == expected(made, 0.0)

        # Announced unless it plays.
        assert caption.get_attribute("aria-live") == "polite"
        page.get_by_role("button", name="Play").click()
        assert caption.get_attribute("aria-live") == "off"
        page.get_by_role("button", name="Pause").click()
        assert caption.get_attribute("aria-live") == "polite"
        set_time(page, 1.5)
        assert caption.inner_text() == (
            "The pipeline fills: stage 0 takes minibatch 2 forward with v0; stage 1 takes 1 forward with v0; "
            "stage 2 waits."
        )
        set_time(page, 11)
        assert caption.inner_text() == (
            "Every stage has work: stage 0 takes minibatch 2 back with v1, though its forward pass read v0; "
            "stage 1 takes 3 back with v2, though its forward pass read v1; stage 2 takes 4 forward with v3; "
            "stage 2 now has v3."
        )


def test_play_goes_on_and_pause_stops(browser: Browser, tmp_path: Path) -> None:
    made = schedule("1f1b", stages=2, microbatches=40)
    with opened(browser, tmp_path, made) as page:
        assert time_of(page) == 0
        page.keyboard.press(" ")
        page.wait_for_function("now > 0.05")
        page.keyboard.press("+")
        assert page.get_by_label("speed").input_value() == "2"
        page.get_by_role("button", name="Pause").click()
        stopped = time_of(page)
        next_frames(page, 5)
        assert time_of(page) == stopped < made.makespan
        assert states(page) == expected(made, page.evaluate("now"))
        page.get_by_role("button", name="Play").click()
        page.wait_for_function("time => now > time", arg=stopped)
        page.keyboard.press("ArrowRight")
        stopped = time_of(page)
        assert stopped in moments(made.timeline)
        next_frames(page, 5)
        assert time_of(page) == stopped


def test_playing_to_the_end_stops_there_and_starts_anew(browser: Browser, tmp_path: Path) -> None:
    """With reduced motion, it goes from step to step."""
    made = schedule("gpipe", stages=2, microbatches=2)
    with opened(browser, tmp_path, made) as page:
        page.get_by_label("speed").select_option("64")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Play").click()
        page.wait_for_function("now >= makespan && !playing")
        page.get_by_label("speed").select_option("0.25")
        page.get_by_role("button", name="Play").click()
        assert time_of(page) < made.makespan
        page.get_by_role("button", name="Pause").click()
        page.keyboard.press("Home")
        page.emulate_media(reduced_motion="reduce")
        page.get_by_label("speed").select_option("8")
        seen = page.evaluate(
            """() => new Promise((done) => {
              const seen = [];
              const look = () => { seen.push(now); if (playing) requestAnimationFrame(look); else done(seen); };
              play(true);
              look();
            })"""
        )
        assert set(seen) <= set(moments(made.timeline))
        assert seen[-1] == made.makespan


def test_it_fits_into_a_narrow_window(browser: Browser, tmp_path: Path) -> None:
    made = schedule("pipedream", stages=4, minibatches=6)
    with opened(browser, tmp_path, made, viewport={"width": 800, "height": 800}) as page:
        for width in (800, 400):
            page.set_viewport_size({"width": width, "height": 800})
            next_frames(page, 2)
            set_time(page, 12.5)
            assert states(page) == expected(made, 12.5)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.evaluate("pipeline.scrollWidth <= pipeline.clientWidth")
            for button in page.get_by_role("button").all():
                box = button.bounding_box()
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= width
                assert min(box["width"], box["height"]) >= 24  # criterion 2.5.8
            heights = set()
            for time in (0.0, 12.5, made.makespan):
                set_time(page, time)
                heights.add(page.evaluate("document.documentElement.scrollHeight"))
            assert len(heights) == 1  # nothing jumps


def hexadecimal(colour: str) -> str:
    """An opaque CSS colour as ``#rrggbb``."""
    return "#" + "".join(f"{round(float(text)):02x}" for text in re.findall(r"[\d.]+", colour)[:3])


@pytest.mark.parametrize(("method", "sizes"), [("zb-h1", {"microbatches": 8}), ("pipedream", {"minibatches": 8})])
def test_text_is_readable_in_light_and_dark(browser, tmp_path, method, sizes) -> None:
    """The page follows a change; neighbouring versions differ for every kind of sight."""
    made = schedule(method, stages=4, **sizes)
    parts = "h1, .summary, #caption, #clock, .tile .number, .tile .what, .chip, .token, label, dt, dd, summary"
    drawn = {}
    with opened(browser, tmp_path, made, color_scheme="light") as page:
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            next_frames(page, 2)
            found = []
            for time in (5.5, 9.5, 20.5):
                set_time(page, time)
                found += page.evaluate(COLOURS, parts)
            assert len(found) > 60
            assert min(contrast(*map(hexadecimal, colours)) for colours in found) >= LEAST_CONTRAST
            *colours, chart = page.evaluate(DRAWN)
            drawn[scheme] = (*(luminance(hexadecimal(colour)) for colour in colours), chart)
        versions = page.evaluate("VERSIONS")
    light, dark = drawn.values()
    assert light[0] > 0.8 > 0.1 > dark[0]
    if method == "pipedream":
        assert light[1] < dark[1]  # the dark green of backward passes
    assert light[2] != dark[2]
    for (fill, ink), (following, _) in zip(versions, versions[1:] + versions[:1], strict=True):
        assert contrast(fill, ink) >= LEAST_CONTRAST
        assert contrast(fill, following) >= 2  # in lightness, which everyone sees


def test_without_javascript_the_page_says_what_it_needs(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, schedule("gpipe", stages=2), java_script_enabled=False) as page:
        assert "needs JavaScript" in page.locator("noscript p").inner_text()
        assert page.locator("noscript p").is_visible()
        assert not page.locator("#player").is_visible()


def test_thousands_of_instructions(browser: Browser, tmp_path: Path) -> None:
    made = schedule("1f1b", stages=16, microbatches=100)
    with opened(browser, tmp_path, made, viewport={"width": 900, "height": 900}) as page:
        assert page.get_by_label("close up").is_checked()
        for time in (100.0, 250.5):
            set_time(page, time)
            assert states(page) == expected(made, time)
        page.get_by_label("close up").uncheck()
        page.keyboard.press("End")
        assert page.locator("#caption").inner_text().startswith("All is done")


def test_one_product_of_weight_gradients_is_named(browser: Browser, tmp_path: Path) -> None:
    for minibatches, text in ((1, "of all microbatches"), (2, "of all of minibatch 1")):
        made = schedule("gpipe", stages=2, minibatches=minibatches, microbatches=2, weight_grad="merged")
        (time,) = {box.start for box in made.drawing.rows[0].boxes if box.kind == "weight gradient" and box.start < 8}
        with opened(browser, tmp_path, made) as page:
            set_time(page, time)
            assert f"stage 0 computes the weight gradient {text}; " in page.locator("#caption").inner_text()


def test_one_stage_and_passes_without_time(browser: Browser, tmp_path: Path) -> None:
    for stages, passes in ((1, 1.0), (3, 0.0)):
        made = schedule("sequential", stages=stages, minibatches=2, forward=passes, backward=passes)
        with opened(browser, tmp_path, made) as page:
            page.keyboard.press("End")
            assert page.locator("#caption").inner_text().startswith("All is done")
