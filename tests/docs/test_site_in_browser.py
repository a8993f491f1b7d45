"""The site in a browser, from its folder and from a server: search, colours, contrast, and lines that are cut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from mpi_runner.slowness import deadline
from reference.pages import ROOT
from reference.pictures import contrast

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LEAST_CONTRAST = 4.5  # of text, Web Content Accessibility Guidelines 2.2, criterion 1.4.3
LAPTOP = {"width": 1280, "height": 800}
COLOURS, CUT = ((ROOT / "tests/reference" / name).read_text() for name in ("page_colours.js", "page_cut.js"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=deadline(240))
    return folder


@pytest.fixture(params=["file", "http"])
def start(request: pytest.FixtureRequest, site: Path) -> Iterator[str]:
    """Address of the start page."""
    if request.param == "file":
        yield (site / "index.html").as_uri()
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=site)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()


def opened(browser: Browser, colours: str = "light") -> Page:
    page = browser.new_page(viewport=LAPTOP, color_scheme=colours)
    page.set_default_timeout(1000 * deadline(30))
    return page


def test_the_search_finds_pages(browser: Browser, start: str) -> None:
    page = opened(browser)
    page.goto(start)
    page.locator(".md-search__input").click()
    page.keyboard.type("early stopping")
    result = page.locator(".md-search-result__link").first
    result.wait_for()
    assert page.locator(".md-search-result__item").count() >= 5
    result.click()
    page.wait_for_url(lambda address: address != start)
    assert "early stopping" in page.locator("article").inner_text().lower()
    page.close()


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_text_has_contrast_and_is_not_cut(browser: Browser, site: Path, colours: str) -> None:
    page, weak, cut = opened(browser, colours), {}, {}
    files = [file for file in site.rglob("*.html") if "animations" not in file.parts]
    assert len(files) > 60
    for file in files:
        page.goto(file.as_uri(), wait_until="domcontentloaded")
        for pair, text in page.evaluate(COLOURS).items():
            if contrast(*pair.split(",")) < LEAST_CONTRAST:
                weak[pair] = f"{file.relative_to(site)}: {text}"
        cut |= {text: str(file.relative_to(site)) for text in page.evaluate(CUT)}
    page.goto((site / "index.html").as_uri())
    white = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.close()
    assert (weak, cut, white) == ({}, {}, colours == "light")
