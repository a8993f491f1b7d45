"""Submissions in processes of their own: their messages are carried, counted and checked, their failures described."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn.course import carrier
from hybridnn.course.answers import Answer
from hybridnn.course.assignment import Assignment, Case, Task
from hybridnn.course.carrier import Worker
from hybridnn.course.execution import ALPHA, BETA
from mpi_runner.slowness import deadline

OPERATIONS = ("isend", "ireceive", "allreduce", "iallreduce", "allgather_rows", "broadcast", "barrier")
"""All of `RemoteGroup` that the tests below call."""


def _case(ranks: int, size: int = 4) -> Case:
    return Case(f"{ranks} ranks", tuple({"array": np.full(size, float(rank + 1))} for rank in range(ranks)))


@pytest.fixture(autouse=True)
def assignment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Assignment:
    """An assignment with one task, which the processes of submissions find, too."""
    package = tmp_path / "made_for_tests"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "assignment.py").write_text(MADE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(carrier, "PROGRAM", PROGRAM)
    monkeypatch.delitem(sys.modules, "made_for_tests", raising=False)
    monkeypatch.delitem(sys.modules, "made_for_tests.assignment", raising=False)
    made: Assignment = importlib.import_module("made_for_tests.assignment").ASSIGNMENT
    return made


@contextmanager
def _worker(
    assignment: Assignment, text: str, operations: tuple[str, ...] = OPERATIONS, limit: float = 10.0
) -> Iterator[tuple[Worker, Task]]:
    with Worker(assignment, {"made.py": text}, limit=deadline(limit)) as worker:
        yield worker, replace(assignment.tasks[0], operations=operations)


PROGRAM = """
import sys; sys.path[:0] = {paths!r}
from hybridnn.course import assignment
assignment.assignment_packages.cache_clear()
found = assignment.assignment_packages()
found["made"] = "made_for_tests"
from hybridnn.course.worker import main; main()
"""

MADE = f"""
from hybridnn.course.assignment import Assignment, Points, Task

def call(function, inputs, group, variant):
    return {{"result": function(group, inputs["array"])}}

ASSIGNMENT = Assignment("made", "made_for_tests", "", "", 1, (Task(
    name="made", file="made.py", target="hybridnn.assignments.a3_allreduce.solution:allreduce", call=call,
    solution=None, public=None, hidden=None, points=Points(50, 50), operations={OPERATIONS!r}),))
"""


def _answer(assignment: Assignment, body: str, ranks: int, size: int = 4, **options: Any) -> Answer:
    text = "import numpy as np\n\ndef allreduce(group, array):\n" + body
    with _worker(assignment, text, **options) as (worker, task):
        return worker.run(task, _case(ranks, size), {})


def test_collectives_and_messages_are_carried(assignment: Assignment) -> None:
    body = """\
    group.allreduce(array)
    rows = np.full((group.size, 1), float(group.rank))
    group.allgather_rows(rows)
    root = np.array([float(group.rank)])
    group.broadcast(root, group.size - 1)
    group.barrier()
    left = np.empty(1)
    receive = group.ireceive(left, (group.rank - 1) % group.size, 7)
    send = group.isend(np.array([float(group.rank)]), (group.rank + 1) % group.size, 7)
    send.wait()
    receive.wait()
    request = group.iallreduce(np.ones(2), "max")
    while not request.test():
        pass
    return {"sum": array, "rows": rows, "root": root, "left": left}
"""
    answer = _answer(assignment, body, 3)
    assert answer.failure is None
    for rank, outputs in enumerate(answer.outputs):
        result = outputs["result"]
        assert result["sum"].tolist() == [6.0] * 4
        assert result["rows"].ravel().tolist() == [0.0, 1.0, 2.0]
        assert result["root"].tolist() == [2.0]
        assert result["left"].tolist() == [(rank - 1) % 3]
    assert [call.name for call in answer.calls if call.rank == 0].count("allreduce") == 2
    assert [call.nbytes for call in answer.sent(1)] == [8]


def test_the_clock_is_that_of_the_cost_model(assignment: Assignment) -> None:
    body = """\
    if group.rank == 0:
        group.isend(array, 1, 0).wait()
    else:
        group.ireceive(array, 0, 0).wait()
    return array
"""
    answer = _answer(assignment, body, 2, 1000)
    assert answer.clock == pytest.approx(ALPHA + 8000 * BETA, rel=1e-12)


def test_a_deadlock_names_the_lines_of_the_student(assignment: Assignment) -> None:
    body = """\
    group.isend(array, (group.rank + 1) % group.size, 0).wait()
    left = np.empty_like(array)
    group.ireceive(left, (group.rank - 1) % group.size, 0).wait()
    return left
