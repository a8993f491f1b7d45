"""Proof of an assignment: references earn all points, the stub none, and every known mistake gets its own hint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from hybridnn.utils.files import read_toml
from hybridnn_course.assignment import OTHER_VARIANT, Variant
from hybridnn_course.carrier import Worker
from hybridnn_course.checks import Tried, check_task
from hybridnn_course.injection import find
from hybridnn_course.outcome import TaskOutcome
from hybridnn_course.submission import file_flags
from hybridnn_course_staff.assignment import Assignment, Mistake
from hybridnn_course_staff.handout import HandoutError, render_handout
from hybridnn_course_staff.reading import copy_flags
from hybridnn_course_staff.stubs import DriftError, require_same_signature, stub_file
from hybridnn_course_staff.task_key import TaskKey
from hybridnn_course_staff.trusted import TrustedRunner

KEY = b"key of the proof"
RIGHT_SUBMISSIONS = 3  # or more, of every assignment with tasks


@dataclass(frozen=True)
class Proof:
    """What was proved about an assignment in one variant.

    Attributes
    ----------
    mistakes : int
        Mistakes that were caught, solutions of other variants among them.
    problems : tuple of str
        What does not hold.
    """

    assignment: str
    variant: Variant
    tasks: int
    mistakes: int
    problems: tuple[str, ...]


def verify_assignment(assignment: Assignment, variants: int = 1, key: bytes = KEY) -> Iterator[Proof]:
    """Prove an assignment in the standard variant, and in others until all choices or `variants` are used."""
    for number, variant in enumerate(some_variants(assignment, variants)):
        proof = _verify_variant(assignment, variant, key, is_standard=number == 0)
        if number == 0:
            rights = list(right_submissions(assignment))
            problems = [problem for right in rights for problem in _verify_right(right, key)]
            proof = replace(proof, problems=(*proof.problems, *problems, *_missing_rights(assignment, rights)))
        yield proof


def some_variants(assignment: Assignment, count: int) -> list[dict[str, str]]:
    """The standard variant, then such in which every axis has another choice."""
    found = [assignment.standard]
    axes = {axis: list(choices) for axis, choices in assignment.axes.items()}
    random = Random(assignment.id)
    for number in range(1, max([count, *map(len, axes.values())])):
        if len(found) == count:
            break
        shift = {
            axis: number if number < len(choices) else random.randrange(len(choices)) for axis, choices in axes.items()
        }
        variant = {axis: choices[shift[axis]] for axis, choices in axes.items()}
        if variant not in found:
            found.append(variant)
    return found


def _verify_variant(assignment: Assignment, variant: Variant, key: bytes, *, is_standard: bool) -> Proof:
    problems: list[str] = []
    count = 0
    if abs(assignment.points - 100) > 1e-9:
        problems.append(f"the points add up to {assignment.points:g}, not 100")
    problems += _problem(lambda: render_handout(assignment, variant), HandoutError)
    keys = {task.name: TaskKey(assignment, task, variant, key) for task in assignment.tasks}
    for task in assignment.tasks:
        solution = task.solution(variant)
        problems += _problem(partial(require_same_signature, task, solution), DriftError)
        problems += _not_full("the reference", _checked(keys[task.name], solution))
        if is_standard:
            problems += _verify_library(assignment, keys[task.name])
        for mistake in keys[task.name].mistakes:
            if mistake.name.startswith(OTHER_VARIANT) and "," in mistake.name:
                continue  # several axes at once: those of one axis show that the axes make a difference
            count += 1
            problems += _verify_mistake(keys[task.name], mistake)
    problems += _verify_stub(assignment, variant, keys)
    return Proof(assignment.id, variant, len(assignment.tasks), count, tuple(problems))


@dataclass(frozen=True)
class RightSubmission:
    """Another right solution of every task of an assignment, written without the reference."""

    assignment: Assignment
    name: str
    variant: Variant
    files: dict[str, str]

    def functions(self) -> dict[str, Callable[..., object]]:
        """The function of each task."""
        modules: dict[str, dict[str, Any]] = {}
        for name, text in self.files.items():
            modules[name] = {"__name__": f"{self.assignment.id}_{self.name}_{name.removesuffix('.py')}"}
            exec(compile(text, f"right/{self.name}/{name}", "exec", dont_inherit=True), modules[name])
        return {task.name: modules[task.file][task.function] for task in self.assignment.tasks}


def right_submissions(assignment: Assignment) -> Iterator[RightSubmission]:
    """The submissions in the folder ``right`` of an assignment, in the standard variant or that of ``variant.toml``."""
    for folder in sorted(assignment.folder().glob("right/*/")):
        settings = folder / "variant.toml"
        variant = dict(read_toml(settings)) if settings.exists() else assignment.standard
        files = {name: (folder / name).read_text(encoding="utf-8") for name in assignment.files}
        yield RightSubmission(assignment, folder.name, assignment.require_variant(variant), files)


def _missing_rights(assignment: Assignment, rights: Sequence[RightSubmission]) -> list[str]:
    """Whether there are too few right submissions, and the choices that none of them has: students have all of them."""
    if not assignment.tasks:
        return []
    too_few = len(rights) < RIGHT_SUBMISSIONS
    problems = [f"right submissions: {len(rights)}, not {RIGHT_SUBMISSIONS} or more"] if too_few else []
    return problems + [
        f"no right submission has {axis} = {choice!r}"
        for axis, choices in assignment.axes.items()
        for choice in choices
        if all(right.variant[axis] != choice for right in rights)
    ]


def _verify_right(right: RightSubmission, key: bytes) -> list[str]:
    """What another right solution loses, and what a person would be asked to look at."""
    who, functions, problems = f"the right submission {right.name}", right.functions(), []
    for task in right.assignment.tasks:
        outcome = check_task(TrustedRunner(functions), TaskKey(right.assignment, task, right.variant, key))
        problems += _not_full(who, outcome)
        problems += [f"{who} is flagged: {flag}" for flag in outcome.flags]
    flags = [flag for name, text in right.files.items() for flag in file_flags(right.assignment, name, text)]
    flags += copy_flags(right.assignment, right.files)
    return [*problems, *(f"{who} is flagged: {flag}" for flag in flags)]


def _verify_library(assignment: Assignment, key: TaskKey) -> list[str]:
    """What the library's own function loses, in a task that has one; of the budget only where it is the target."""
    task = key.task
    is_target = not task.target.startswith(assignment.package) and task.parameters is None
    if not (is_target or task.library):
        return []
    runner = TrustedRunner({task.name: find(task.library or task.target)})
    return _not_full("the library's own function", check_task(runner, key, budget=is_target, whole=False))


