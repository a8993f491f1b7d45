"""The table of a term: late days, extensions, groups and weights, and what learning platforms read."""

from __future__ import annotations

import csv
import io
from datetime import datetime
from pathlib import Path

import pytest
import tomli_w

from course.tests.made import course_of
from hybridnn.errors import DataError
from hybridnn_course.outcome import CheckOutcome, Outcome, TaskOutcome
from hybridnn_course_staff.assignment import load_assignment
from hybridnn_course_staff.batch import SUFFIX, Graded, read_times
from hybridnn_course_staff.reports import write_reports
from hybridnn_course_staff.term import SETTINGS, Course
from hybridnn_course_staff.term_report import Gradebook, TermReport, term_report
from reference.command_line import Run

TERM = {
    "late_days": 2,
    "late_loss": 0.25,
    "assignments": {
        "a2": {"weight": 1.0, "due": datetime(2026, 11, 2, 12), "groups": [["ben", "eva"]]},
        "a3": {"weight": 3.0, "due": datetime(2026, 11, 16, 12), "extensions": {"chi": datetime(2026, 11, 20, 12)}},
    },
}
Row = tuple[str, float, str]  # student, points and when it was handed in


@pytest.fixture
def course(tmp_path: Path) -> Course:
    folder = tmp_path / "course"
    settings = course_of(folder, "a2", "a3").settings.model_dump(exclude={"assignments"})
    (folder / SETTINGS).write_text(tomli_w.dumps(settings | TERM))
    return Course.open(folder)


def graded(folder: Path, name: str, *rows: Row) -> Path:
    """A folder of grades, of submissions in this order."""
    found, times = [], {}
    folder.mkdir()
    for number, (student, points, received) in enumerate(rows):
        check = CheckOutcome(name="x", kind="public", points=points, possible=100)
        outcome = Outcome(assignment=name, student=student, tasks=(TaskOutcome(name="t", checks=(check,)),))
        submission = f"{number}.zip"
        (folder / f"{number}-{'0' * 24}{SUFFIX}").write_text(outcome.model_dump_json())
        found.append(Graded(submission, outcome))
        times[submission] = datetime.fromisoformat(received).astimezone()
    write_reports(load_assignment(name), found, folder, "hints", times)
    return folder


@pytest.fixture
def report(course: Course, tmp_path: Path) -> TermReport:
    """Of a3 the folder comes first: late days are used in the order of the dates."""
    second = graded(
        tmp_path / "g3",
        "a3",
        ("ada", 100, "2026-11-17T11:00"),  # 1 day
        ("ben", 80, "2026-11-16T12:00"),  # in time
        ("chi", 60, "2026-11-20T12:01"),  # 1 day after an extension
    )
    first = graded(
        tmp_path / "g2",
        "a2",
        ("ada", 50, "2026-11-01T12:00"),
        ("ada", 90, "2026-11-03T12:01"),  # the last one counts: 2 days, both free
        ("eva", 100, "2026-11-06T12:00"),  # of ben, too: 4 days, of which 2 cost a quarter each
        ("chi", 40, "2026-11-02T12:00"),
    )
    return term_report(course, [second, first], ["ada", "ben", "chi", "dov", "eva"])


