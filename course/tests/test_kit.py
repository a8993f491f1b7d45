"""The kit's own pieces: injection, stubs, handouts, terms, work folders, hints, similarity."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course.tests.made import course_of, submission_zip
from hybridnn.cli.main import main
from hybridnn.comm.blocks import block_bounds
from hybridnn.comm.group import Group
from hybridnn.errors import DataError, SettingError
from hybridnn.nn.activations import ACTIVATIONS
from hybridnn.nn.kernels import Kernels
from hybridnn.pipeline.schedules import computation_orders, methods
from hybridnn_course.answers import Answer, Failure, first_difference
from hybridnn_course.assignment import Bound, Case, Points
from hybridnn_course.checks import check_task
from hybridnn_course.injection import StillUsedError, find, injected
from hybridnn_course.submission import Submission, read_submission
from hybridnn_course.work_folder import MANIFEST, Manifest, WorkFolder, make_archive, open_handed_out, write_files
from hybridnn_course_staff.assignment import Assignment, assignment_packages, load_assignment
from hybridnn_course_staff.assignments.a2_batch.solution import global_gradient
from hybridnn_course_staff.guide import guide_text, read_guide
from hybridnn_course_staff.handing_out import make_student_archives
from hybridnn_course_staff.handout import HandoutError, render_handout
from hybridnn_course_staff.reading import read_in_time
from hybridnn_course_staff.similarity import exported_files
from hybridnn_course_staff.stubs import DriftError, require_same_signature, stub_file
from hybridnn_course_staff.task_key import TaskKey
from hybridnn_course_staff.term import Course, create_course
from hybridnn_course_staff.trusted import TrustedRunner
from hybridnn_course_staff.verify import right_submissions, some_variants, verify_assignment

A2 = load_assignment("a2")
NAMES = tuple(assignment_packages())
CODE = tuple(name for name in NAMES if load_assignment(name).tasks)
KEY = b"a key of 16 byte"


# -- the proof of all assignments -------------------------------------------------------------------------------------


def test_every_mistake_of_a2_is_found_as_itself_and_references_earn_everything() -> None:
    (proof,) = verify_assignment(A2)
    assert proof.problems == ()
    assert proof.mistakes == sum(len(task.mistakes) + len(task.axes) for task in A2.tasks)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_same_of_every_assignment_in_other_variants_with_another_key(name: str) -> None:
    for proof in verify_assignment(load_assignment(name), variants=3, key=b"another key 1234"):
        assert proof.problems == (), proof.variant
        assert (proof.mistakes > 0) == (name in CODE)


def test_an_assignment_has_three_right_submissions_or_more_with_every_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    part = replace(A2, tasks=(replace(A2.task("bounds"), whole=None),))
    rights = list(right_submissions(part))
    found = []
    for number in (3, 2, 1):
        monkeypatch.setattr("hybridnn_course_staff.verify.right_submissions", lambda _, few=rights[:number]: few)
        (proof,) = verify_assignment(part)
        found.append([problem for problem in proof.problems if "right submission" in problem])
    others = ("longer_parts = 'last'", "short_minibatch = 'first'", "bucket_size = 'at most'", "loss_place = 'first'")
    missing = [f"no right submission has {choice}" for choice in others]
    too_few = [f"right submissions: {number}, not 3 or more" for number in (2, 1)]
    assert found == [[], [too_few[0]], [too_few[1], *missing]]


@pytest.mark.parametrize("name", ["a2", "a3", "a4"])
def test_every_term_has_cases_on_6_and_7_ranks(name: str) -> None:
    assignment = load_assignment(name)
    for task in assignment.tasks:
        key = TaskKey(assignment, task, assignment.standard, KEY)
        assert {6, 7} <= {case.ranks for case in key.hidden} or not task.operations, task.name


@pytest.mark.slow
def test_public_and_hidden_cases_have_to_tell_mistakes_apart_alone() -> None:
    task = replace(A2.task("bounds"), whole=None)
    even = task.public(A2.standard)[0]  # 12 items in 4 parts: of two mistakes nothing is seen

    def problems(**changed: Any) -> tuple[str, ...]:
        (proof,) = verify_assignment(replace(A2, tasks=(replace(task, **changed),)))
        return proof.problems

    assert problems() == ("the points add up to 20, not 100",)
    for kind, found in (
        ("public", problems(public=lambda variant: [even])),
        ("hidden", problems(hidden=lambda random, variant, number: even)),
    ):
        for mistake in ("remainder-lost", "remainder-to-one", "rounded-up", "variant:longer_parts=last"):
            assert f"bounds: mistake {mistake}: earns all points of the {kind} cases" in found
        assert not any("last-included" in problem for problem in found)
    twins = problems(public=lambda variant: [replace(even, name="1 item", inputs=({"of": [1, 1]},))])
    expected = (
        "bounds: mistake last-included: is found as none by the public cases alone (the same answers: counted-from-one)"
    )
    assert expected in twins


def test_the_catalogue_is_large_and_the_choices_are_all_proved() -> None:
    assert NAMES == ("a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8")
    assert sum(len(task.mistakes) for name in NAMES for task in load_assignment(name).tasks) >= 80
    for assignment in map(load_assignment, NAMES):
        assert len(assignment.axes) >= 2
        for variants in (some_variants(assignment, 100), some_variants(assignment, 3)):
            for axis, choices in assignment.axes.items():
                assert {variant[axis] for variant in variants} == set(choices)


@pytest.mark.parametrize("name", NAMES)
def test_stubs_and_handouts_are_those_of_their_variant(name: str) -> None:
    """Stubs are programs without bodies."""
    assignment = load_assignment(name)
    for variant in some_variants(assignment, 3):
        for file in assignment.files:
            nodes = ast.walk(ast.parse(stub_file(assignment, file, variant)))
            bodies = [node.body for node in nodes if isinstance(node, ast.FunctionDef)]
            assert bodies
            for body in bodies:
                assert [type(node) for node in body if not isinstance(node, ast.Expr)] == [ast.Raise]
        text = render_handout(assignment, variant, "Write it yourself.")
        assert "{{" not in text
        assert "Write it yourself." in text
        for task in assignment.tasks:
            assert f"`{task.name}`" in text
        for axis, choice in variant.items():
            assert assignment.axes[axis][choice] in text


@pytest.mark.parametrize("name", ["a2", *(pytest.param(name, marks=pytest.mark.slow) for name in CODE if name != "a2")])
def test_a_solution_of_a_term_fails_in_one_where_all_axes_have_moved(name: str) -> None:
    assignment = load_assignment(name)
    old = assignment.standard
    new = {axis: next(item for item in choices if item != old[axis]) for axis, choices in assignment.axes.items()}
    points, found = 0.0, set()
    for task in assignment.tasks:
        key = TaskKey(assignment, task, new, KEY)
        outcome = check_task(TrustedRunner({task.name: task.solution(old)}), key)
        points += outcome.points
        found |= {check.mistake for check in outcome.checks}
    assert points < 60
    assert any(mistake.startswith("variant:") for mistake in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_trainings_depend_on_the_function_and_leave_the_library_as_it_was(name: str) -> None:
    """A known mistake changes the outcome of the training, or ends it."""
    assignment = load_assignment(name)
    before = dict(ACTIVATIONS), vars(Kernels).copy(), methods.METHODS
    for task in assignment.tasks:
        if task.whole is not None:
            target = find(task.target)
            expected = task.whole.expected(assignment.standard)
            outputs = (
                TrustedRunner({task.name: mistake.function(assignment.standard)})
                .run_whole(task, assignment.standard)
                .outputs
                for mistake in task.mistakes
            )
            # The first one is enough: a training with another mistake may last until its time limit.
            changed = (not one or first_difference(one, [expected], task.whole.tolerance) for one in outputs)
            assert any(changed), task.name
            assert find(task.target) == target
    assert (dict(ACTIVATIONS), vars(Kernels).copy(), methods.METHODS) == before


# -- drift ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_renamed_parameter_of_the_library_is_named_by_the_proof(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = computation_orders.one_forward_one_backward

    def renamed(size: Any, position: int) -> Any:
        return original(size, position)

    monkeypatch.setattr(computation_orders, "one_forward_one_backward", renamed)
    with pytest.raises(SystemExit, match="1"):
        main(["course", "verify", "a5"])
    printed = capsys.readouterr().out
    assert "1f1b" in printed
    assert "position" in printed


def test_a_solution_with_other_parameters_is_refused() -> None:
    task = A2.task("bounds")
    with pytest.raises(DriftError, match="items, parts, number"):
        require_same_signature(task, lambda items, parts, number: (0, 0))

    def block_bounds(items: int, parts: int, *, part: int) -> tuple[int, int]:
        return 0, 0

    with pytest.raises(DriftError, match="part is keyword-only"):
        require_same_signature(task, block_bounds)


@pytest.mark.slow
def test_a_method_of_the_library_that_a_task_names_is_compared_by_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target of the task is a function of the assignment, which has `group` for `self`."""
    a3 = load_assignment("a3")
    task = a3.task("allreduce")
    require_same_signature(task, task.solution(a3.standard))

    def allreduce(self: Group, array: np.ndarray[Any, Any], operation: str = "sum") -> None:
        self.broadcast(array)

    monkeypatch.setattr(Group, "allreduce", allreduce)
    (proof,) = verify_assignment(replace(a3, tasks=(task,)))
    assert any(problem.startswith("allreduce: the library's own function fails") for problem in proof.problems)
    monkeypatch.setattr(Group, "allreduce", lambda self, array, reduction="sum": None)
    with pytest.raises(DriftError, match=r"Group\.allreduce has array, reduction"):
        require_same_signature(task, task.solution(a3.standard))


