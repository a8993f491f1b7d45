"""The file of cases: what a student's computer knows is what the staff's functions say, and no more."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from hybridnn.errors import DataError
from hybridnn_course.answers import Answer, Failure, answer_digest
from hybridnn_course.case_file import CASES, CaseFile
from hybridnn_course.checks import check_task
from hybridnn_course.work_folder import Manifest
from hybridnn_course_staff.assignment import assignment_packages, load_assignment
from hybridnn_course_staff.handing_out import start_files
from hybridnn_course_staff.task_key import TaskKey
from hybridnn_course_staff.trusted import TrustedRunner
from hybridnn_course_staff.verify import some_variants

CODE = [name for name in assignment_packages() if load_assignment(name).tasks]


def stored_and_own(name: str, variant: dict[str, str]) -> tuple[CaseFile, dict[str, TaskKey]]:
    """The file of an assignment as a student reads it, and the keys that it was made from."""
    assignment = load_assignment(name)
    keys = {task.name: TaskKey(assignment, task, variant) for task in assignment.tasks}
    return CaseFile.read(CaseFile(assignment, variant, keys).pack(), "cases.bin"), keys


@pytest.mark.parametrize("name", ["a2", *(pytest.param(one, marks=pytest.mark.slow) for one in CODE if one != "a2")])
def test_a_student_reads_of_every_known_mistake_what_the_staff_reads(name: str) -> None:
    """The same points, messages and hints, for the reference, all mistakes and the solutions of other variants."""
    for variant in some_variants(load_assignment(name), 2):
        stored, keys = stored_and_own(name, variant)
        assert stored.assignment.files == load_assignment(name).files
        for task in load_assignment(name).tasks:
            own, theirs = keys[task.name], stored.keys[task.name]
            assert [case.name for case in theirs.cases] == [case.name for case in own.public]
            for function in (task.solution(variant), *(mistake.function(variant) for mistake in own.mistakes)):
                runner = TrustedRunner({task.name: function})
                outcome = check_task(runner, theirs, whole=False)
                assert outcome == check_task(runner, own, whole=False)
            assert not any(check.passed for check in outcome.checks if check.mistake)
            if task.whole is not None:
                assert theirs.whole.outputs[0].keys() == own.whole.outputs[0].keys()


def test_the_file_has_no_code_and_no_answer_of_a_mistake() -> None:
    """Only the right answers can be read in it: those of a mistake are digests, which differ between terms."""
    stored, keys = stored_and_own("a2", load_assignment("a2").standard)
    data = CaseFile(load_assignment("a2"), stored.variant, keys).pack()
    assert not re.search(rb"def |lambda|return |import ", data)
    manifest = Manifest(assignment="a2", variant=stored.variant)
    one, two = (
        CaseFile.read(start_files(load_assignment("a2"), manifest, key=key)[CASES], CASES).keys["bounds"]
        for key in (b"one", b"two")
    )
    for mistake, again in zip(one.mistakes, two.mistakes, strict=True):
        assert one.digest(mistake, 1, with_traffic=False) != two.digest(again, 1, with_traffic=False)


def test_a_file_calls_functions_of_exercises_only() -> None:
    stored, keys = stored_and_own("a2", load_assignment("a2").standard)
    task = replace(stored.assignment.tasks[0], call=np.load)
    foreign = replace(stored, assignment=replace(stored.assignment, tasks=(task,)))
    with pytest.raises(ValueError, match=r"is not in hybridnn_course\.exercises"):
        foreign.pack()
    data = CaseFile(load_assignment("a2"), stored.variant, keys).pack()
    for damaged in (
        b"",
        data[:-1],
        data[:100],
        data.replace(b"a2_batch.calls:call_bounds", b"os.path.calls:call_bounds"),
    ):
        with pytest.raises(DataError, match="is not the file of cases"):
            CaseFile.read(damaged, "cases.bin")
    with pytest.raises(DataError, match="another version"):
        CaseFile.read(data.replace(b'"version": 1', b'"version": 0'), "cases.bin")


def test_rounding_errors_and_huge_numbers_do_not_change_a_digest() -> None:
    random = np.random.default_rng(1)
    values = random.normal(size=1000) * 10.0 ** random.integers(-3, 4, 1000)
    expected = Answer(({"y": values, "loss": 2.5},))

    def digest(y: object, loss: object = 2.5) -> str:
        return answer_digest(Answer(({"y": y, "loss": loss},)), expected, b"salt")

    first = digest(values)
    assert first == digest(values * (1 + 1e-14)) == digest(values + 1e-12, 2.5 * (1 + 1e-15))
    for other in (digest(values + 1e-2), digest(values.astype("f4")), digest(values[:-1]), digest(list(values))):
        assert other != first
    assert digest(values, float("nan")) == digest(values, np.float64("nan")) != digest(values, float("inf"))
    assert digest(values, 10**400) != first
    assert digest(values, 3) == digest(values, 3.0) != digest(values, None)
    assert answer_digest(Answer(failure=Failure("memory", "a")), expected, b"") != first
