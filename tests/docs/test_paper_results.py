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
            for name in ("tables.md", "scaling.svg", "scaling.png", "index.html"):
                (report / name).write_text(name)
        return code


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_study_is_run_and_reported_and_its_tables_and_plots_are_copied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands, results = Commands(), tmp_path / "papers"
    (results / STUDY).mkdir(parents=True)
    (results / STUDY / "old.svg").write_text("of an earlier form of the study")
    assert paper_results.main([STUDY], results, commands) == 0
    folder = f"runs/studies/{STUDY}-reduced"
    assert commands.calls == [["study", "run", STUDY, "--reduced"], ["study", "report", folder]]
    assert sorted(path.name for path in (results / STUDY).iterdir()) == ["scaling.svg", "tables.md"]
    assert f"{STUDY}: done after 0 s" in capsys.readouterr().out
    assert paper_results.main([STUDY], results, commands) == 0


def test_all_ready_studies_have_a_reduced_form_and_are_run(tmp_path: Path) -> None:
    commands = Commands()
    assert paper_results.main([], tmp_path / "papers", commands) == 0
    assert [call[2] for call in commands.calls[::2]] == list(ready_studies())
    assert all(load_study(name, reduced=True).reduced for name in ready_studies())


def test_failed_cells_are_reported_and_the_next_study_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = Commands(1, 1)
    assert paper_results.main(["laugier-figure-5", "laugier-figure-6"], tmp_path / "papers", commands) == 1
    assert len(commands.calls) == 4
    assert (tmp_path / "papers" / "laugier-figure-5" / "tables.md").exists()
    assert "laugier-figure-5: exit code 1" in capsys.readouterr().out


def test_interrupted_study_keeps_the_earlier_copies(tmp_path: Path) -> None:
    results = tmp_path / "papers"
    assert paper_results.main([STUDY], results, Commands()) == 0
    assert paper_results.main([STUDY], results, Commands(130)) == 130
    assert paper_results.main([STUDY], results, Commands(0, 2)) == 2
    assert (results / STUDY / "tables.md").exists()


def test_unknown_study_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = Commands()
    assert paper_results.main(["none"], tmp_path, commands) == 2
    assert commands.calls == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: none is not a ready study: ")
    assert STUDY in line
