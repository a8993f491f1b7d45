"""Reports of a graded folder: a table of points, a page with a histogram of mistakes, and a text for each student."""

from __future__ import annotations

import csv
import html
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

from hybridnn.errors import DataError, one_line
from hybridnn.utils.files import read_text, write_atomically
from hybridnn_course.outcome import CheckOutcome, Outcome, TaskOutcome
from hybridnn_course.work_folder import make_folder
from hybridnn_course_staff.assignment import Assignment
from hybridnn_course_staff.batch import SUBMISSION, Graded
from hybridnn_course_staff.grading import shown_outcome

GRADES, PAGE, FEEDBACK, RUBRIC = "grades.csv", "grades.html", "feedback", "rubric.csv"
RUBRIC_COLUMNS = ("submission", "item", "points", "possible", "question")
STUB = "NotImplementedError"  # beginning of the message of a function that is not written
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # beginnings that spreadsheets would compute

STYLE = """body { font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse } td, th { padding: .2em .7em; border-bottom: 1px solid #ddd; text-align: left }
td.number { text-align: right } .bar { background: #4477aa; height: 1em; display: inline-block }"""


def write_reports(
    assignment: Assignment,
    graded: Sequence[Graded],
    out: Path,
    feedback: str,
    received: Mapping[str, datetime] = MappingProxyType({}),
) -> list[Path]:
    """Write all reports into a folder, and return their paths.

    Where a person gives points, ``rubric.csv`` is written to be filled in; once it is, its points are added.

    Parameters
    ----------
    received : mapping
        When submissions were handed in, by their names.
    """
    points = _read_rubric(assignment, out / RUBRIC) if assignment.rubric else {}
    files = {GRADES: grades_table(assignment, graded, points, received), PAGE: grades_page(assignment, graded, points)}
    if assignment.rubric and not (out / RUBRIC).exists():
        files[RUBRIC] = _rubric_form(assignment, graded)
    make_folder(out / FEEDBACK)
    for item in graded:
        name = f"{FEEDBACK}/{item.name[: -len(SUBMISSION)]}.md"
        files[name] = feedback_text(shown_outcome(item.outcome, feedback))
    for name, text in files.items():
        write_atomically(out / name, text.encode())
    return [out / GRADES, out / PAGE, out / FEEDBACK, *([out / RUBRIC] if assignment.rubric else [])]


def grades_table(
    assignment: Assignment,
    graded: Sequence[Graded],
    rubric: Mapping[str, float] = MappingProxyType({}),
    received: Mapping[str, datetime] = MappingProxyType({}),
) -> str:
    """A line for each submission, as CSV."""
    tasks = [task.name for task in assignment.tasks]
    columns = ("submission", "student", "points", "possible", "gradable", *tasks)
    by_person = ["rubric"] if assignment.rubric else []
    rows: list[list[object]] = [[*columns, *by_person, "mistakes", "look at", "reason", "received"]]
    for item in graded:
        outcome = item.outcome
        by_task = {task.name: round(task.points, 2) for task in outcome.tasks}
        given = rubric.get(item.name, 0.0)
        possible = "" if outcome.ungraded else assignment.points
        points = "" if outcome.again else round(outcome.points + given, 2)
        row: list[object] = [item.name, outcome.student, points, possible]
        row += [
            "again" if outcome.again else "yes" if outcome.gradable else "no",
            *(by_task.get(task, "") for task in tasks),
        ]
        row += [given] if by_person else []
        row += [" ".join(outcome.mistakes), "; ".join(outcome.flags), outcome.ungraded]
        row += [received[item.name].isoformat(timespec="seconds") if item.name in received else ""]
        rows.append(row)
    return table_text(rows)


def table_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV, without a cell that a spreadsheet would compute."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([safe_cell(cell) for cell in row] for row in rows)
    return stream.getvalue()


def safe_cell(value: object) -> object:
    """A cell that no spreadsheet takes for a formula: names come from submissions."""
    if isinstance(value, str) and value.startswith(FORMULA):
        return "'" + one_line(value)
    return one_line(value) if isinstance(value, str) else value


def plain_cell(text: str) -> str:
    """What `safe_cell` made a cell of."""
    return text[1:] if text.startswith("'") and text[1:].startswith(FORMULA) else text


def grades_page(assignment: Assignment, graded: Sequence[Graded], rubric: Mapping[str, float] | None = None) -> str:
    """A page with the table, the points of each task, the mistakes by frequency, and wrong answers without a name."""
    gradable = [item for item in graded if not item.outcome.ungraded]
    parts = [
        f"<!doctype html><meta charset='utf-8'><title>{html.escape(assignment.title)}</title><style>{STYLE}</style>",
        f"<h1>{html.escape(assignment.title)}</h1>",
        f"<p>{len(graded)} submissions, {len(graded) - len(gradable)} of them without a grade.</p>",
        "<h2>Mistakes</h2>",
        _bars(Counter(name for item in gradable for name in item.outcome.mistakes)),
        "<h2>Wrong answers that no known mistake gives</h2>",
        _bars(Counter(message for item in gradable for message in _unexplained(item.outcome))),
        "<h2>Tasks</h2>",
        _task_table(assignment, gradable),
        "<h2>Submissions</h2>",
        _submission_table(assignment, graded, rubric or {}),
    ]
    return "\n".join(parts) + "\n"