"""
    answer = _answer(assignment, body, 3)
    assert answer.failure is not None
    assert answer.failure.kind == "deadlock in send"
    assert "rank 0 waits in send of 32 bytes to rank 1, at made.py:4 in allreduce" in answer.failure.text
    assert "carrier" not in answer.failure.text


@pytest.mark.parametrize("ranks", [2, 7])
@pytest.mark.parametrize("size", [1, 1_000_000])
def test_the_cycle_of_a_deadlock_is_named_for_every_size(assignment: Assignment, ranks: int, size: int) -> None:
    answer = _answer(assignment, "    group.isend(array, (group.rank + 1) % group.size, 0).wait()\n", ranks, size)
    assert answer.failure is not None
    cycle = " -> ".join(f"rank {rank}" for rank in (*range(ranks), 0))
    assert f"the cycle: {cycle}" in answer.failure.text


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (
            "    if group.rank == 0:\n        request = group.isend(array, 1, 0)\n        array += 1\n"
            "        request.wait()\n    else:\n        group.ireceive(array, 0, 0).wait()\n    return array\n",
            "a send buffer changed",
            "sent at made.py:5 in allreduce, waited for at made.py:7",
        ),
        (
            "    if group.rank == 0:\n        group.isend(array, 1, 0).wait()\n    else:\n"
            "        request = group.ireceive(array, 0, 0)\n        array[:] = 0\n        request.wait()\n"
            "    return array\n",
            "a receive buffer changed",
            "received at made.py:7 in allreduce, waited for at made.py:9",
        ),
        (
            "    out = np.empty(4)\n    receive = group.ireceive(out, 1 - group.rank, 0)\n"
            "    group.isend(out, 1 - group.rank, 0).wait()\n    receive.wait()\n    return out\n",
            "sent before it arrived",
            "wait for that first",
        ),
        (
            "    if group.rank == 0:\n        group.isend(array, 1, 0)\n    return array\n",
            "a message was not received",
            "made.py:5",
        ),
        (
            "    if group.rank == 0:\n        group.allreduce(array)\n    else:\n        group.broadcast(array)\n"
            "    return array\n",
            "different collectives",
            "made.py:5",
        ),
        ("    return 1 / 0\n", "raised ZeroDivisionError", "made.py:4 in allreduce"),
        ("    group.isend([1.0], 0, 0)\n", "raised ValueError", "contiguous array"),
        ("    group.isend(array, 9, 0)\n", "communication error", "rank 9"),
        ("    return object()\n", "wrong output", "type object"),
        ("    raise MemoryError\n", "memory", ""),
        ("    import sys; sys.exit(3)\n", "raised SystemExit", ""),
    ],
)
def test_failures_have_a_kind_and_a_line(assignment: Assignment, body: str, kind: str, text: str) -> None:
    answer = _answer(assignment, body, 2)
    assert answer.failure is not None
    assert answer.failure.kind == kind, answer.failure.text
    assert text in answer.failure.text


def test_what_has_not_arrived_cannot_be_read(assignment: Assignment) -> None:
    body = """\
    other = np.zeros(4)
    receive = group.ireceive(other, 1 - group.rank, 0)
    early = other.copy()
    group.isend(array, 1 - group.rank, 0).wait()
    receive.wait()
    return {"early": early, "late": other}
"""
    answer = _answer(assignment, body, 2)
    assert answer.failure is None
    assert np.isnan(answer.outputs[0]["result"]["early"]).all()
    assert answer.outputs[0]["result"]["late"].tolist() == [2.0] * 4


def test_other_operations_are_refused(assignment: Assignment) -> None:
    answer = _answer(assignment, "    group.allreduce(array)\n    return array\n", 2, operations=("isend", "ireceive"))
    assert answer.failure is not None
    assert answer.failure.kind == "refused operation"
    assert "allreduce is not allowed in this task; allowed: isend, ireceive" in answer.failure.text


def test_module_variables_are_not_shared_by_ranks(assignment: Assignment) -> None:
    text = "seen = []\ndef allreduce(group, array):\n    seen.append(group.rank)\n    return len(seen)\n"
    with _worker(assignment, text) as (worker, task):
        for _ in range(2):
            assert [outputs["result"] for outputs in worker.run(task, _case(3), {}).outputs] == [1, 1, 1]


def test_what_is_printed_is_kept(assignment: Assignment) -> None:
    text = "def allreduce(group, array):\n    print('seen', array.sum())\n    return array\n"
    with _worker(assignment, text) as (worker, task):
        worker.run(task, _case(1), {})
        assert worker.printed == "seen 4.0\n"


def test_files_that_do_not_load_are_described(assignment: Assignment) -> None:
    with _worker(assignment, "import nothing_of_this_name\n") as (worker, task):
        failure = worker.run(task, _case(1), {}).failure
        assert failure is not None
        assert failure.kind == "raised ModuleNotFoundError"
    with _worker(assignment, "x = 1\n") as (worker, task):
        failure = worker.run(task, _case(1), {}).failure
        assert failure is not None
        assert failure.kind == "no function"


def test_a_submission_may_have_several_files(assignment: Assignment) -> None:
    text = "from other import double\ndef allreduce(group, array):\n    return double(array)\n"
    files = {"made.py": text, "other.py": "def double(x):\n    return 2 * x\n"}
    with Worker(assignment, files, limit=deadline(10)) as worker:
        assert worker.run(assignment.tasks[0], _case(1), {}).outputs[0]["result"].tolist() == [2.0] * 4


def test_a_file_of_the_same_name_on_the_path_is_not_imported(
    assignment: Assignment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``python -m hybridnn`` has the current folder on its path, which may be that of a student's work."""
    (tmp_path / "made.py").write_text("def allreduce(group, array):\n    return -array\n")
    monkeypatch.syspath_prepend(tmp_path)
    with _worker(assignment, "def allreduce(group, array):\n    return array\n") as (worker, task):
        assert worker.run(task, _case(1), {}).outputs[0]["result"].tolist() == [1.0] * 4


def test_an_endless_loop_ends_at_the_limit_and_the_next_case_runs(assignment: Assignment) -> None:
    body = "    while array[0] == 1 and len(array) == 4:\n        pass\n    return array\n"
    text = "import numpy as np\n\ndef allreduce(group, array):\n" + body
    with _worker(assignment, text, limit=1) as (worker, task):
        failure = worker.run(task, _case(1), {}).failure
        assert failure is not None
        assert failure.kind == "no end"
        assert worker.run(task, _case(1, 3), {}).failure is None
