"""The page of a schedule in a browser: every step, playing, sizes, colours, and what assistive technology reads.

The state that the page shows is compared with the simulated schedule, from which `reference.animations` derives it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from hybridnn.pipeline.drawing.html import write_html
from hybridnn.pipeline.timelines import ScheduleTimeline, schedule
from mpi_runner.slowness import deadline
from reference.animations import Shown, at_barrier, moments, shown, unread

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")

METHODS: dict[str, dict[str, Any]] = {
    "gpipe": {"microbatches": 5},
    "1f1b": {"microbatches": 5},
    "zb-h1": {"microbatches": 5},
    "pipedream": {"minibatches": 6},
    "ddg": {"minibatches": 5, "backward": 1.5},
    "fr": {"minibatches": 5},
    "spectrain": {"minibatches": 6, "message": 0.5},
}

STATE = """() => [...document.querySelectorAll(".stage")].map(({ dataset }) =>
    [dataset.kind, dataset.label, dataset.version, dataset.current, dataset.weights, dataset.activations || ""])"""
TOKENS = """() => [...lanes].flatMap(([ends, lane]) => [...lane.querySelectorAll(".token")].map((token) =>
    [+ends.split(" ")[1], ends.endsWith(" 1"), token.textContent]))"""
AT_BARRIER = """() => [...document.querySelectorAll(".stage")].filter((card) =>
    card.querySelector(".number").textContent === "a barrier").map((card) => +card.dataset.stage)"""
LEAST_CONTRAST = 4.5  # of text, Web Content Accessibility Guidelines 2.2, criterion 1.4.3


def cannot_run(reason: str) -> NoReturn:
    """Skip the tests, or fail where `.ci/browser` has found a browser."""
    if os.environ.get("HYBRIDNN_TEST_BROWSER") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return a Chromium of this machine, or the one that Playwright has installed."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        cannot_run("needs playwright")
    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, PROGRAMS)), playwright.chromium.executable_path)
        if not Path(found).exists():
            cannot_run("no browser: install chromium")
        # Chromium refuses root, unless without its sandbox; the pages are ours.
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield launched
        launched.close()


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


def test_at_the_end_every_instruction_is_done(browser: Browser, tmp_path: Path) -> None:
    made = schedule("pipedream", stages=3, minibatches=5)
    with opened(browser, tmp_path, made) as page:
        page.get_by_role("button", name="To the end").click()
        assert states(page) == [Shown("", "", "", "v5", ("v5",), ())] * 3
        caption = page.locator("#caption").inner_text()
        assert caption.startswith("All is done at time 21")
        assert f"{100 * made.bubble_fraction:.1f} %" in caption
        page.get_by_text("All computations as a table").click()
        rows = page.locator("#table tbody tr")
        rows.last.wait_for()
        assert rows.count() == 2 * 3 * 5
        assert rows.first.inner_text().split("\t") == ["stage 0", "0", "1", "forward", "1", "v0"]
        assert page.get_by_role("img", name=re.compile("filled in up to time 21 of 21")).count() == 1
        page.keyboard.press("Home")
        assert states(page) == expected(made, 0.0)


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
    made = schedule("gpipe", stages=2, microbatches=2)
    with opened(browser, tmp_path, made) as page:
        page.get_by_label("speed").select_option("64")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Play").click()
        page.wait_for_function("now >= makespan && !playing")
        page.get_by_label("speed").select_option("0.25")
        page.get_by_role("button", name="Play").click()
        assert time_of(page) < made.makespan


def test_reduced_motion_goes_from_step_to_step(browser: Browser, tmp_path: Path) -> None:
    made = schedule("gpipe", stages=2, microbatches=2)
    with opened(browser, tmp_path, made, reduced_motion="reduce") as page:
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


def test_slider_and_chart_set_any_time(browser: Browser, tmp_path: Path) -> None:
    made = schedule("ddg", stages=3, minibatches=5)
    with opened(browser, tmp_path, made) as page:
        slider = page.get_by_role("slider", name="Time")
        for time in (7.5, 3.25):
            slider.fill(str(time))
            assert states(page) == expected(made, time)
            assert slider.get_attribute("aria-valuetext") == f"time {time:g} of {made.makespan:g}"
        chart = page.locator("#chart").bounding_box()
        assert chart is not None
        page.mouse.click(chart["x"] + chart["width"] - 2, chart["y"] + 10)
        assert time_of(page) == pytest.approx(made.makespan, rel=0.02)


def test_a_followed_minibatch_alone_is_not_dimmed(browser: Browser, tmp_path: Path) -> None:
    made = schedule("pipedream", stages=3, minibatches=5)
    with opened(browser, tmp_path, made) as page:
        page.get_by_label("follow").select_option("3")
        page.get_by_role("slider", name="Time").fill("2.5")
        tiles = page.locator(".tile:not(.idle)")
        dim = {
            tile.locator(".number").inner_text(): "dim" in (tile.get_attribute("class") or "") for tile in tiles.all()
        }
        assert dim == {"3": False, "2": True, "1": True}
        chips = page.locator("[data-stage='0'] .kept").all()
        assert [(chip.inner_text(), "dim" in (chip.get_attribute("class") or "")) for chip in chips] == [
            ("1", True),
            ("2", True),
            ("3", False),
        ]


@pytest.mark.parametrize("width", [400, 800])
def test_it_fits_into_a_narrow_window(browser: Browser, tmp_path: Path, width: int) -> None:
    made = schedule("pipedream", stages=4, minibatches=6)
    with opened(browser, tmp_path, made, viewport={"width": width, "height": 800}) as page:
        page.get_by_role("slider", name="Time").fill("12.5")
        assert states(page) == expected(made, 12.5)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate("pipeline.scrollWidth <= pipeline.clientWidth")
        for button in page.get_by_role("button").all():
            box = button.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            assert min(box["width"], box["height"]) >= 24  # criterion 2.5.8
        heights = []
        for time in ("0", "12.5", str(made.makespan)):
            page.get_by_role("slider", name="Time").fill(time)
            heights.append(page.evaluate("document.documentElement.scrollHeight"))
        assert len(set(heights)) == 1  # nothing jumps


def luminance(colour: str) -> float:
    """Relative luminance of a CSS colour."""
    channels = [float(text) / 255 for text in re.findall(r"[\d.]+", colour)[:3]]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


COLOURS = """(selector) => [...document.querySelectorAll(selector)].map((element) => {
  const colour = getComputedStyle(element).color;
  let around = element;
  while (getComputedStyle(around).backgroundColor === "rgba(0, 0, 0, 0)") around = around.parentElement;
  return [colour, getComputedStyle(around).backgroundColor];
})"""


DRAWN = """() => [getComputedStyle(document.body).backgroundColor,
  getComputedStyle(document.querySelector("#legend span:nth-child(2) i")).backgroundColor, chart.toDataURL()]"""
VERSION_COLOURS = """() => VERSIONS.map((pair) => pair.map(
  (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)).join(" ")))"""
UNNAMED = """() => [...document.querySelectorAll("input, select")].filter(
  (control) => !control.labels.length && !control.ariaLabel).length"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(browser: Browser, tmp_path: Path, scheme: str) -> None:
    made = schedule("zb-h1", stages=4, microbatches=8)
    with opened(browser, tmp_path, made, color_scheme=scheme) as page:
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (luminance(background) < 0.1) == (scheme == "dark")
        found = []
        for time in ("5.5", "9.5", "20.5"):
            page.get_by_role("slider", name="Time").fill(time)
            parts = "h1, .summary, #caption, #clock, .tile .number, .tile .what, .chip, .token, label, dt, dd, summary"
            found += page.evaluate(COLOURS, parts)
        assert len(found) > 60
        assert min(contrast(text, behind) for text, behind in found) >= LEAST_CONTRAST