# -- injection --------------------------------------------------------------------------------------------------------


def test_a_function_is_replaced_wherever_it_was_imported_and_comes_back() -> None:
    import hybridnn.comm.blocks as blocks
    import hybridnn.runs.data as data

    original = blocks.block_bounds
    with injected("hybridnn.comm.blocks:block_bounds", len, "hybridnn.runs.data"):
        assert blocks.block_bounds is len
        assert data.block_bounds is len
    assert blocks.block_bounds is original
    assert data.block_bounds is original


def test_methods_are_replaced_in_their_class() -> None:
    original = Group.allreduce
    with injected("hybridnn.comm.group:Group.allreduce", max):
        assert Group.allreduce is max
    assert Group.allreduce is original


def test_what_a_table_still_holds_is_refused() -> None:
    assert all(vars(method) for method in methods.METHODS.values())  # its attributes have a dict of their own then
    order = "hybridnn.pipeline.schedules.computation_orders:one_forward_one_backward"
    with (
        pytest.raises(StillUsedError, match=r"one_forward_one_backward is still used by an object of class Method"),
        injected(order, len, "hybridnn.training.trainer"),
    ):
        pytest.fail("the table of methods was forgotten")
    assert find(order) is not len


# -- hints ------------------------------------------------------------------------------------------------------------


