"""Submissions in processes of their own: their messages are carried, counted and checked, their failures described."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from hybridnn_course import carrier
from hybridnn_course.answers import Answer, Failure
from hybridnn_course.assignment import Assignment, Case
from hybridnn_course.carrier import Worker
from hybridnn_course.execution import ALPHA, BETA
from mpi_runner.slowness import deadline

OPERATIONS = ("isend", "ireceive", "allreduce", "iallreduce", "allgather_rows", "broadcast", "barrier")
"""All of `RemoteGroup` that the tests below call."""

LIMIT = 2.0
PROGRAM = """
import sys; sys.path[:0] = {paths!r}
from hybridnn_course.worker import main; main()
"""
MADE = f"""
from hybridnn_course.assignment import Assignment, Points, Task

def call(function, inputs, group, variant):
    return {{"result": function(inputs["body"], group, inputs["array"])}}

ASSIGNMENT = Assignment(id="made", tasks=(Task(
    name="made", file="made.py", function="allreduce", returns=False, call=call, points=Points(50, 50),
    operations={OPERATIONS!r}),))
"""
"""An assignment with one task, whose function runs the function of another file."""

FILES = {"made.py": "def allreduce(body, group, array):\n    return __import__(body).allreduce(group, array)\n"}
HEAD = "import numpy as np\n\ndef allreduce(group, array):\n"
BODIES = {
    "all_operations": """\
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
""",
    "one_message": """\
    if group.rank == 0:
        group.isend(array, 1, 0).wait()
    else:
        group.ireceive(array, 0, 0).wait()
    return array
""",
    "ring": """\
    group.isend(array, (group.rank + 1) % group.size, 0).wait()
    left = np.empty_like(array)
    group.ireceive(left, (group.rank - 1) % group.size, 0).wait()
    return left
""",
    "early": """\
    other = np.zeros(4)
    receive = group.ireceive(other, 1 - group.rank, 0)
    early = other.copy()
    group.isend(array, 1 - group.rank, 0).wait()
    receive.wait()
    return {"early": early, "late": other}