def test_the_page_follows_a_change_to_dark(browser: Browser, tmp_path: Path) -> None:
    made = schedule("pipedream", stages=2, minibatches=4)
    with opened(browser, tmp_path, made, color_scheme="light") as page:
        page.keyboard.press("End")
        light = page.evaluate(DRAWN)
        page.emulate_media(color_scheme="dark")
        next_frames(page, 2)
        dark = page.evaluate(DRAWN)
        assert luminance(light[0]) > 0.8 > 0.1 > luminance(dark[0])
        assert luminance(light[1]) < luminance(dark[1])  # the dark green of backward passes
        assert light[2] != dark[2]


def test_neighbouring_versions_differ_for_every_kind_of_sight(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, schedule("pipedream", stages=2)) as page:
        versions = page.evaluate(VERSION_COLOURS)
    for (fill, ink), (following, _) in zip(versions, versions[1:] + versions[:1], strict=True):
        assert contrast(fill, ink) >= LEAST_CONTRAST
        assert contrast(fill, following) >= 2  # in lightness, which everyone sees


def test_the_keyboard_reaches_every_control_and_each_has_a_name(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, schedule("vanilla", stages=3, minibatches=5)) as page:
        wanted = ["pipeline", "start", "back", "play", "step", "end", "time", "speed", "follow", "future"]
        for name in wanted:
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.id") == name
        names = {"To the start", "Step back", "Play", "Step forward", "To the end"}
        assert {button.get_attribute("aria-label") for button in page.get_by_role("button").all()} == names
        assert page.evaluate(UNNAMED) == 0