def _outcome(task_name: str, function: Any, **options: Any) -> Any:
    task = A2.task(task_name)
    return check_task(TrustedRunner({task_name: function}), TaskKey(A2, task, A2.standard, **options), whole=False)


def test_average_of_averages_agrees_where_shapes_divide_and_is_named_where_not() -> None:
    task = A2.task("gradient")
    wrong = next(mistake for mistake in task.mistakes if mistake.name == "average-of-averages")
    checks = {check.name: check for check in _outcome("gradient", wrong.function(A2.standard)).checks}
    assert checks["4 ranks with 2, 2, 2, 2 samples"].passed
    uneven = checks["4 ranks with 3, 3, 2, 2 samples"]
    assert not uneven.passed
    assert uneven.mistake == "average-of-averages"


def test_a_mistake_that_is_not_known_gets_no_hint_but_a_pattern() -> None:
    right = A2.task("gradient").solution(A2.standard)

    def twice(*arguments: Any) -> Any:
        gradient, bias_gradient, loss = right(*arguments)
        return 2 * gradient, bias_gradient, loss

    checks = _outcome("gradient", twice).checks
    assert {check.hint for check in checks} == {""}
    assert "every element is 2 times the expected one" in checks[0].message


def test_a_bound_tells_nothing_of_a_hidden_case() -> None:
    """Neither what a submission did there, by which it could tell the inputs, nor what is allowed: a size of them."""
    task = A2.task("bounds")
    names = {case.name for case in task.public(A2.standard)}

    def budget(exceeds_public: bool, case: Case, *_: Any) -> list[Bound]:
        return [Bound("calls", 24176 if (case.name in names) == exceeds_public else 1, full=144, zero=200)]

    for exceeds_public, message in (
        (True, "yours 24176, allowed 144"),
        (False, "more than is allowed in a hidden case"),
    ):
        points = Points(public=1, hidden=1, budget=1)
        key = TaskKey(A2, replace(task, budget=partial(budget, exceeds_public), points=points), A2.standard, b"key")
        outcome = check_task(TrustedRunner({task.name: task.solution(A2.standard)}), key)
        assert [check.message for check in outcome.checks if check.kind == "budget"] == [message]


def test_answers_that_two_mistakes_give_are_not_accused() -> None:
    task = A2.task("bounds")
    key = TaskKey(A2, task, A2.standard)
    wrong = {mistake.name: mistake for mistake in task.mistakes}
    number = 2  # 3 items, 5 parts: rounding up gives the right answer, and the lost remainder does not
    assert key.diagnose({number: key.wrong(wrong["remainder-lost"], number)}, with_traffic=False) is not None
    assert key.diagnose({0: key.expected(0)}, with_traffic=False) is None


def test_a_stub_gets_no_hint() -> None:
    key = TaskKey(A2, A2.task("bounds"), A2.standard)
    answers = {0: Answer(failure=Failure("not written", ""))}
    assert key.diagnose(answers, with_traffic=False) is None


def test_messages_of_hidden_cases_show_no_inputs() -> None:
    outcome = _outcome("bounds", lambda items, parts, part: (items, parts), key=b"k" * 16)
    hidden = [check for check in outcome.checks if check.kind == "hidden"]
    assert hidden
    for check in hidden:
        assert check.message == "wrong outputs"
        assert check.name.startswith("hidden case")


