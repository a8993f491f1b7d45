"""Reproduction of the ready studies: which commands run, and what is copied."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hybridnn.study.study_file import load_study, ready_studies
from reference.pages import paper_results

STUDY = "laugier-figure-5"


class Commands:
    """Stand-in for the command: records its arguments, and a report writes files."""

    def __init__(self, *codes: int) -> None:
        self.calls: list[list[str]] = []
        self._codes = list(codes)

    def __call__(self, arguments: Sequence[str]) -> int:
        self.calls.append(list(arguments))
        code = self._codes.pop(0) if self._codes else 0
        if arguments[1] == "report" and code < 2:
            report = Path(arguments[2]) / "report"
            report.mkdir(parents=True)
            (report / "tables.md").write_text("# Title\n\n**verdicts**\n\n## Times\n")
            for name in ("the_scaling.svg", "the_scaling.png", "index.html"):
                (report / name).write_text(name)
        return code


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make_pages(folder: Path, *studies: str) -> Path:
    """A folder with a page that has places for the studies."""
    folder.mkdir()
    places = [f"before\n<!-- study: {study} -->\nold\n<!-- end of study -->\nafter\n" for study in studies]
    (folder / "page.md").write_text("\n".join(places))
    (folder / "another.md").write_text("no study\n")
    return folder


def test_study_is_run_and_reported_and_its_page_has_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands, pages = Commands(), make_pages(tmp_path / "papers", STUDY, "laugier-figure-6")
    (pages / STUDY).mkdir()
    (pages / STUDY / "old.svg").write_text("of an earlier form of the study")
    for _ in range(2):
        assert paper_results.main([STUDY], pages, commands) == 0
        first, second = (pages / "page.md").read_text().split("\nbefore\n")
        assert first == (
            f"before\n<!-- study: {STUDY} -->\n\n**verdicts**\n\n#### Times\n\n"
            f"![the scaling]({STUDY}/the_scaling.svg)\n\n<!-- end of study -->\nafter\n"
        )
        assert "\nold\n" in second
        assert [path.name for path in (pages / STUDY).iterdir()] == ["the_scaling.svg"]
    folder = f"runs/studies/{STUDY}-reduced"
    assert commands.calls[:2] == [["study", "run", STUDY, "--reduced"], ["study", "report", folder]]
    assert f"{STUDY}: done after 0 s" in capsys.readouterr().out


def test_page_begins_with_the_verdicts_of_its_studies(tmp_path: Path) -> None:
    pages = tmp_path / "papers"
    pages.mkdir()
    blocks = [
        "<!-- study: a -->\n* agrees: Small (b) is [better]. (Table 1 (2)) [metric: at least 1]; no cell has b\n"
        "    * b: 2; agrees\n* cannot be decided: Never. (Table 2)\n<!-- end of study -->\n",
        "* does not: Outside of a study. (none)\n",
        "<!-- study: a, full -->\n* does not: Large. (Table 3) [metric: at most 1]\n<!-- end of study -->\n",
    ]
    places = f"<!-- study: {STUDY} -->\n<!-- end of study -->\n"
    (pages / "page.md").write_text(
        "# Page\n<!-- verdicts -->\nold\n<!-- end of verdicts -->\n" + "".join(blocks) + places
    )
    assert paper_results.main([STUDY], pages, Commands()) == 0
    summary = (pages / "page.md").read_text().partition("<!-- verdicts -->\n")[2].partition("<!-- end")[0]
    assert summary.strip().splitlines() == [
        "Does it hold? 1 does not, 1 agrees, 1 cannot be decided.",
        "",
        "| verdict | study | statement |",
        "| --- | --- | --- |",
        "| does not | a, full form | Large. (Table 3) |",
        "| agrees | a, short form | Small (b) is [better]. (Table 1 (2)) |",
        "| cannot be decided | a, short form | Never. (Table 2) |",
    ]


def test_full_form_has_a_place_of_its_own(tmp_path: Path) -> None:
    commands, pages = Commands(), make_pages(tmp_path / "papers", "kang-table-6", "kang-table-6, full")
    assert paper_results.main(["--full", "kang-table-6"], pages, commands) == 0
    assert commands.calls[0][:3] == ["study", "run", "kang-table-6"]
    assert commands.calls[0][3] == "--jobs"  # the study compares trainings, not times
    first, second = (pages / "page.md").read_text().split("\nbefore\n")
    assert "\nold\n" in first
    assert "(kang-table-6-full/the_scaling.svg)" in second


def test_all_ready_studies_have_a_reduced_form_and_a_place_in_a_page(tmp_path: Path) -> None:
    commands, pages = Commands(), tmp_path / "papers"
    pages.mkdir()
    for page in paper_results.PAGES.glob("*.md"):
        (pages / page.name).write_text(page.read_text())
    assert paper_results.main([], pages, commands) == 0
    assert [call[2] for call in commands.calls[::2]] == list(ready_studies())
    assert all(load_study(name, reduced=True).reduced for name in ready_studies())


def test_failed_cells_are_reported_and_the_next_study_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands, pages = Commands(1, 1), make_pages(tmp_path / "papers", "laugier-figure-5", "laugier-figure-6")
    assert paper_results.main(["laugier-figure-5", "laugier-figure-6"], pages, commands) == 1
    assert len(commands.calls) == 4
    assert "\nold\n" not in (pages / "page.md").read_text()
    assert "laugier-figure-5: exit code 1" in capsys.readouterr().out


def test_interrupted_study_leaves_the_page(tmp_path: Path) -> None:
    pages = make_pages(tmp_path / "papers", STUDY)
    assert paper_results.main([STUDY], pages, Commands(130)) == 130
    assert paper_results.main([STUDY], pages, Commands(0, 2)) == 2
    assert "\nold\n" in (pages / "page.md").read_text()


def test_unknown_study_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = Commands()
    assert paper_results.main(["none"], tmp_path, commands) == 2
    assert commands.calls == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: none is not a ready study: ")
    assert STUDY in line
