"""Findings and reports of `hybridnn doctor`: checks that raise or hang, and findings of several ranks."""

from __future__ import annotations

import time

import pytest

from hybridnn.doctor.report import Finding, merge_reports, run_check
from mpi_runner.slowness import deadline
from reference.findings import expect

FINE = Finding("a", "ok", "fine")
ODD = Finding("a", "warning", "odd", "mend it")
BAD = Finding("b", "failure", "bad")


def failing() -> Finding:
    raise ValueError("the first line\nthe second")


def test_a_check_that_raises_is_a_failure_with_its_first_line() -> None:
    found = run_check("mine", failing)
    expect(found, "failure", "ValueError: the first line")
    assert found is not None
    assert found.name == "mine"
    assert "second" not in found.what
    assert found.advice


@pytest.mark.parametrize("error", [SystemExit(3), ArithmeticError()])
def test_a_check_cannot_end_the_program(error: BaseException) -> None:
    def check() -> Finding:
        raise error

    for seconds in (None, 5.0):
        expect(run_check("mine", check, seconds), "failure", type(error).__name__)


def test_a_check_in_a_thread_returns_its_finding_and_is_a_failure_if_it_hangs() -> None:
    start = time.monotonic()
    expect(run_check("mine", lambda: time.sleep(3600), 0.05), "failure", "did not end within 0.05 s")
    assert time.monotonic() - start < deadline(30)
    assert run_check("a", lambda: ODD, 30.0) == ODD
    assert run_check("a", lambda: None, 30.0) is None


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([[FINE, BAD]] * 3, [("fine", ()), ("bad", ())]),
        ([[FINE], [ODD], [ODD], [FINE]], [("fine", (0, 3)), ("odd", (1, 2))]),
        # A finding of one rank names it, unless it is rank 0.
        ([[FINE, Finding("job", "ok", "of all")], [FINE, BAD]], [("fine", ()), ("of all", ()), ("bad", (1,))]),
    ],
)
def test_findings_that_not_all_ranks_have_name_their_ranks(
    reports: list[list[Finding]], expected: list[tuple[str, tuple[int, ...]]]
) -> None:
    assert [(finding.what, finding.ranks) for finding in merge_reports(reports).findings] == expected


@pytest.mark.parametrize(
    ("findings", "verdict", "code"),
    [([FINE], "ok", 0), ([FINE, ODD], "warning", 0), ([BAD, FINE, ODD], "failure", 1), ([], "ok", 0)],
)
def test_verdict_and_exit_code(findings: list[Finding], verdict: str, code: int) -> None:
    report = merge_reports([findings])
    assert (report.verdict, report.exit_code) == (verdict, code)


def test_findings_about_the_job_count_as_well() -> None:
    report = merge_reports([[FINE], [FINE]], [BAD])
    assert (report.exit_code, report.count("failure"), report.count("ok"), report.ranks) == (1, 1, 1, 2)
