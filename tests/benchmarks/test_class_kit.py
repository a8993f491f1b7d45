"""The benchmark of the class kit: what it measures, and that all checks pass in its folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import class_kit
from hybridnn.course.assignment import assignment_packages, load_assignment

ALL = list(assignment_packages())


def test_every_task_assignment_proof_and_notebook_is_measured(tmp_path: Path) -> None:
    named = [quantity for quantity, _, _ in class_kit.quantities(tmp_path, 1, ALL)]
    tasks = [f"check {task.name} of {name}" for name in ALL for task in load_assignment(name).tasks]
    assert set(named) == {
        *tasks,
        *(f"check all of {name}" for name in ALL),
        *("verify all, variants: 1", "verify all, variants: 3"),
        *(f"notebook {path.stem}" for path in class_kit.NOTEBOOKS.glob("*.ipynb")),
    }
    assert len(named) == len(set(named))


@pytest.mark.parametrize("name", ["a2", "a8"])
def test_every_check_passes_in_the_folder(name: str, tmp_path: Path) -> None:
    class_kit.write_solved(load_assignment(name), tmp_path / name)
    class_kit.run_kit("check", "--folder", str(tmp_path / name))


def test_rows_have_the_time_and_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", "")
    monkeypatch.setattr(class_kit, "run_kit", lambda *_: None)
    rows = list(class_kit.measured_rows(["bounds", "variants: 3"], 2, ["a2"]))
    assert [(row["quantity"], row["asked"]) for row in rows] == [
        ("check bounds of a2", 3.0),
        ("verify all, variants: 3", 600.0),
    ]
    assert all(isinstance(row["measured"], float) for row in rows)