def test_late_days_are_used_in_the_order_of_the_dates(report: TermReport) -> None:
    entries = report.entries
    assert [one.id for one in report.assignments] == ["a2", "a3"]
    found = {name: [(one.points, one.late, one.free) for one in rows.values()] for name, rows in entries.items()}
    assert found == {
        "ada": [(90, 2, 2), (75, 1, 0)],
        "ben": [(50, 4, 2), (80, 0, 0)],
        "chi": [(40, 0, 0), (60, 1, 1)],
        "dov": [(0, 0, 0), (0, 0, 0)],
        "eva": [(50, 4, 2), (0, 0, 0)],
    }
    assert entries["ada"]["a2"].submission == "1.zip"
    assert [report.total(name) for name in entries] == [78.75, 72.5, 55, 0, 12.5]
    assert [report.late_days(name) for name in entries] == [2, 2, 1, 0, 2]


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_tables_are_those_that_platforms_read(report: TermReport) -> None:
    a2, a3 = (one.title for one in report.assignments)
    gradebook = Gradebook(
        [
            {"Student": "    Points Possible", "ID": "", "SIS Login ID": "", f"{a2} (17)": "50"},
            {"Student": "Chi", "ID": "5", "SIS User ID": "u5", "SIS Login ID": "chi", "Section": "1", f"{a2} (17)": ""},
        ]
    )
    (row,) = rows_of(report.canvas(gradebook))
    assert row == {
        **{"Student": "Chi", "ID": "5", "SIS User ID": "u5", "SIS Login ID": "chi", "Section": "1"},
        **{f"{a2} (17)": "20.0", a3: "60.0"},
    }
    assert report.not_in(gradebook) == [
        "has no student with the login ada, ben, dov, eva: left out of canvas.csv",
        f"has no column {a3}: Canvas will make a new assignment",
    ]
    assert [row["SIS Login ID"] for row in rows_of(report.canvas(Gradebook()))] == list(report.entries)
    with pytest.raises(DataError, match="no columns Student and SIS Login ID"):
        Gradebook([{"foo": "1"}])
    assert rows_of(report.moodle())[0] == {"student": "ada", a2: "90.0", a3: "75.0", "total": "78.75"}
    assert rows_of(report.table())[1]["a2 submission"] == "2.zip"


def test_report_prints_the_term_and_refuses_what_is_none(
    run_hybridnn: Run, course: Course, report: TermReport, tmp_path: Path
) -> None:
    options = ("--course", str(course.folder), "--out", "term")
    code, out, err = run_hybridnn("course", "report", "g2", "g3", *options)
    assert code == 0, err
    assert [line.split() for line in out.splitlines() if "ada" in line] == [["ada", "90", "75", "2", "78.75"]]
    assert {path.name for path in (tmp_path / "term").iterdir()} == {"term.csv", "canvas.csv", "moodle.csv"}
    code, _, err = run_hybridnn("course", "report", "g2", "g2", *options)
    assert (code, "g2: has the grades of a2, as another folder" in err) == (2, True)
    (tmp_path / "roster.csv").write_text("student\nada\nben\neva\n")
    code, _, err = run_hybridnn("course", "report", "g3", *options, "--roster", "roster.csv")
    assert (code, "assignments.a3: chi is not on the roster" in err) == (2, True)
    with pytest.raises(DataError, match="has no outcomes"):
        term_report(course, [tmp_path])


def test_times_of_a_platform_are_read(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("submission,received\na.zip,2026-11-02T23:59:00+00:00\n")
    assert read_times(path)["a.zip"].timestamp() == 1793663940
    path.write_text("submission,received\na.zip,yesterday\n")
    with pytest.raises(DataError, match="line 2: 'yesterday' is no time such as 2026-11-02T23:59:00"):
        read_times(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('due = "soon"', "must be a date and a time, without quotes"),
        ('groups = [["ben"]]', "lists of two or more students"),
        ('groups = [["ben", "eva"], ["eva", "ada"]]', "each of them in one list only"),
    ],
)
def test_settings_of_an_assignment_are_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    course_of(tmp_path / "course", "a2")
    path = tmp_path / "course" / SETTINGS
    path.write_text(f"{path.read_text()}\n[assignments.a2]\n{text}\n")
    with pytest.raises(DataError, match=message) as caught:
        Course.open(tmp_path / "course")
    assert "\n" not in str(caught.value)


def test_a_date_alone_is_its_last_second(tmp_path: Path) -> None:
    course_of(tmp_path / "course", "a2")
    path = tmp_path / "course" / SETTINGS
    path.write_text(f"{path.read_text()}\n[assignments.a2]\ndue = 2026-11-02\n")
    assert Course.open(tmp_path / "course").settings.assignments["a2"].due == datetime(2026, 11, 2, 23, 59, 59)


def test_names_that_spreadsheets_would_compute_are_those_of_the_roster(course: Course, tmp_path: Path) -> None:
    folder = graded(tmp_path / "g2", "a2", ("=SUM(1)", 70, "2026-11-01T12:00"))
    report = term_report(course, [folder])
    assert report.entries["=SUM(1)"]["a2"].points == 70
    assert "'=SUM(1),70" in report.table()