def _bars(counts: Counter[str]) -> str:
    if not counts:
        return "<p>None.</p>"
    most = max(counts.values())
    rows = [
        f"<tr><td>{html.escape(name)}<td class='number'>{count}"
        f"<td><span class='bar' style='width:{20 * count / most:.2f}em'></span>"
        for name, count in counts.most_common()
    ]
    return f"<table><tr><th>what<th>submissions<th>{''.join(rows)}</table>"


def _unexplained(outcome: Outcome) -> list[str]:
    """Messages of wrong answers that have no hint, but not of stubs: material for the next catalogue."""
    found = []
    for task in outcome.tasks:
        messages = [
            f"{task.name}, {check.name}: {check.message.splitlines()[0]}"
            for check in task.checks
            if check.points == 0 and check.kind != "budget" and check.message
            if not check.not_tried and not check.mistake and not check.message.startswith(STUB)
        ]
        found += messages[:1]
    return found


def _task_table(assignment: Assignment, graded: Sequence[Graded]) -> str:
    rows = []
    for task in assignment.tasks:
        points = [item.points for graded_ in graded for item in graded_.outcome.tasks if item.name == task.name]
        mean = sum(points) / len(points) if points else 0.0
        full = sum(point >= task.points.total - 1e-9 for point in points)
        cells = (f"{mean:.1f}", f"{task.points.total:g}", str(full))
        rows.append(f"<tr><td>{task.name}" + "".join(f"<td class='number'>{cell}" for cell in cells))
    return f"<table><tr><th>task<th>mean<th>of<th>all points{''.join(rows)}</table>"


def _submission_table(assignment: Assignment, graded: Sequence[Graded], rubric: Mapping[str, float]) -> str:
    tasks = [task.name for task in assignment.tasks]
    rows = []
    for item in graded:
        outcome = item.outcome
        by_task = {task.name: f"{task.points:.4g}" for task in outcome.tasks}
        points = f"{outcome.points + rubric.get(item.name, 0.0):g}" if not outcome.ungraded else "-"
        notes = outcome.ungraded or "; ".join(outcome.flags)
        texts = [f"<td>{html.escape(text)}" for text in (item.name, outcome.student)]
        texts += [f"<td class='number'>{number}" for number in (points, *(by_task.get(task, "") for task in tasks))]
        texts += [f"<td>{html.escape(text)}" for text in (", ".join(outcome.mistakes), notes)]
        rows.append(f"<tr>{''.join(texts)}")
    heads = ("submission", "student", "points", *tasks, "mistakes", "look at")
    return f"<table><tr>{''.join(f'<th>{head}' for head in heads)}{''.join(rows)}</table>"


def feedback_text(outcome: Outcome) -> str:
    """What a student reads, as Markdown."""
    if outcome.again:
        return f"# {outcome.assignment}: not graded yet\n\nThe computer that grades failed. This costs no attempt.\n"
    if not outcome.gradable:
        return (
            f"# Not graded\n\nThe submission could not be graded, and costs no attempt: {outcome.reason}\n\n"
            "`hybridnn course submit` packs the files of the folder, and checks that they can be graded.\n"
        )
    if not outcome.tasks:
        return f"# {outcome.assignment}: received\n\nA person gives the points.\n"
    lines = [f"# {outcome.assignment}: {outcome.points:g} of {outcome.possible:g} points", ""]
    for task in outcome.tasks:
        lines += _task_lines(task)
    return "\n".join(lines).replace("<", "&lt;") + "\n"  # messages may quote what a submission wrote


def _task_lines(task: TaskOutcome) -> list[str]:
    lines = [f"## {task.name}: {task.points:.4g} of {task.possible:.4g} points", ""]
    hints: list[str] = []
    for check in task.checks:
        lines.append(check_line(check))
        if check.hint and check.hint not in hints:
            hints.append(check.hint)
    return [*lines, "", *(f"> {hint}\n" for hint in hints)]


def check_line(check: CheckOutcome) -> str:
    """A check as an item of a list."""
    mark = "not tried" if check.not_tried else "passed" if check.passed else "in part" if check.points else "FAILED"
    message = f": {one_line(check.message)}" if check.message and not check.passed else ""
    return f"* {mark}: {check.kind}, {check.name} ({check.points:.3g} of {check.possible:.3g}){message}"


def _rubric_form(assignment: Assignment, graded: Sequence[Graded]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(RUBRIC_COLUMNS)
    for item in graded:
        if not item.outcome.ungraded:
            writer.writerows((item.name, row.name, "", f"{row.points:g}", row.question) for row in assignment.rubric)
    return stream.getvalue()


def _read_rubric(assignment: Assignment, path: Path) -> dict[str, float]:
    """Points by submission; `DataError` where they are not numbers up to what is possible."""
    if not path.exists():
        return {}
    possible = {item.name: item.points for item in assignment.rubric}
    points: dict[str, float] = {}
    for number, row in enumerate(csv.DictReader(io.StringIO(read_text(path, 1 << 24))), 2):
        if not (row.get("points") or "").strip():
            continue
        try:
            value = float(row["points"])
            if not 0 <= value <= possible[row["item"]]:
                raise ValueError
        except (ValueError, KeyError):
            raise DataError(f"{path}, line {number}: points of an item of the rubric, 0 to what is possible") from None
        points[row["submission"]] = points.get(row["submission"], 0.0) + value
    return points
