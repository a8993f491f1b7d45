"""Findings: what raises or hangs becomes one, and those of several ranks become one list."""

from __future__ import annotations

import time

import pytest

from hybridnn.doctor.examine import report_of
from hybridnn.doctor.finding import Finding, guarded, merge, worst
from mpi_runner.slowness import deadline

FINE = Finding("a", "ok", "fine")
ODD = Finding("a", "warning", "odd", "mend it")
BAD = Finding("b", "failure", "bad")


def failing() -> Finding:
    raise ValueError("the first line\nthe second")


def test_a_check_that_raises_is_a_failure_with_its_first_line() -> None:
    found = guarded("mine", failing)
    assert found is not None
    assert (found.name, found.verdict) == ("mine", "failure")
    assert "ValueError: the first line" in found.what
    assert "second" not in found.what
    assert found.advice


@pytest.mark.parametrize("error", [SystemExit(3), ArithmeticError()])
def test_a_check_cannot_end_the_program(error: BaseException) -> None:
    def check() -> Finding:
        raise error

    for seconds in (None, 5.0):
        found = guarded("mine", check, seconds)
        assert found is not None
        assert found.verdict == "failure"
        assert type(error).__name__ in found.what


def test_a_check_that_hangs_is_a_failure_in_time() -> None:
    start = time.monotonic()
    found = guarded("mine", lambda: time.sleep(3600), 0.05)
    assert time.monotonic() - start < deadline(30)
    assert found is not None
    assert (found.verdict, found.what) == ("failure", "did not end within 0.05 s")


def test_a_check_in_a_thread_gives_what_it_found() -> None:
    assert guarded("a", lambda: ODD, 30.0) is ODD
    assert guarded("a", lambda: None, 30.0) is None


def test_worst() -> None:
    assert worst([]) == "ok"
    assert worst([FINE, ODD]) == "warning"
    assert worst([BAD, FINE, ODD]) == "failure"


def test_what_all_ranks_found_is_said_once() -> None:
    merged = merge([[FINE, BAD], [FINE, BAD], [FINE, BAD]])
    assert [(entry.finding, entry.ranks) for entry in merged] == [(FINE, ()), (BAD, ())]


def test_what_ranks_found_differently_names_them() -> None:
    merged = merge([[FINE], [ODD], [ODD], [FINE]])
    assert [(entry.finding, entry.ranks) for entry in merged] == [(FINE, (0, 3)), (ODD, (1, 2))]


def test_what_one_rank_alone_found_names_it_unless_it_is_rank_0() -> None:
    merged = merge([[FINE, Finding("job", "ok", "of all")], [FINE, BAD]])
    assert [(entry.finding.name, entry.ranks) for entry in merged] == [("a", ()), ("job", ()), ("b", (1,))]


def test_a_rank_without_a_report_does_not_spoil_what_the_others_share() -> None:
    assert [entry.ranks for entry in merge([[FINE], None, [FINE]])] == [()]


def test_differing_software_is_a_warning_though_each_is_fine() -> None:
    old, new = Finding("python", "ok", "3.10.1"), Finding("python", "ok", "3.13.0")
    report = report_of([[new], [old], [new]])
    assert [(entry.finding.verdict, entry.ranks) for entry in report.merged] == [("warning", (0, 2)), ("warning", (1,))]
    assert report_of([[new], [new], [new]]).verdict == "ok"


@pytest.mark.parametrize(
    ("findings", "code", "strict_code"), [([FINE], 0, 0), ([FINE, ODD], 0, 1), ([ODD, BAD], 1, 1), ([], 0, 0)]
)
def test_exit_code(findings: list[Finding], code: int, strict_code: int) -> None:
    report = report_of([findings])
    assert (report.exit_code(strict=False), report.exit_code(strict=True)) == (code, strict_code)


def test_findings_about_all_ranks_count_as_well() -> None:
    report = report_of([[FINE], [FINE]], [BAD])
    assert (report.exit_code(strict=False), report.count("failure"), report.count("ok"), report.ranks) == (1, 1, 1, 2)