# -- handouts ---------------------------------------------------------------------------------------------------------


def test_an_unknown_name_in_a_handout_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "handout.md").write_text("{{points}} {{direction}}")
    monkeypatch.setattr(Assignment, "folder", lambda self: tmp_path)
    with pytest.raises(HandoutError, match="unknown name 'direction'"):
        render_handout(A2, A2.standard)


@pytest.mark.parametrize("name", NAMES)
def test_a_guide_has_what_a_lecturer_needs(name: str) -> None:
    assignment = load_assignment(name)
    guide, text = read_guide(assignment), guide_text(assignment)
    assert len(guide.objectives) >= 3
    for page in filter(None, (guide.reading, guide.notebook)):
        assert (Path(__file__).parents[2] / page).exists()
    for part in (*guide.objectives, guide.prerequisites, guide.question, f"Hours: {assignment.hours:g}, an estimate"):
        assert part in text
    for task in assignment.tasks:
        assert f"## {task.name}: {task.points.total:g} points" in text
        assert all(f"* `{mistake.name}`: {mistake.hint}" in text for mistake in task.mistakes)


# -- terms and folders ------------------------------------------------------------------------------------------------


def test_a_course_has_a_secret_key_and_reads_as_it_was_written(tmp_path: Path) -> None:
    course = create_course(tmp_path / "course", "Spring 2027", ["a2", "a3"])
    assert (tmp_path / "course" / "term.key").stat().st_mode & 0o777 == 0o600
    again = Course.open(tmp_path / "course")
    assert (again.key, again.settings) == (course.key, course.settings)
    assert again.assignments == ("a2", "a3")
    with pytest.raises(DataError, match="there is a course already"):
        create_course(tmp_path / "course", "Spring 2027", ["a2"])


def test_students_have_variants_of_their_own_that_depend_on_the_key(tmp_path: Path) -> None:
    course = create_course(tmp_path / "course", "Spring 2027", ["a3"], per_student=True)
    assignment = load_assignment("a3")
    variants = [course.variant(assignment, f"student {number}") for number in range(40)]
    assert variants == [course.variant(assignment, f"student {number}") for number in range(40)]
    for axis, choices in assignment.axes.items():
        assert {variant[axis] for variant in variants} == set(choices)


def test_a_folder_becomes_a_submission_that_can_be_graded(tmp_path: Path) -> None:
    course = course_of(tmp_path / "course", "a2")
    (path,) = make_student_archives(course, A2, ["Ada Lovelace"], tmp_path / "build")
    manifest, files = open_handed_out(path)
    assert manifest.student == "Ada Lovelace"
    write_files(tmp_path / "work", files)
    with pytest.raises(DataError, match="exists already"):
        write_files(tmp_path / "work", files)
    archive, packed = WorkFolder.open(tmp_path / "work").submission()
    assert set(packed) == {MANIFEST, "blocks.py", "gradient.py"}
    assert read_submission(A2, archive).manifest == manifest
    assert make_archive(packed) == archive


def test_the_code_of_the_library_is_recognized_whatever_its_names() -> None:
    """But for short functions, of which there are few forms."""
    renamed = re.sub(r"\b(logits|rows|delta|sums|total)\b", r"my_\1", inspect.getsource(global_gradient))
    text = renamed.replace("    my_rows =", "    0\n    my_rows =")
    submission = read_in_time(A2, submission_zip(A2, A2.standard, {"gradient.py": text}))
    assert submission.flags == (
        "gradient.py: global_gradient in line 1 has 100% of its code from the reference or the library",
    )
    assert read_in_time(A2, submission_zip(A2, A2.standard, {"blocks.py": inspect.getsource(block_bounds)})).flags == ()


def test_other_programs_get_the_code_of_submissions_and_what_is_published() -> None:
    files = {"blocks.py": "x = 1\n", "gradient.py": ""}
    manifest = Manifest(assignment="a2", variant=A2.standard)
    found = exported_files(A2, A2.standard, {"../ada 1/a2.zip": Submission(manifest, files, ())})
    assert found.pop("base") == {name: stub_file(A2, name, A2.standard) for name in A2.files}
    assert list(found)[-1] == "submissions/006-.._ada_1_a2.zip"
    assert found["submissions/006-.._ada_1_a2.zip"] == files
    assert found["submissions/001-the_reference"]["solution.py"] == (A2.folder() / "solution.py").read_text()
    assert {name.partition("-")[2] for name in found} >= {"the_library", "right_one", "right_two", "right_three"}


def test_unknown_names_are_refused_in_one_line() -> None:
    with pytest.raises(SettingError, match="one of a1, a2"):
        load_assignment("b7")
    with pytest.raises(SettingError, match="of a2: bounds, minibatches"):
        A2.task("nothing")
