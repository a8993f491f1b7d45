"""Comparison of a finding of `hybridnn doctor` with what a test expects."""

from hybridnn.doctor.report import Finding

__all__ = ["expect"]


def expect(found: Finding | None, verdict: str, what: str = "", advice: str = "") -> None:
    """Compare the verdict, and find texts in what is said and advised."""
    assert found is not None
    assert (found.verdict, what in found.what, advice in found.advice) == (verdict, True, True), found
