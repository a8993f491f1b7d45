"""The Chromium in which tests open pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


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
