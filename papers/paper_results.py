"""Runs the ready studies, and puts their reports into the pages of the papers.

``make papers`` runs the reduced form of all of them, ``make papers ARGS=laugier-figure-5`` one, and ``make papers
ARGS="--full kang-table-6"`` the full form of one. Finished cells are not run again. A page has the report between the
lines ``<!-- study: laugier-figure-5 -->`` (for the full form ``<!-- study: kang-table-6, full -->``) and ``<!-- end of
study -->``, and the verdicts of all its studies between ``<!-- verdicts -->`` and ``<!-- end of verdicts -->``; plots
are in a folder of the study's name in ``papers/docs``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from time import perf_counter

__all__ = ["main", "reproduce"]

PAGES = Path(__file__).resolve().parent / "docs"
END = "<!-- end of study -->"
STUDY = re.compile(rf"<!-- study: ([\w-]+)(, full)? -->\n(.*?){re.escape(END)}", re.DOTALL)
VERDICT = re.compile(r"^\* (agrees|does not|cannot be decided): (.*? \(.*?\))(?= \[|$)", re.MULTILINE)
NUMBER = re.compile(r"\d+\.\d{2,}")
SUMMARY = re.compile(r"(?<=<!-- verdicts -->\n).*?(?=<!-- end of verdicts -->)", re.DOTALL)

Hybridnn = Callable[[Sequence[str]], int]
"""Runs ``hybridnn`` with arguments and returns its exit code."""


def run_hybridnn(arguments: Sequence[str]) -> int:
    """Run the command with the output of this process."""
    return subprocess.run([sys.executable, "-m", "hybridnn", *arguments], check=False).returncode


def reproduce(name: str, pages: Path, hybridnn: Hybridnn = run_hybridnn, *, full: bool = False) -> int:
    """Run a study and its report, and put it into its page; returns the first exit code that is not 0.

    A report that cannot be written leaves the page as it is.
    """
    from hybridnn.study.runner import default_folder
    from hybridnn.study.study_file import load_study

    study = load_study(name, reduced=not full)
    folder = default_folder(study)
    at_once = ["--jobs", str(os.cpu_count() or 1)] if study.keys.compares == "training" else []
    ran = hybridnn(["study", "run", name, *([] if full else ["--reduced"]), *at_once])
    if ran not in (0, 1):  # 1: some cells failed, and the report says which
        return ran
    if (folder / "report").exists():
        shutil.rmtree(folder / "report")  # plots of an earlier form of the study
    reported = hybridnn(["study", "report", str(folder)])
    if reported in (0, 1):
        # Layouts that are compared by time train alike.
        without = {"accuracy"} if study.keys.compares == "times" else set()
        _put(folder / "report", name + ", full" * full, pages, without)
    return ran or reported


def _put(report: Path, title: str, pages: Path, without: AbstractSet[str]) -> None:
    """Put tables and plots of a report, without some, between the lines of its study in the page that has them."""
    start = f"<!-- study: {title} -->"
    place = re.compile(rf"(?<={re.escape(start)}\n).*?(?={re.escape(END)})", re.DOTALL)
    page = next((page for page in sorted(pages.glob("*.md")) if start in page.read_text(encoding="utf-8")), None)
    if page is None:
        raise SystemExit(f"Error: no page in {pages} has the line {start}")
    folder = title.replace(", ", "-")
    shutil.rmtree(pages / folder, ignore_errors=True)
    pictures = sorted(path for path in report.glob("*.svg") if path.stem not in without)
    if pictures:
        (pages / folder).mkdir()
    for picture in pictures:
        (pages / folder / picture.name).write_text(compact_svg(picture.read_text(encoding="utf-8")), encoding="utf-8")
    _, _, content = (report / "report.md").read_text(encoding="utf-8").partition("\n")  # without the title
    content = re.sub(r"^!\[.*\n+", "", content, flags=re.MULTILINE)
    content = re.sub("^## ", "#### ", content, flags=re.MULTILINE).strip()
    shown = [f"![{picture.stem.replace('_', ' ')}]({folder}/{picture.name})\n" for picture in pictures]
    content = "\n".join(["", content, "", *shown, ""])
    text = place.sub(lambda _: content, page.read_text(encoding="utf-8"), count=1)
    page.write_text(SUMMARY.sub(lambda _: _summary(text), text), encoding="utf-8")


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


def _summary(page: str) -> str:
    """Table of the verdicts of all studies of a page, those that contradict the paper first.

    Of a study whose full form has run, the table has of the short form only what contradicts the paper.
    """
    reports = {(name, bool(full)): VERDICT.findall(report) for name, full, report in STUDY.findall(page)}
    rows = [
        (verdict, f"{name}, {'full' if full else 'short'} form", statement)
        for (name, full), verdicts in reports.items()
        for verdict, statement in verdicts
        if full or verdict == "does not" or not reports.get((name, True))
    ]
    counts = {
        verdict: [row[0] for row in rows].count(verdict) for verdict in ("does not", "agrees", "cannot be decided")
    }
    rows.sort(key=lambda row: list(counts).index(row[0]))
    lines = ["", "Does it hold? " + ", ".join(f"{number} {verdict}" for verdict, number in counts.items()) + ".", ""]
    lines += ["| verdict | study | statement |", "| --- | --- | --- |", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join([*lines, "", ""])


def main(arguments: Sequence[str], pages: Path = PAGES, hybridnn: Hybridnn = run_hybridnn) -> int:
    """Reproduce the named studies, or all; returns the exit code."""
    from hybridnn.errors import SettingError
    from hybridnn.study.study_file import ready_studies

    parser = argparse.ArgumentParser(prog="make papers ARGS=", description=__doc__.partition("\n")[0])
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="ready studies; without any, all of them")
    parser.add_argument("--full", action="store_true", help="run the full form")
    given = parser.parse_args(arguments)
    chosen = given.studies or list(ready_studies())
    unknown = [name for name in chosen if name not in ready_studies()]
    if unknown:
        print(f"Error: {unknown[0]} is not a ready study: {', '.join(ready_studies())}", file=sys.stderr)
        return 2
    codes = []
    for name in chosen:
        start = perf_counter()
        try:
            codes.append(reproduce(name, pages, hybridnn, full=given.full))
        except SettingError as error:
            print(f"Error: {error}", file=sys.stderr)
            codes.append(error.exit_code)
        state = "done" if codes[-1] == 0 else f"exit code {codes[-1]}"
        print(f"{name}: {state} after {perf_counter() - start:.0f} s", flush=True)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
