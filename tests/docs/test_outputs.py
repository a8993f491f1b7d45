"""The commands in README.md and the pages of docs/ succeed, and their outputs have the shape of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hybridnn.course.isolation import choose_isolation
from hybridnn.errors import EnvironmentProblem
from mpi_runner.launch import job_environment
from mpi_runner.slowness import deadline
from reference.pages import ROOT, outputs

TEXTS = {"json", "text", "toml"}
"""Languages of blocks that are not run."""
REASONS = ("by hand", "not in tests")
QUICK = ("README.md", "installation.md")
"""Pages that `make test` runs; `make test-slow` runs the others."""
GRADING = "teaching.md"
"""Page whose commands run submissions, which have to be isolated."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def is_checked(block: outputs.Block) -> bool:
    """Whether a check of the page runs this block."""
    is_run = block.kind in ("session", "commands", "program")
    return is_run and "slurm" not in block.notes and not any(block.texts(option) for option in REASONS)


def blocks(page: Path) -> list[outputs.Block]:
    return list(outputs.blocks(page.read_text(encoding="utf-8")))


def no_isolation() -> str:
    """Why submissions cannot be isolated here; empty if they can."""
    try:
        choose_isolation("auto")
    except EnvironmentProblem as error:
        return str(error)
    return ""


def marks_of(page: Path) -> list[pytest.MarkDecorator]:
    marks = [] if page.name in QUICK else [pytest.mark.slow]
    if page.name == GRADING:
        marks.append(pytest.mark.skipif(bool(reason := no_isolation()), reason=reason))
    return marks


def with_commands() -> list[object]:
    pages = [page for page in outputs.PAGES if any(map(is_checked, blocks(page)))]
    return [pytest.param(page, marks=marks_of(page), id=name_of(page)) for page in pages]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", with_commands())
def test_commands_of_the_page_succeed_with_outputs_of_its_shape(page: Path) -> None:
    # Like the environment of a user, without numbers of threads.
    environment = job_environment(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")))
    outputs.run_page(page.read_text(encoding="utf-8"), check=True, environment=environment, limit=deadline(60))


@pytest.mark.parametrize("page", outputs.PAGES, ids=name_of)
def test_every_block_is_run_or_has_a_reason(page: Path) -> None:
    """A block is run by a check, needs a Slurm, is marked with a reason, belongs to a file that is run, or is text."""
    found = blocks(page)
    given = {note.partition(":")[0] for block in found for note in block.notes}
    assert given <= {"before", "fails", "varies", "slurm", *REASONS}
    fences = re.findall(r"^[ >]*```", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(found), "a block is indented, or its first line is not understood"
    commands = "\n".join(block.body for block in found if block.kind in ("session", "commands", "program"))
    for block in found:
        if block.kind == "text":
            assert block.language in TEXTS, f"a block without a language: {block.body[:60]!r}"
        elif block.kind == "file":
            assert Path(block.name).stem in commands, f"{block.name} is not used"
        elif not is_checked(block) and "slurm" not in block.notes:
            assert any(len(reason) > 5 for option in REASONS for reason in block.texts(option)), block.body[:60]


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


def test_outputs_of_a_page() -> None:
    """Files are written, numbers may differ, a gap replaces lines, some lines vary, and an update replaces all."""
    shown = "`a.txt`:\n```\n12 apples\n```\n" + page_of("$ cat a.txt", "7 apples", "$ echo b \\", "    c", "b c")
    assert outputs.run_page(shown, check=True) == shown.replace("7 apples", "12 apples")
    page = page_of("$ seq 3; echo end; seq 4; echo last", "1", "…", "end", "…", "last")
    assert outputs.run_page(page, check=True) == page
    outputs.run_page("<!-- varies -->\n" + page_of("$ echo new", "old")[6:], check=True)
    assert outputs.run_page(page_of("$ echo new", "old"), check=False) == page_of("$ echo new", "new")
    old = page_of("$ echo new", "old")[6:]
    page = f"<!-- slurm -->\n{old}<!-- by hand: why -->\n{old}"
    assert page.count("```\n$") == 2
    assert outputs.run_page(page, check=False) == page
