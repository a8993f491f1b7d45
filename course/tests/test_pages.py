"""The pages of the class kit: their commands succeed with outputs of their shape, and their examples are its code."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from hybridnn.errors import EnvironmentProblem
from hybridnn_course.isolation import choose_isolation
from reference.pages import has_commands, outputs, require_reasons, run_commands

COURSE = Path(__file__).parents[1]
PAGES = [page for page in outputs.PAGES if page.is_relative_to(COURSE)]


def marks_of(page: Path) -> list[pytest.MarkDecorator]:
    """Only the README is quick; the page for lecturers runs submissions, which have to be isolated."""
    marks = [] if page.name == "README.md" else [pytest.mark.slow]
    if page.name == "teaching.md":
        try:
            choose_isolation("auto")
        except EnvironmentProblem as error:
            marks.append(pytest.mark.skip(reason=str(error)))
    return marks


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=marks_of(page), id=page.name) for page in PAGES if has_commands(page)]
)
def test_commands_of_the_page_succeed_with_outputs_of_its_shape(page: Path) -> None:
    run_commands(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_is_run_or_has_a_reason(page: Path) -> None:
    require_reasons(page)


def test_examples_are_in_the_source() -> None:
    page = (COURSE / "docs/own-assignments.md").read_text(encoding="utf-8")
    examples = [block.body for block in outputs.blocks(page) if block.language in ("python", "toml")]
    folders = COURSE.rglob("hybridnn_course*/**/*")
    sources = [path.read_text(encoding="utf-8") for path in folders if path.suffix in (".py", ".toml")]
    assert examples
    for example in examples:
        texts = [indent(example.strip(), spaces) for spaces in ("", "    ", " " * 8)]  # rows of tables are indented
        assert any(text in source for source in sources for text in texts), example
