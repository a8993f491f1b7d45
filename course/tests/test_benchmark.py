"""The program that times the class kit."""

from __future__ import annotations

import pytest

from course import benchmark


def test_rows_of_the_class_kit_have_the_time_and_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", "")
    monkeypatch.setattr(benchmark, "run_kit", lambda *_: None)
    rows = list(benchmark.measured_rows(["bounds", "variants: 3"], 2, ["a2"]))
    found = [(row["quantity"], row["asked"]) for row in rows]
    assert found == [("check bounds of a2", 3.0), ("verify all, variants: 3", 180.0)]
