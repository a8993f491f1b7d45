"""Known mistakes in ``mistakes.toml``: what an entry makes of the reference solution."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hybridnn.errors import DataError
from hybridnn_course_staff.mistakes import known_mistakes, require_tasks

SOLUTION = """
def add_solution(variant):
    def add(a, b=1):
        return total([a, b])

    return add

def total(numbers):
    return sum(numbers)

def counter_solution(variant):
    class Counter:
        def __init__(self):
            self.count = 0

        def step(self):
            self.count += 1
            return self.count

    return Counter
"""
HEAD = '[[mistake]]\nname = "wrong"\ntasks = ["task"]\nhint = "Why?"\n'


def made(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> ModuleType:
    """A module with the solutions, and the text beside it."""
    path = folder / "made_solution.py"
    path.write_text(SOLUTION)
    (folder / "mistakes.toml").write_text(text)
    spec = importlib.util.spec_from_file_location("made_solution", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "made_solution", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ('edits = [["total([a, b])", "a - b"]]', [1, 4]),
        ('within = "total"\nedits = [["sum", "max"]]', [2, 5]),
        ('before = "a = -a"', [-1, -4]),
        ('after = "result = -result"', [-3, -6]),
        ("after = 'result += twice(len(variant[\"axis\"]))'", [9, 12]),
        ('code = "return right(b, 10)"', [11, 11]),
        ('edits = [["[a, b]", "[a, b, 1]"]]\ncode = "return twice(right(a, b))"', [8, 14]),
    ],
    ids=["edit", "edit of another function", "before", "after", "shared names", "code", "edit and code"],
)
def test_wrong_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, expected: list[int]) -> None:
    text = 'shared = "def twice(x): return 2 * x"\n' + HEAD + entry
    module = made(tmp_path, monkeypatch, text)
    (mistake,) = known_mistakes("task", module.add_solution)
    wrong, right = mistake.function({"axis": "big"}), module.add_solution({})
    assert [wrong(2), wrong(5)] == expected
    assert [right(2), right(5)] == [3, 6]
    assert known_mistakes("another task", module.add_solution) == ()


def test_wrong_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = 'code = """\ndef step(self):\n    return 10 * super().step()\n"""'
    (mistake,) = known_mistakes("task", made(tmp_path, monkeypatch, HEAD + code).counter_solution)
    counter: Any = mistake.function({})()
    assert (counter.step(), counter.step()) == (10, 20)


def test_hints_are_one_line_and_may_be_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[hints]\nown = """\nWhat\nnow?"""\n' + HEAD.replace("Why?", "own") + 'code = "return 0"'
    (mistake,) = known_mistakes("task", made(tmp_path, monkeypatch, text).add_solution)
    assert mistake.hint == "What now?"


@pytest.mark.parametrize(("old", "count"), [("missing", 0), ("return", 2)])
def test_an_edit_without_its_text_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, count: int
) -> None:
    """A changed solution must not turn a mistake into a right program."""
    module = made(tmp_path, monkeypatch, f'{HEAD}edits = [["{old}", ""]]')
    (mistake,) = known_mistakes("task", module.add_solution)
    with pytest.raises(ValueError, match=f"'{old}' is {count} times in add_solution, not once"):
        mistake.function({})


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("edit = []", r"mistake\.0\.edit: "),
        ("", r"mistake\.0: must have edits, before, after or code"),
        ('within = "total"\nafter = "result = 0"', r"mistake\.0: must not have .* within without edits"),
        ('code = "return 0"\nbefore = "a = 0"', r"mistake\.0: must not have before or after beside code"),
    ],
)
def test_an_entry_without_effect_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, problem: str
) -> None:
    with pytest.raises(DataError, match=rf"mistakes\.toml: {problem}"):
        known_mistakes("task", made(tmp_path, monkeypatch, HEAD + entry).add_solution)


def test_a_task_that_there_is_not_is_named(tmp_path: Path) -> None:
    (tmp_path / "mistakes.toml").write_text(f'{HEAD}code = "return 0"')
    require_tasks(tmp_path, ["task", "other"])
    with pytest.raises(DataError, match=r"mistakes\.toml: wrong: no task is called task; there are other"):
        require_tasks(tmp_path, ["other"])
