"""Relative links of the pages lead to files and headings that exist, as a git host follows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reference.pages import ROOT, outputs, reference_pages

PAGES = (*outputs.PAGES, *(ROOT / name / "README.md" for name in ("datasets", "hpc_jobs")))
LINK = re.compile(r"\]\((?P<file>[^)#\s:]*)(?:#(?P<heading>[^)\s]+))?\)")
MADE = {ROOT / "docs" / place for place in reference_pages.ANIMATIONS}
"""What only the site has."""
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def headings(page: Path) -> set[str]:
    """The anchors of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        target = (page.parent / link["file"]).resolve() if link["file"] else page
        assert target.exists() or target in MADE, link[0]
        assert not link["heading"] or link["heading"] in headings(target), link[0]


def test_a_schedule_that_plays_is_made_for_the_site() -> None:
    for place in reference_pages.ANIMATIONS:
        assert reference_pages.animation(place).startswith("<!DOCTYPE html>")


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = {line.rpartition(" ")[2] for line in text.partition("\nnav:")[2].splitlines() if line.endswith(".md")}
    docs = ROOT / "docs"
    notebooks = {path.with_suffix(".md").relative_to(docs).as_posix() for path in outputs.NOTEBOOKS}
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    beside = [*(ROOT / "course").rglob("*.md"), *(ROOT / "papers").rglob("*.md")]
    others = {f"repository/{page.relative_to(ROOT).as_posix()}" for page in beside}
    assert listed == pages | notebooks | {"index.md"} | {
        name for name in others if "/hybridnn_course_staff/" not in name
    }
