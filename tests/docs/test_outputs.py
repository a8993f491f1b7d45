"""Pages: commands succeed with outputs of the page's shape, and links lead somewhere."""

import re
from pathlib import Path

import pytest

from reference.pages import ROOT, has_commands, outputs, reference_pages, require_reasons, run_commands

PAGES = [page for page in outputs.PAGES if not page.is_relative_to(ROOT / "course")]
QUICK = ("README.md", "installation.md")
"""Pages that `make test` runs; `make test-slow` runs the others."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def with_commands() -> list[object]:
    slow = [pytest.mark.slow]
    pages = filter(has_commands, PAGES)
    return [pytest.param(page, marks=() if page.name in QUICK else slow, id=name_of(page)) for page in pages]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", with_commands())
def test_commands_of_the_page_succeed_with_outputs_of_its_shape(page: Path) -> None:
    run_commands(page)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_run_or_has_a_reason(page: Path) -> None:
    require_reasons(page)


def page_of(*lines: str) -> str:
    return "\n".join(["Text.", "```", *lines, "```", "More.", ""])


@pytest.mark.parametrize(
    "lines",
    [
        ["$ echo apples", "pears"],
        ["$ echo apples"],
        ["$ printf 'a\\nb\\n'", "a"],
        ["$ printf 'a\\nb\\n'", "…", "a"],
        ["$ printf 'a\\nb\\n'", "b", "…"],
        ["$ echo '1,140 calls'", "1,144 calls"],
        ["$ echo 'in 2.75 ms'", "in 2.74 ms"],
        ["$ printf '3\\nloss 0.5\\n'", "…", "loss 0.6"],
        ["$ false"],
    ],
)
def test_another_output_is_refused(lines: list[str]) -> None:
    with pytest.raises(outputs.PageError):
        outputs.run_page(page_of(*lines), check=True)


def test_figures_of_a_training_and_times_of_the_clock_may_differ() -> None:
    close = page_of("$ echo 'loss 0.512'", "loss 0.514")
    assert outputs.run_page(close, check=True)
    times = page_of("$ echo 'in 8.3 s'", "in 7.9 s").removeprefix("Text.\n")
    assert outputs.run_page(f"<!-- numbers vary -->\n{times}", check=True)


def test_commands_that_fail_or_do_not_end_are_refused() -> None:
    with pytest.raises(outputs.PageError, match="not ended"):
        outputs.run_page(page_of("$ sleep 3600"), check=True, limit=0.5)
    for block in ("```bash\ntrue\nfalse\ntrue\n```\n", "```python\nraise SystemExit(1)\n```\n"):
        with pytest.raises(outputs.PageError, match="exit code 1"):
            outputs.run_page(block, check=True)
        assert outputs.run_page(f"<!-- by hand: why -->\n{block}", check=True)
        assert outputs.run_page(f"<!-- not in tests: why -->\n{block}", check=True)
    page = "<!-- fails -->\n" + page_of("$ true", "$ echo no; false", "no")[6:]
    assert outputs.run_page(page, check=True) == page
    with pytest.raises(outputs.PageError, match="exit code 0"):
        outputs.run_page(page.replace("false", "true"), check=True)


LINKED_PAGES = (*outputs.PAGES, *(ROOT / name / "README.md" for name in ("datasets", "hpc_jobs")))
LINK = re.compile(r"\]\((?P<file>[^)#\s:]*)(?:#(?P<heading>[^)\s]+))?\)")
MADE = {ROOT / "docs" / place for place in reference_pages.ANIMATIONS}
"""What only the site has."""
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def headings(page: Path) -> set[str]:
    """The anchors of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKED_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
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