""",
    "endless": "    while len(array) == 4:\n        pass\n    return array\n",
    "printing": "    print('seen', array.sum())\n    return array\n",
}
"""Bodies of functions, by the file in which they are; their first line is line 4."""

WHOLE = {
    "counting": "seen = []\ndef allreduce(group, array):\n    seen.append(group.rank)\n    return len(seen)\n",
    "doubling": "from other import double\ndef allreduce(group, array):\n    return double(array)\n",
    "other": "def double(x):\n    return 2 * x\n",
}
FAILURES = [
    (
        "    if group.rank == 0:\n        request = group.isend(array, 1, 0)\n        array += 1\n"
        "        request.wait()\n    else:\n        group.ireceive(array, 0, 0).wait()\n    return array\n",
        "a send buffer changed",
        "sent at {file}:5 in allreduce, waited for at {file}:7",
    ),
    (
        "    if group.rank == 0:\n        group.isend(array, 1, 0).wait()\n    else:\n"
        "        request = group.ireceive(array, 0, 0)\n        array[:] = 0\n        request.wait()\n",
        "a receive buffer changed",
        "received at {file}:7 in allreduce, waited for at {file}:9",
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
        "{file}:5",
    ),
    (
        "    if group.rank == 0:\n        group.allreduce(array)\n    else:\n        group.broadcast(array)\n"
        "    return array\n",
        "different collectives",
        "{file}:5",
    ),
    ("    return 1 / 0\n", "raised ZeroDivisionError", "{file}:4 in allreduce"),
    ("    group.isend([1.0], 0, 0)\n", "raised ValueError", "contiguous array"),
    ("    group.isend(array, 9, 0)\n", "communication error", "rank 9"),
    ("    return object()\n", "wrong output", "type object"),
    ("    raise MemoryError\n", "memory", ""),
    ("    import sys; sys.exit(3)\n", "raised SystemExit", ""),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Assignment, Worker]]:
    """The assignment, which processes of submissions find, too, and a submission with all bodies.

    A folder of the path has a file of the same name: ``python -m hybridnn`` has the current folder on its path, which
    may be that of a student's work.
    """
    folder = tmp_path_factory.mktemp("carrier")
    (folder / "made_for_tests").mkdir()
    (folder / "made_for_tests/__init__.py").write_text("")
    (folder / "made_for_tests/assignment.py").write_text(MADE)
    (folder / "made.py").write_text("def allreduce(body, group, array):\n    return -array\n")
    bodies = {**BODIES, **{f"failure_{number}": body for number, (body, *_) in enumerate(FAILURES)}}
    files = {**FILES, **{f"{name}.py": HEAD + body for name, body in bodies.items()}}
    files |= {f"{name}.py": text for name, text in WHOLE.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setattr(carrier, "PROGRAM", PROGRAM)
        assignment: Assignment = importlib.import_module("made_for_tests.assignment").ASSIGNMENT
        with Worker(assignment, files, limit=deadline(LIMIT)) as worker:
            yield assignment, worker
        for name in ("made_for_tests", "made_for_tests.assignment"):
            del sys.modules[name]


class Run:
    """Runs a body on some ranks."""

    def __init__(self, assignment: Assignment, worker: Worker) -> None:
        self._task, self.worker = assignment.tasks[0], worker

    def __call__(self, body: str, ranks: int, size: int = 4, operations: tuple[str, ...] = OPERATIONS) -> Answer:
        inputs = [{"body": body, "array": np.full(size, float(rank + 1))} for rank in range(ranks)]
        return self.worker.run(replace(self._task, operations=operations), Case("", tuple(inputs)), {})

    def failure(self, *arguments: object, **options: object) -> Failure:
        """The failure of a body."""
        failure = self(*arguments, **options).failure  # type: ignore[arg-type]
        assert failure is not None
        return failure


@pytest.fixture
def run(made: tuple[Assignment, Worker]) -> Run:
    return Run(*made)


def test_collectives_and_messages_are_carried(run: Run) -> None:
    answer = run("all_operations", 3)
    assert answer.failure is None
    for rank, outputs in enumerate(answer.outputs):
        result = outputs["result"]
        assert result["sum"].tolist() == [6.0] * 4
        assert result["rows"].ravel().tolist() == [0.0, 1.0, 2.0]
        assert result["root"].tolist() == [2.0]
        assert result["left"].tolist() == [(rank - 1) % 3]
    assert [call.name for call in answer.calls if call.rank == 0].count("allreduce") == 2
    assert [call.nbytes for call in answer.sent(1)] == [8]


def test_the_clock_is_that_of_the_cost_model(run: Run) -> None:
    assert run("one_message", 2, 1000).clock == pytest.approx(ALPHA + 8000 * BETA, rel=1e-12)


@pytest.mark.parametrize(("ranks", "size"), [(2, 1_000_000), (7, 1)])
def test_a_deadlock_names_the_lines_of_the_student_and_the_cycle(run: Run, ranks: int, size: int) -> None:
    failure = run.failure("ring", ranks, size)
    assert failure.kind == "deadlock in send"
    assert f"rank 0 waits in send of {8 * size:,} bytes to rank 1, at ring.py:4 in allreduce" in failure.text
    assert f"the cycle: {' -> '.join(f'rank {rank}' for rank in (*range(ranks), 0))}" in failure.text
    assert "carrier" not in failure.text


@pytest.mark.parametrize(("number", "kind", "text"), [(n, kind, text) for n, (_, kind, text) in enumerate(FAILURES)])
def test_failures_have_a_kind_and_a_line(run: Run, number: int, kind: str, text: str) -> None:
    failure = run.failure(f"failure_{number}", 2)
    assert failure.kind == kind, failure.text
    assert text.format(file=f"failure_{number}.py") in failure.text


def test_what_has_not_arrived_cannot_be_read(run: Run) -> None:
    answer = run("early", 2)
    assert answer.failure is None
    assert np.isnan(answer.outputs[0]["result"]["early"]).all()
    assert answer.outputs[0]["result"]["late"].tolist() == [2.0] * 4


def test_other_operations_are_refused(run: Run) -> None:
    failure = run.failure("all_operations", 2, operations=("isend", "ireceive"))
    assert failure.kind == "refused operation"
    assert "allreduce is not allowed in this task; allowed: isend, ireceive" in failure.text


def test_module_variables_are_not_shared_by_ranks(run: Run) -> None:
    for _ in range(2):
        assert [outputs["result"] for outputs in run("counting", 3).outputs] == [1, 1, 1]


def test_what_is_printed_is_kept(run: Run) -> None:
    run.worker.printed = ""
    run("printing", 1)
    assert run.worker.printed == "seen 4.0\n"


def test_a_submission_may_have_several_files(run: Run) -> None:
    """The file of the same name on the path is not imported."""
    assert run("doubling", 1).outputs[0]["result"].tolist() == [2.0] * 4


@pytest.mark.parametrize(
    ("text", "kind"), [("import nothing_of_this_name\n", "raised ModuleNotFoundError"), ("x = 1\n", "no function")]
)
def test_a_file_that_does_not_load_is_described(made: tuple[Assignment, Worker], text: str, kind: str) -> None:
    with Worker(made[0], {"made.py": text}, limit=deadline(LIMIT)) as worker:
        assert Run(made[0], worker).failure("made", 1).kind == kind


@pytest.mark.slow
def test_an_endless_loop_ends_at_the_limit_and_the_next_case_runs(run: Run) -> None:
    assert run.failure("endless", 1).kind == "no end"
    assert run("endless", 1, 3).failure is None
