"""Findings and reports of `hybridnn doctor`: checks that raise or hang, and findings of several ranks."""

from __future__ import annotations

import time

import pytest

from hybridnn.doctor.mpi_calls import run_check
from hybridnn.doctor.report import Finding, merge_reports
from mpi_runner.slowness import deadline

FINE = Finding("a", "ok", "fine")
ODD = Finding("a", "warning", "odd", "mend it")
BAD = Finding("b", "failure", "bad")


def failing() -> Finding:
    raise ValueError("the first line\nthe second")


def test_a_check_that_raises_is_a_failure_with_its_first_line() -> None:
    found = run_check("mine", failing)
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
        found = run_check("mine", check, seconds)
        assert found is not None
        assert found.verdict == "failure"
        assert type(error).__name__ in found.what


def test_a_check_that_hangs_is_a_failure_in_time() -> None:
    start = time.monotonic()
    found = run_check("mine", lambda: time.sleep(3600), 0.05)
    assert time.monotonic() - start < deadline(30)
    assert found is not None
    assert (found.verdict, found.what) == ("failure", "did not end within 0.05 s")


def test_a_check_in_a_thread_returns_its_finding() -> None:
    assert run_check("a", lambda: ODD, 30.0) == ODD
    assert run_check("a", lambda: None, 30.0) is None


def test_equal_findings_of_all_ranks_are_one_line() -> None:
    assert merge_reports([[FINE, BAD], [FINE, BAD], [FINE, BAD]]).findings == (FINE, BAD)


def test_different_findings_name_their_ranks() -> None:
    findings = merge_reports([[FINE], [ODD], [ODD], [FINE]]).findings
    assert [(finding.what, finding.ranks) for finding in findings] == [("fine", (0, 3)), ("odd", (1, 2))]


def test_a_finding_of_one_rank_names_it_unless_it_is_rank_0() -> None:
    findings = merge_reports([[FINE, Finding("job", "ok", "of all")], [FINE, BAD]]).findings
    assert [(finding.name, finding.ranks) for finding in findings] == [("a", ()), ("job", ()), ("b", (1,))]


def test_a_rank_without_a_report_does_not_split_findings_of_the_others() -> None:
    assert merge_reports([[FINE], None, [FINE]]).findings == (FINE,)


@pytest.mark.parametrize(
    ("findings", "verdict", "code", "strict_code"),
    [
        ([FINE], "ok", 0, 0),
        ([FINE, ODD], "warning", 0, 1),
        ([BAD, FINE, ODD], "failure", 1, 1),
        ([], "ok", 0, 0),
    ],
)
def test_verdict_and_exit_code(findings: list[Finding], verdict: str, code: int, strict_code: int) -> None:
    report = merge_reports([findings])
    assert (report.verdict, report.exit_code(strict=False), report.exit_code(strict=True)) == (
        verdict,
        code,
        strict_code,
    )


def test_findings_about_the_job_count_as_well() -> None:
    report = merge_reports([[FINE], [FINE]], [BAD])
    assert (report.exit_code(strict=False), report.count("failure"), report.count("ok"), report.ranks) == (1, 1, 1, 2)