def _problem(action: Callable[[], object], *kinds: type[Exception]) -> list[str]:
    try:
        action()
    except kinds as error:
        return [str(error)]
    return []


def _checked(key: TaskKey, function: Callable[..., object], *, whole: bool = True) -> TaskOutcome:
    return check_task(TrustedRunner({key.task.name: function}), key, whole=whole)


def _not_full(who: str, outcome: TaskOutcome) -> list[str]:
    return [
        f"{outcome.name}: {who} fails {check.kind} check {check.name!r}: {check.message}"
        for check in outcome.checks
        if not check.passed
    ]


def _found_alone(key: TaskKey, mistake: Mistake, numbers: Sequence[int]) -> str | None:
    """As which mistake a known one is found by some cases alone: empty for none, and None where it earns all points."""
    tried = Tried(key, {number: key.wrong(mistake, number) for number in numbers})
    bounds = [bound for number in numbers if tried.is_right(number) for bound in tried.bounds(number)]
    if all(map(tried.is_right, numbers)) and all(bound.fraction > 1 - 1e-9 for bound in bounds):
        return None
    return "" if tried.mistake is None else tried.mistake.name


def _verify_mistake(key: TaskKey, mistake: Mistake) -> list[str]:
    """It fails, and is found as itself by all cases, by the public ones alone, and by the hidden ones alone."""
    name = f"{key.task.name}: mistake {mistake.name}"
    if not mistake.hint.strip().endswith("?"):
        return [f"{name}: its hint does not end with a question"]
    outcome = _checked(key, mistake.function(key.variant), whole=False)
    failed = [check for check in outcome.checks if not check.passed]
    if not failed:
        return [f"{name}: earns all points"]
    found = {check.mistake for check in failed if check.mistake}
    if found != {mistake.name}:
        twins = _twins(key, mistake, range(len(key.cases)))
        return [f"{name}: is found as {', '.join(sorted(found)) or 'none'}{twins}"]
    problems = []
    for kind, numbers in (("public", range(len(key.public))), ("hidden", range(len(key.public), len(key.cases)))):
        alone = _found_alone(key, mistake, numbers) if numbers else mistake.name
        if alone is None:
            problems.append(f"{name}: earns all points of the {kind} cases")
        elif alone != mistake.name:
            twins = _twins(key, mistake, numbers)
            problems.append(f"{name}: is found as {alone or 'none'} by the {kind} cases alone{twins}")
    return problems


def _twins(key: TaskKey, mistake: Mistake, numbers: Sequence[int]) -> str:
    """Which other mistakes give the same answers to these cases."""
    twins = [
        other.name
        for other in key.mistakes
        if other is not mistake and all(key.digest(other, number) == key.digest(mistake, number) for number in numbers)
    ]
    return f" (the same answers: {', '.join(twins)})" if twins else ""


def _verify_stub(assignment: Assignment, variant: Variant, keys: dict[str, TaskKey]) -> list[str]:
    """The stub earns nothing, and says that it is not written."""
    problems: list[str] = []
    files = {name: stub_file(assignment, name, variant) for name in assignment.files}
    if not files:
        return problems
    with Worker(assignment, files) as worker:
        for task in assignment.tasks:
            outcome = check_task(worker, keys[task.name])
            if outcome.points:
                problems.append(f"{task.name}: the stub earns {outcome.points:g} points")
            if "not written yet" not in outcome.checks[0].message:
                problems.append(f"{task.name}: the stub says {outcome.checks[0].message!r}")
    return problems
