"""Runs the ready studies, and puts their records, pictures and verdicts beside the pages of the papers.

``make papers`` runs the reduced form of all of them, ``make papers ARGS=laugier-figure-5`` one, ``make papers
ARGS="--full kang-table-6"`` the full form of one, and ``make papers ARGS=--verdicts`` none: it decides the statements
of all studies anew, by their records, and prints the verdicts. Finished cells are not run again.

Records are in ``papers/docs/records``, those with another kernel of the BLAS (``OPENBLAS_CORETYPE``) in a file that
ends with its name, and the verdicts, with every comparison, in ``papers/docs/verdicts.csv``. A page has links to the
pictures, in a folder of the study's name, between the lines ``<!-- study: laugier-figure-5 -->`` (of the full form
``<!-- study: kang-table-6, full -->``) and ``<!-- end -->``: those that are linked already, or else all. The numbers of
verdicts are between ``<!-- verdicts: kang -->`` and ``<!-- end -->``, for the studies whose names begin so.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from time import perf_counter
from typing import Any

__all__ = ["main", "reproduce"]

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "papers" / "docs"
RECORDS = "records"
VERDICTS = "verdicts.csv"
COMMITS = "commits.txt"
END = "<!-- end -->"
NUMBER = re.compile(r"\d+\.\d{2,}")
PICTURE = re.compile(r"/([\w-]+)\.svg\)")
SUMMARY = re.compile(r"(?<=<!-- verdicts: )(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)

Hybridnn = Callable[[Sequence[str]], int]
"""Runs ``hybridnn`` with arguments and returns its exit code."""


def run_hybridnn(arguments: Sequence[str]) -> int:
    """Run the command with the output of this process."""
    return subprocess.run([sys.executable, "-m", "hybridnn", *arguments], check=False).returncode


def reproduce(name: str, pages: Path, hybridnn: Hybridnn = run_hybridnn, *, full: bool = False, jobs: int = 0) -> int:
    """Run a study and its report, and put it beside its page; returns the first exit code that is not 0.

    A report that cannot be written leaves the page as it is. `jobs` trainings run at once, by default one per core.
    """
    from hybridnn.study.runner import default_folder
    from hybridnn.study.study_file import load_study

    study = load_study(name, reduced=not full)
    folder = default_folder(study)
    at_once = ["--jobs", str(jobs or os.cpu_count() or 1)] if study.keys.compares == "training" else []
    before, code = _ended(folder), commit()
    try:
        ran = hybridnn(["study", "run", name, *([] if full else ["--reduced"]), *at_once])
    finally:
        if _ended(folder) != before:
            with open(folder / COMMITS, "a", encoding="utf-8") as file:
                file.write(f"{code}\n")
    if ran not in (0, 1):  # 1: some cells failed, and the report says which
        return ran
    if (folder / "report").exists():
        shutil.rmtree(folder / "report")  # plots of an earlier form of the study
    reported = hybridnn(["study", "report", str(folder)])
    if reported in (0, 1):
        # Layouts that are compared by time train alike; trainings that are compared share the machine.
        without = {"accuracy-time", "accuracy" if study.keys.compares == "times" else "training_loss-time"}
        _put(folder, name + ", full" * full, pages, without)
        write_verdicts(pages)
    return ran or reported


def _ended(folder: Path) -> int:
    """Number of the cells in a study's folder that have ended."""
    from hybridnn.runs.run_files import run_status
    from hybridnn.study.study_folder import ENDED

    return sum(run_status(cell) in ENDED for cell in (folder / "cells").glob("*"))


