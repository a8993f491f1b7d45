"""The outputs in README.md and the pages of docs/ have the shape of the outputs of their commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpi_runner.launch import job_environment
from mpi_runner.slowness import deadline
from reference.pages import outputs

pytestmark = pytest.mark.slow


def checked(page: Path) -> list[str]:
    """The commands of a page whose outputs are compared."""
    found = outputs.sessions(page.read_text(encoding="utf-8"))
    return [
        command.text
        for session in found
        if not (session.varies or session.slurm or session.by_hand)
        for command in session.commands
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in outputs.PAGES if checked(page)], ids=lambda page: page.name)
def test_outputs_of_commands_have_the_shape_in_the_page(page: Path) -> None:
    # Like the environment of a user, without numbers of threads.
    environment = job_environment(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")))
    outputs.run_page(page.read_text(encoding="utf-8"), check=True, environment=environment, limit=deadline(60))


def test_commands_of_every_page_with_outputs_are_compared() -> None:
    pages = {page.name for page in outputs.PAGES if checked(page)}
    assert pages >= {"README.md", "pipelines.md", "cost-models.md", "running-on-a-cluster.md"}


def page_of(*lines: str) -> str:
    return "\n".join(["Text.", "```", *lines, "```", "More.", ""])


def test_files_of_the_page_are_written_and_numbers_may_differ() -> None:
    shown = "`a.txt`:\n```\n12 apples\n```\n" + page_of("$ cat a.txt", "7 apples", "$ echo b \\", "    c", "b c")
    assert outputs.run_page(shown, check=True) == shown.replace("7 apples", "12 apples")


@pytest.mark.parametrize(
    "lines",
    [
        ["$ echo apples", "pears"],
        ["$ echo apples"],
        ["$ printf 'a\\nb\\n'", "a"],
        ["$ printf 'a\\nb\\n'", "…", "a"],
        ["$ printf 'a\\nb\\n'", "b", "…"],
        ["$ sleep 60"],
    ],
)
def test_another_output_is_refused(lines: list[str]) -> None:
    with pytest.raises(outputs.PageError):
        outputs.run_page(page_of(*lines), check=True, limit=5)


def test_a_gap_replaces_omitted_lines() -> None:
    page = page_of("$ seq 3; echo end; seq 4; echo last", "1", "…", "end", "…", "last")
    assert outputs.run_page(page, check=True) == page


def test_update_replaces_the_whole_output() -> None:
    assert outputs.run_page(page_of("$ echo new", "old"), check=False) == page_of("$ echo new", "new")


def test_sessions_by_hand_and_of_slurm_are_skipped() -> None:
    page = (
        "<!-- slurm -->\n" + page_of("$ echo new", "old")[6:] + "<!-- by hand: why -->\n" + page_of("$ echo", "old")[6:]
    )
    assert page.count("```\n$") == 2
    assert outputs.run_page(page, check=False) == page