def test_the_sentence_says_what_happens_and_is_announced_unless_it_plays(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, schedule("vanilla", stages=3, minibatches=5)) as page:
        caption = page.locator("#caption")
        assert caption.get_attribute("aria-live") == "polite"
        page.get_by_role("button", name="Play").click()
        assert caption.get_attribute("aria-live") == "off"
        page.get_by_role("button", name="Pause").click()
        assert caption.get_attribute("aria-live") == "polite"
        slider = page.get_by_role("slider", name="Time")
        slider.fill("1.5")
        assert caption.inner_text() == (
            "The pipeline fills: stage 0 takes minibatch 2 forward with v0; stage 1 takes 1 forward with v0; "
            "stage 2 waits."
        )
        slider.fill("11")
        assert caption.inner_text() == (
            "Every stage has work: stage 0 takes minibatch 2 back with v1, though its forward pass read v0; "
            "stage 1 takes 3 back with v2, though its forward pass read v1; stage 2 takes 4 forward with v3; "
            "stage 2 now has v3."
        )


def test_without_javascript_the_schedule_is_text(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, schedule("gpipe", stages=2), java_script_enabled=False) as page:
        assert page.locator("pre").is_visible()
        assert "stage 1" in page.locator("pre").inner_text()
        assert not page.locator("#player").is_visible()


def test_thousands_of_instructions(browser: Browser, tmp_path: Path) -> None:
    made = schedule("1f1b", stages=16, microbatches=100)
    with opened(browser, tmp_path, made, viewport={"width": 900, "height": 900}) as page:
        assert page.get_by_label("close up").is_checked()
        for time in (100.0, 250.5):
            page.get_by_role("slider", name="Time").fill(str(time))
            assert states(page) == expected(made, time)
        page.get_by_label("close up").uncheck()
        page.keyboard.press("End")
        assert page.locator("#caption").inner_text().startswith("All is done")


def test_one_product_of_weight_gradients_is_named(browser: Browser, tmp_path: Path) -> None:
    for minibatches, text in ((1, "of all microbatches"), (2, "of all of minibatch 1")):
        made = schedule("gpipe", stages=2, minibatches=minibatches, microbatches=2, weight_grad="merged")
        (time,) = {box.start for box in made.drawing.rows[0].boxes if box.kind == "weight gradient" and box.start < 8}
        with opened(browser, tmp_path, made) as page:
            page.get_by_role("slider", name="Time").fill(str(time))
            assert f"stage 0 computes the weight gradient {text}; " in page.locator("#caption").inner_text()


@pytest.mark.parametrize(("stages", "passes"), [(1, 1.0), (3, 0.0)])
def test_one_stage_and_passes_without_time(browser: Browser, tmp_path: Path, stages: int, passes: float) -> None:
    made = schedule("sequential", stages=stages, minibatches=2, forward=passes, backward=passes)
    with opened(browser, tmp_path, made) as page:
        page.keyboard.press("End")
        assert page.locator("#caption").inner_text().startswith("All is done")


def test_a_title_is_text(browser: Browser, tmp_path: Path) -> None:
    made = schedule("1f1b", stages=2, microbatches=2)
    title = "</script><img src=x onerror=alert(1)>"
    hostile = replace(made.animation, drawing=replace(made.animation.drawing, title=title))
    write_html(hostile, tmp_path / "hostile.html")
    page = browser.new_page()
    page.goto((tmp_path / "hostile.html").as_uri())
    assert page.locator("h1").inner_text() == title
    assert page.locator("img:not([alt])").count() == 0
    page.close()


def test_without_a_browser_the_tests_are_skipped_unless_one_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDNN_TEST_BROWSER", "")
    with pytest.raises(pytest.skip.Exception, match="no browser"):
        cannot_run("no browser")
    monkeypatch.setenv("HYBRIDNN_TEST_BROWSER", "required")
    with pytest.raises(pytest.fail.Exception, match="no browser"):
        cannot_run("no browser")
