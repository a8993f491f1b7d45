"""The commands in README.md and the pages of docs/ succeed, and their outputs have the shape of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference.pages import ROOT, has_commands, outputs, require_reasons, run_commands

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
        ["$ false"],
    ],
)
def test_another_output_is_refused(lines: list[str]) -> None:
    with pytest.raises(outputs.PageError):
        outputs.run_page(page_of(*lines), check=True)


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
