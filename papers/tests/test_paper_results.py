"""Reproduction of the ready studies: which commands run, and what is copied."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hybridnn.drawing.figures import new_figure
from hybridnn.study.study_file import load_study, ready_studies
from hybridnn_papers.records import read_records
from reference.finished_runs import write_study
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
        if arguments[1] == "run" and code < 2:
            name, is_full = arguments[2], "--reduced" not in arguments
            folder = Path(f"runs/studies/{name}{'' if is_full else '-reduced'}")
            if not (folder / "cells").exists():
                folder.mkdir(parents=True)
                write_study(folder, {"a": ({"ranks": 1}, {})}, more={"name": name, "reduced": not is_full})
        if arguments[1] == "report" and code < 2:
            report = Path(arguments[2]) / "report"
            report.mkdir(parents=True)
            for name in ("accuracy.svg", "the_scaling.svg", "results.csv"):
                (report / name).write_text(name)
        return code


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make_pages(folder: Path, *studies: str) -> Path:
    """A folder with a page that has places for the studies."""
    folder.mkdir()
    places = [f"before\n<!-- study: {study} -->\nold\n<!-- end -->\nafter\n" for study in studies]
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
            f"before\n<!-- study: {STUDY} -->\n\n![the scaling]({STUDY}/the_scaling.svg)\n\n<!-- end -->\nafter\n"
        )
        assert "\nold\n" in second
        assert [path.name for path in (pages / STUDY).iterdir()] == ["the_scaling.svg"]
        records = (pages / "records" / f"{STUDY}.csv").read_text()
        head = f"# study: {STUDY}\n# form: short\n# commit: {paper_results.commit()}\n# days: "
        assert records.startswith(head)
        assert "\nid,state,ranks,train_samples,base,disturbed,axis.ranks," in records
    folder = f"runs/studies/{STUDY}-reduced"
    assert commands.calls[:2] == [["study", "run", STUDY, "--reduced"], ["study", "report", folder]]
    assert f"{STUDY}: done after 0 s" in capsys.readouterr().out


def test_a_page_keeps_the_pictures_that_it_shows(tmp_path: Path) -> None:
    pages = make_pages(tmp_path / "papers", STUDY)
    page = pages / "page.md"
    page.write_text(page.read_text().replace("old", f"![accuracy]({STUDY}/accuracy.svg)"))
    assert paper_results.main([STUDY], pages, Commands()) == 0
    assert [path.name for path in (pages / STUDY).iterdir()] == ["accuracy.svg"]


def test_verdicts_are_those_of_the_records(capsys: pytest.CaptureFixture[str]) -> None:
    """The committed table, and the numbers in the pages, are what `make papers ARGS=--verdicts` writes and prints."""
    pages = paper_results.PAGES
    copy = Path("papers")
    shutil.copytree(pages, copy)
    assert paper_results.main(["--verdicts"], copy, Commands()) == 0
    for name in ("verdicts.csv", *(path.name for path in pages.glob("*.md"))):
        assert (copy / name).read_text() == (pages / name).read_text(), name
    with open(pages / "verdicts.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    stated = {f"{row['study']}, {row['form']}, {row['BLAS']}: {row['verdict']}: {row['statement']}" for row in rows}
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages.glob("*.md")}
    numbers = {f"{name}: {line}" for name, text in texts.items() for line in text.splitlines() if "[all comp" in line}
    printed = capsys.readouterr().out.splitlines()
    assert len(numbers) == 3
    assert sorted(printed) == sorted(stated | numbers)


INTERVAL = re.compile(r"(-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\]")


def test_intervals_in_the_pages_are_comparisons_of_the_verdicts() -> None:
    """To the digits that are printed; differences of accuracy in points, and a loss as a number above 0."""
    with open(paper_results.PAGES / "verdicts.csv", encoding="utf-8", newline="") as file:
        compared = [row for row in csv.DictReader(file) if row["low"]]
    estimates = [tuple(float(row[name]) for name in ("value", "low", "high")) for row in compared]
    estimates += [(-value, -high, -low) for value, low, high in estimates]
    texts = [" ".join(page.read_text(encoding="utf-8").split()) for page in paper_results.PAGES.glob("*.md")]
    found = [numbers for text in texts for numbers in INTERVAL.findall(text)]
    assert len(found) > 12
    for numbers in found:
        digits = len(numbers[0].partition(".")[2])
        known = [tuple(f"{x * scale:.{digits}f}" for x in one) for one in estimates for scale in (1, 100)]
        assert numbers in known, numbers


@pytest.mark.parametrize(
    ("records", "measure", "columns"),
    [
        ("kang-figure-13-full", "diverged", ["11 sequential", "11 ddg", "11 fr", "11 vanilla", "6 ddg"]),
        ("kang-figures-14-17-full", "converged", ["3 sequential", "3 ddg", "3 fr", "3 vanilla"]),
    ],
)
def test_counts_of_runs_in_the_page_are_those_of_the_records(records: str, measure: str, columns: list[str]) -> None:
    page = (paper_results.PAGES / "kang-2019.md").read_text(encoding="utf-8")
    counts: dict[float, dict[str, float]] = {}
    for cell in read_records(paper_results.PAGES / "records" / f"{records}.csv")[0].cells:
        of_rate = counts.setdefault(cell.values["optimizer.lr"], dict.fromkeys(columns, 0))
        of_rate[f"{cell.values['grid'].partition('x')[0]} {cell.values['method']}"] += cell.measures[measure] or 0
    assert len(counts) >= 4
    for rate, found in counts.items():
        assert f"| {rate} | {' | '.join(f'{number:.0f}' for number in found.values())} |" in page


def test_numbers_of_verdicts_are_those_of_the_full_form(tmp_path: Path) -> None:
    row = {"study": "b-1", "form": "short", "number": 1, "about": "paper", "verdict": "does not"}
    full = [{**row, "form": "full", "number": number, "verdict": "agrees"} for number in (1, 1, 2)]
    other = [{**row, "study": "a-1"}, {**row, "study": "b-2", "about": "library", "verdict": "agrees"}]
    assert paper_results._summary([row, *full, *other], "b") == (
        "2 statements of the paper: 2 confirmed; 1 statement of the library: 1 confirmed "
        "([all comparisons](verdicts.csv))."
    )
    assert paper_results._summary([row], "c") == "No study has records."
    kernels = [row, {**row, "BLAS": "Haswell", "verdict": "agrees"}]
    assert paper_results._summary(kernels, "b").startswith("1 statement of the paper: 1 undecided (")
    short = {**row, "missing": "optimizer.lr 0.1", "verdict": "cannot be decided"}
    for rows in ([short, row], [row, short]):
        assert "1 contradicted by these runs" in paper_results._summary(rows, "b")


@pytest.mark.parametrize("paper", ["chen", "kang", "laugier"])
def test_records_and_drawings_of_a_paper_are_small(paper: str) -> None:
    for files, most in ((f"records/{paper}-*.csv", 345_000), (f"{paper}-*/*.svg", 199_999)):
        assert 0 < sum(path.stat().st_size for path in paper_results.PAGES.glob(files)) <= most


def test_pages_of_the_papers_are_short() -> None:
    pages = {page.stem: page.read_text(encoding="utf-8") for page in paper_results.PAGES.glob("*.md")}
    del pages["stale-methods"]  # a comparison of the library's own
    assert sum(len(text.split()) for text in pages.values()) <= 5_500


def test_drawings_keep_their_text_styles_and_places(tmp_path: Path) -> None:
    figure = new_figure(4, 3)
    left, right = figure.subplots(1, 2)
    left.errorbar([1, 2], [0.125, 30.0625], yerr=[0.1, 0.2], label="1.23456 <b> & c")
    left.legend()
    right.imshow([[1, 2], [3, 4]])
    figure.savefig(tmp_path / "drawing.svg")
    written = (tmp_path / "drawing.svg").read_text()
    compact = paper_results.compact_svg(written)
    assert len(compact) < 0.7 * len(written)
    before, after = drawn(written), drawn(compact)
    assert len(before) == len(after) > 50
    for (tag, text, style, numbers), found in zip(before, after, strict=True):
        assert found[:3] == (tag, text, style)
        assert found[3] == pytest.approx(numbers, abs=0.051)


def drawn(svg: str) -> list[tuple[str, str, str, list[float]]]:
    """The tag, text, style and coordinates of every element that draws something."""
    found = []
    root = ElementTree.fromstring(svg)
    sheet = "".join(element.text or "" for element in root.iter() if element.tag.endswith("}style"))
    rules = dict(re.findall(r"\.(\w+){([^}]*)}", sheet))
    for element in root.iter():
        tag = element.tag.partition("}")[2]
        if tag not in ("path", "use", "text", "tspan", "image", "rect"):
            continue
        style = element.get("style", rules.get(element.get("class", ""), ""))
        places = " ".join(element.get(key, "") for key in ("d", "x", "y", "width", "height"))
        data = "".join(element.get("{http://www.w3.org/1999/xlink}href", "").split())
        numbers = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", places)]
        widths = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}", style)
        found.append((tag, f"{data}{element.text or ''}".strip(), widths, numbers))
    return found


def test_full_form_has_a_place_of_its_own(tmp_path: Path) -> None:
    commands, pages = Commands(), make_pages(tmp_path / "papers", "kang-table-6", "kang-table-6, full")
    assert paper_results.main(["--full", "kang-table-6"], pages, commands) == 0
    assert commands.calls[0][:4] == ["study", "run", "kang-table-6", "--jobs"]  # it compares trainings, not times
    first, second = (pages / "page.md").read_text().split("\nbefore\n")
    assert "\nold\n" in first
    assert "(kang-table-6-full/the_scaling.svg)" in second


def test_a_study_without_a_place_in_a_page_is_one_line(tmp_path: Path) -> None:
    pages = make_pages(tmp_path / "papers", "laugier-figure-6")
    before = sorted(pages.rglob("*"))
    with pytest.raises(SystemExit, match=rf"^Error: no page in .* has the line <!-- study: {STUDY} -->$"):
        paper_results.main([STUDY], pages, Commands())
    assert sorted(pages.rglob("*")) == before


def test_all_ready_studies_have_a_reduced_form_and_a_place_in_a_page(tmp_path: Path) -> None:
    commands, pages = Commands(), tmp_path / "papers"
    pages.mkdir()
    for page in paper_results.PAGES.glob("*.md"):
        (pages / page.name).write_text(page.read_text())
    assert paper_results.main([], pages, commands) == 0
    assert [call[2] for call in commands.calls[::2]] == list(ready_studies())
    assert all(load_study(name, reduced=True).reduced for name in ready_studies())


def test_a_study_that_fails_or_is_interrupted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After failed cells the next study runs; an interrupted study leaves the page; an unknown one is one line."""
    pages, studies = make_pages(tmp_path / "papers", STUDY, "laugier-figure-6"), [STUDY, "laugier-figure-6"]
    for commands, code in ((Commands(130), 130), (Commands(0, 2), 2)):
        assert paper_results.main([STUDY], pages, commands) == code
        assert (pages / "page.md").read_text().count("\nold\n") == 2
    commands = Commands(1, 1)
    assert paper_results.main(studies, pages, commands) == 1
    assert len(commands.calls) == 4
    assert "\nold\n" not in (pages / "page.md").read_text()
    assert f"{STUDY}: exit code 1" in capsys.readouterr().out
    commands = Commands()
    assert paper_results.main(["none"], tmp_path, commands) == 2
    assert commands.calls == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: none is not a ready study: ")
    assert STUDY in line