def commit() -> str:
    """The commit of the code, and whether it was changed since."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False).stdout

    changed = git("status", "--porcelain", "--", "hybridnn", "papers/hybridnn_papers")
    return (git("rev-parse", "--short=12", "HEAD").strip() or "unknown") + " with changes" * bool(changed)


def _put(folder: Path, title: str, pages: Path, without: AbstractSet[str]) -> None:
    """Put records and pictures of a study beside the page that has its lines: those that it shows already, or most."""
    from hybridnn.study.results import read_results
    from hybridnn_papers.conclusions import records_text

    start = f"<!-- study: {title} -->"
    place = re.compile(rf"(?<={re.escape(start)}\n).*?(?={re.escape(END)})", re.DOTALL)
    page = next((page for page in sorted(pages.glob("*.md")) if start in page.read_text(encoding="utf-8")), None)
    if page is None:
        raise SystemExit(f"Error: no page in {pages} has the line {start}")
    name = title.replace(", ", "-")
    commits = (folder / COMMITS).read_text(encoding="utf-8").split("\n") if (folder / COMMITS).exists() else ["unknown"]
    (pages / RECORDS).mkdir(exist_ok=True)
    records = records_text(read_results(folder), ", ".join(dict.fromkeys(filter(None, commits))))
    (pages / RECORDS / f"{name}.csv").write_text(records, encoding="utf-8")
    shutil.rmtree(pages / name, ignore_errors=True)
    linked = PICTURE.findall("".join(place.findall(page.read_text(encoding="utf-8"))))
    pictures = [
        path
        for path in sorted((folder / "report").glob("*.svg"))
        if (path.stem in linked if linked else path.stem not in without)
    ]
    if pictures:
        (pages / name).mkdir()
    for picture in pictures:
        (pages / name / picture.name).write_text(compact_svg(picture.read_text(encoding="utf-8")), encoding="utf-8")
    shown = [f"![{picture.stem.replace('_', ' ')}]({name}/{picture.name})" for picture in pictures]
    content = "\n".join(["", *shown, "", ""])
    page.write_text(place.sub(lambda _: content, page.read_text(encoding="utf-8"), count=1), encoding="utf-8")


def write_verdicts(pages: Path) -> list[str]:
    """Decide the statements of all studies by their records, and write the verdicts and their numbers in the pages.

    Returns a line for every statement, and one for the numbers in a page.
    """
    from hybridnn.study.report import write_csv

    rows = list(verdict_rows(pages))
    if rows:
        (pages / VERDICTS).write_text(write_csv(rows), encoding="utf-8")
    lines = ["{study}, {form}, {BLAS}: {verdict}: {statement}".format_map(row) for row in rows]
    for page in sorted(pages.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if found := SUMMARY.search(text):
            summary = _summary(rows, found[1])
            page.write_text(SUMMARY.sub(rf"\1\2\n{summary}\n\n", text), encoding="utf-8")
            lines.append(f"{page.name}: {summary}")
    return list(dict.fromkeys(lines))


def verdict_rows(pages: Path) -> Iterator[dict[str, Any]]:
    """A row for every comparison of every statement, by the records beside the pages."""
    from dataclasses import asdict

    from hybridnn_papers.conclusions import verdicts_in

    for path in sorted((pages / RECORDS).glob("*.csv")):
        about, verdicts = verdicts_in(path)
        kernels = " ".join(dict.fromkeys(library.split()[-1] for library in about["BLAS"].split(", ")))  # as Haswell
        for number, verdict in enumerate(verdicts, 1):
            stated = {"study": about["study"], "form": about["form"], "BLAS": kernels}
            stated |= {"number": number, "verdict": verdict.outcome}
            stated |= {"about": verdict.about, "statement": verdict.says, "source": verdict.source}
            stated |= {"expected": verdict.expected, "missing": verdict.reason}
            for pair in verdict.pairs:
                found = asdict(pair)
                yield stated | {"comparison": found.pop("what"), **found}


def _summary(rows: Sequence[Mapping[str, Any]], paper: str) -> str:
    """The numbers of verdicts on a paper; of a study whose full form has run, those of the full form.

    What differs between records of two kernels of the BLAS is undecided, where both have all values that are named.
    """
    from hybridnn_papers.verdicts import verdicts_summary

    rows = [row for row in rows if row["study"].startswith(f"{paper}-")]
    full = {row["study"] for row in rows if row["form"] == "full"}
    found: dict[tuple[str, int], Mapping[str, Any]] = {}
    for row in (row for row in rows if row["form"] == "full" or row["study"] not in full):
        other = found.setdefault(key := (row["study"], row["number"]), row)
        if other.get("missing"):
            found[key] = row
        elif not row.get("missing") and other["verdict"] != row["verdict"]:
            found[key] = {**row, "verdict": "cannot be decided"}
    text = verdicts_summary(((row["about"], row["verdict"]) for row in found.values()), "the paper")
    return f"{text} ([all comparisons]({VERDICTS}))." if text else "No study has records."


def _rounded(number: re.Match[str]) -> str:
    value = float(number[0])
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def compact_svg(svg: str) -> str:
    """Return a drawing of Matplotlib in about half of its bytes, with coordinates to a tenth of a point.

    Metadata and names of groups are left out, and equal styles are written once.
    """
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg).replace("<defs/>", "")
    svg = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", svg)
    svg = re.sub(r"(?<=base64,)[^\"]*", lambda data: "".join(data[0].split()), svg)
    svg = re.sub("<[^>]*>", lambda tag: NUMBER.sub(_rounded, tag[0]), svg)
    svg = re.sub(r"\s+", " ", svg).replace("> <", "><")
    names: dict[str, str] = {}
    svg = re.sub(r'style="([^"]*)"', lambda style: f'class="{names.setdefault(style[1], f"s{len(names)}")}"', svg)
    svg = re.sub(r"\[style\*='([^']*)'\]", lambda part: _with_style(part[1], names), svg)
    rules = "".join(f".{name}{{{style}}}" for style, name in names.items())
    return re.sub("<svg [^>]*>", lambda start: f"{start[0]}<style>{rules}</style>", svg, count=1) + "\n"


def _with_style(part: str, names: Mapping[str, str]) -> str:
    """Selector of the classes whose style has a part."""
    return f":is({','.join(f'.{name}' for style, name in names.items() if part in style)})"


def main(arguments: Sequence[str], pages: Path = PAGES, hybridnn: Hybridnn = run_hybridnn) -> int:
    """Reproduce the named studies, or all; returns the exit code."""
    from hybridnn.errors import SettingError
    from hybridnn.study.study_file import ready_studies

    parser = argparse.ArgumentParser(prog="make papers ARGS=", description=__doc__.partition("\n")[0])
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="ready studies; without any, all of them")
    parser.add_argument("--full", action="store_true", help="run the full form")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="trainings at once (default: one per core)")
    parser.add_argument("--verdicts", action="store_true", help="run nothing, and decide all statements by the records")
    given = parser.parse_args(arguments)
    if given.verdicts:
        print(*write_verdicts(pages), sep="\n")
        return 0
    chosen = given.studies or list(ready_studies())
    unknown = [name for name in chosen if name not in ready_studies()]
    if unknown:
        print(f"Error: {unknown[0]} is not a ready study: {', '.join(ready_studies())}", file=sys.stderr)
        return 2
    codes = []
    for name in chosen:
        start = perf_counter()
        try:
            codes.append(reproduce(name, pages, hybridnn, full=given.full, jobs=given.jobs))
        except SettingError as error:
            print(f"Error: {error}", file=sys.stderr)
            codes.append(error.exit_code)
        state = "done" if codes[-1] == 0 else f"exit code {codes[-1]}"
        print(f"{name}: {state} after {perf_counter() - start:.0f} s", flush=True)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
