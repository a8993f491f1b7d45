"""Checks of a submission: cases, bounds and trainings of every task, compared with the reference solution."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Protocol

from hybridnn_course.answers import NOT_WRITTEN, Answer, Failure, first_difference, same_answer
from hybridnn_course.assignment import OTHER_VARIANT, Assignment, Bound, Case, Mistake, Task, Variant
from hybridnn_course.execution import KINDS, run_trusted, seeded
from hybridnn_course.outcome import CheckOutcome, Kind, TaskOutcome
from hybridnn_course.patterns import describe_difference
from hybridnn_course.stubs import not_written, returns_value

DEADLOCK = re.compile(
    r"deadlock in ((send|receive|allreduce|allgather|barrier)( and )?)*(, with calls that match none)?"
)
FAILURES = frozenset(
    [
        *KINDS.values(),
        *(NOT_WRITTEN, "ended", "memory", "no end", "no function", "wrong output"),
        *("refused operation", "communication error", "too much communication"),
    ]
)
"""Kinds of failures that the kit names."""

LEAST_CARRIED = 0.25
"""Least share of the bytes of a reference's rank that every rank has to send and receive.

Without messages, right outputs come from elsewhere. To know the sum of arrays of random numbers, a rank has to send its
array once and to receive one, which is at least half of what it does in a ring, and as much as a leaf of a tree does.
The other half is for elements of a smaller type.
"""

IMPOSSIBLE = "impossible"


class Runner(Protocol):
    """Interface of what runs the student's functions."""

    def run(self, task: Task, case: Case, variant: Variant) -> Answer:
        """The answer to a case."""

    def run_whole(self, task: Task, variant: Variant) -> Answer:
        """The outcome of the training."""


class TaskKey:
    """Cases of a task, and the answers of the reference solution and of every known mistake to them.

    Parameters
    ----------
    key : bytes or None
        Key of the term, from which the hidden cases are made; None: public cases only.
    student : str
        Whose hidden cases they are; empty: the same for all.
    """

    def __init__(
        self, assignment: Assignment, task: Task, variant: Variant, key: bytes | None = None, student: str = ""
    ) -> None:
        self.assignment, self.task, self.variant = assignment, task, variant
        self.public = tuple(task.public(variant))
        self.hidden: tuple[Case, ...] = ()
        if key is not None:
            self.hidden = tuple(
                task.hidden(seeded(key, assignment.id, task.name, student, number), variant, number)
                for number in range(task.hidden_cases)
            )
        self._expected: dict[int, Answer] = {}
        self._wrong: dict[tuple[str, int], Answer] = {}

    @property
    def cases(self) -> tuple[Case, ...]:
        """Public cases, then hidden ones."""
        return self.public + self.hidden

    def expected(self, number: int) -> Answer:
        """The answer of the reference solution to a case."""
        if number not in self._expected:
            answer = run_trusted(self.task, self.task.solution(self.variant), self.cases[number], self.variant)
            if answer.failure is not None:
                raise RuntimeError(f"{self.task.name}, {self.cases[number].name}: {answer.failure.text}")
            self._expected[number] = answer
        return self._expected[number]

    def wrong(self, mistake: Mistake, number: int) -> Answer:
        """The answer of a known mistake to a case."""
        found = self._wrong.get((mistake.name, number))
        if found is None:
            found = run_trusted(self.task, mistake.function(self.variant), self.cases[number], self.variant)
            self._wrong[mistake.name, number] = found
        return found

    @cached_property
    def mistakes(self) -> tuple[Mistake, ...]:
        """Known mistakes of this variant, with the solutions of other variants."""
        return tuple(
            mistake
            for mistake in (*self.task.mistakes, *other_variants(self.assignment, self.task, self.variant))
            if mistake.applies(self.variant)
        )

    @cached_property
    def whole(self) -> Answer:
        """Outcome of the training without the student's function."""
        assert self.task.whole is not None
        return Answer(outputs=(self.task.whole.expected(self.variant),))


def other_variants(assignment: Assignment, task: Task, variant: Variant) -> Iterator[Mistake]:
    """The solutions of all other variants of a task, as mistakes; first those that differ in one axis."""
    choices = [list(assignment.axes[axis]) for axis in task.axes]
    others = [dict(zip(task.axes, chosen, strict=True)) for chosen in product(*choices)]
    changes = [{axis: choice for axis, choice in other.items() if choice != variant[axis]} for other in others]
    for changed in sorted(filter(None, changes), key=len):
        other = {**variant, **changed}
        sentences = " ".join(assignment.axes[axis][choice] for axis, choice in changed.items())
        hint = f"This solves another variant: {sentences} What does your handout say about this?"

        def solution(_: Variant, other: Variant = other) -> Callable[..., object]:
            function: Callable[..., object] = task.solution(other)
            return function

        name = ",".join(f"{axis}={choice}" for axis, choice in changed.items())
        yield Mistake(f"{OTHER_VARIANT}{name}", solution, hint)


@dataclass
class _Tried:
    """Answers of a submission to the cases of a task."""

    key: TaskKey
    answers: dict[int, Answer]

    def is_right(self, number: int) -> bool:
        """Whether the answer to a case is right."""
        return self._problem(number) is None

    def _problem(self, number: int) -> str | None:
        answer, expected = self.answers[number], self.key.expected(number)
        if answer.failure is not None:
            return answer.failure.text
        difference = first_difference(answer.outputs, expected.outputs, self.key.task.tolerance)
        if difference is None:
            return self.impossible(number) or None
        text = describe_difference(difference, answer.outputs, expected.outputs)
        given = self.key.cases[number].inputs[difference.rank].get(difference.where)
        if difference.is_left_as_given(answer.outputs[difference.rank].get(difference.where), given):
            text += "; this is the value from before the call"
        return text + self._about_result(answer)

    def _about_result(self, answer: Answer) -> str:
        """Whether a function that has to return something returned None, or the other way round."""
        returns = returns_value(self.key.task)
        if returns is None or answer.returned_none is None or returns != answer.returned_none:
            return ""
        return "; the function returned None" if returns else "; the function returned a value, which is not used"

    def has_right_outputs(self, number: int) -> bool:
        """Whether the outputs of an answer are right, however they were exchanged."""
        return same_answer(self.answers[number], self.key.expected(number), self.key.task.tolerance)

    def impossible(self, number: int) -> str:
        """Why right outputs cannot be the result of the messages; empty where they can."""
        ranks = range(self.key.cases[number].ranks)
        if len(ranks) == 1:
            return ""
        of_reference = list(map(self.key.expected(number).carried_bytes, ranks))
        least = LEAST_CARRIED * min(filter(None, of_reference), default=0)
        for rank, own in enumerate(map(self.answers[number].carried_bytes, ranks)):
            if not (of_reference[rank] and own < least and self.has_right_outputs(number)):
                continue
            if not self._is_known_to_suffice(number, rank, own):
                carried = f"rank {rank} sent and received {own:,} bytes by the group, and needs at least {least:,.0f}"
                return f"{IMPOSSIBLE}: right outputs without the messages that they need: {carried}"
        return ""

    def _is_known_to_suffice(self, number: int, rank: int, nbytes: int) -> bool:
        """Whether a known mistake, which is right in this case, does with as few bytes: some cases need none."""
        known = (self.key.wrong(mistake, number) for mistake in self.key.mistakes)
        expected, tolerance = self.key.expected(number), self.key.task.tolerance
        return any(one.carried_bytes(rank) <= nbytes and same_answer(one, expected, tolerance) for one in known)

    def flag(self, number: int) -> str:
        """What a person should look at in an answer; empty if nothing."""
        text = self.impossible(number)
        return f"{self.key.task.name}: {text}" if text else ""

    def problem(self, number: int) -> str:
        """What is wrong with an answer; empty if nothing is."""
        return self._problem(number) or ""

    def bounds(self, number: int) -> Sequence[Bound]:
        """What the budget bounds in a case."""
        budget = self.key.task.budget
        return [] if budget is None else budget(self.key.cases[number], self.answers[number], self.key.variant)

    @cached_property
    def mistake(self) -> Mistake | None:
        """The only known mistake that gives the same answers to all cases; None where there is none, or several."""
        return diagnose(self.key, self.answers, with_traffic=all(map(self.has_right_outputs, self.answers)))


def found_alone(key: TaskKey, mistake: Mistake, numbers: Sequence[int]) -> str | None:
    """As which mistake a known one is found by some cases alone: empty for none, and None where it earns all points."""
    tried = _Tried(key, {number: key.wrong(mistake, number) for number in numbers})
    bounds = [bound for number in numbers if tried.is_right(number) for bound in tried.bounds(number)]
    if all(map(tried.is_right, numbers)) and all(bound.fraction > 1 - 1e-9 for bound in bounds):
        return None
    return "" if tried.mistake is None else tried.mistake.name


def diagnose(key: TaskKey, answers: dict[int, Answer], *, with_traffic: bool) -> Mistake | None:
    """The only known mistake that gives the same answers to all these cases; of other variants the first one.

    Parameters
    ----------
    with_traffic : bool
        Whether the communication has to be the same, too: where only that is wrong.
    """
    if all(answer.failure is not None and answer.failure.kind == NOT_WRITTEN for answer in answers.values()):
        return None
    tolerance = key.task.tolerance
    found = [
        mistake
        for mistake in key.mistakes
        if all(
            same_answer(answer, key.wrong(mistake, number), tolerance, with_traffic=with_traffic)
            for number, answer in answers.items()
        )
    ]
    is_clear = len(found) == 1 or (bool(found) and all(item.name.startswith(OTHER_VARIANT) for item in found))
    return found[0] if is_clear else None


def check_task(
    runner: Runner, key: TaskKey, *, budget: bool = True, whole: bool = True, stop: Callable[[], bool] = lambda: False
) -> TaskOutcome:
    """All checks of a task.

    Parameters
    ----------
    stop : callable
        Asked before each check; once it returns True, the rest is not tried.
    """
    task, variant = key.task, key.variant
    tried = _Tried(key, {})
    endless = False
    for number, case in enumerate(key.cases):
        if endless or stop():
            break
        tried.answers[number] = answer = runner.run(task, case, variant)
        endless = _is_final(key, answer)
    checks = [_case_check(tried, number) for number in range(len(key.cases))]
    if task.budget is not None and task.points.budget and budget:
        checks += _budget_checks(tried)
    if task.whole is not None and task.points.whole and whole:
        may_run = all(map(tried.is_right, tried.answers)) and len(tried.answers) == len(key.cases) and not stop()
        checks.append(_whole_check(runner, key, may_run))
    flags = dict.fromkeys(filter(None, map(tried.flag, tried.answers)))
    return TaskOutcome(name=task.name, checks=tuple(checks), flags=tuple(flags))


def _is_final(key: TaskKey, answer: Answer) -> bool:
    """Whether other cases would end in the same way: not where the function calls another one that is not written."""
    failure = answer.failure
    if failure is None or failure.kind not in ("no end", NOT_WRITTEN, "no function"):
        return False
    others = [task for task in key.assignment.tasks if task is not key.task]
    return not any(not_written(key.assignment, other) in failure.text for other in others)


def _case_check(tried: _Tried, number: int) -> CheckOutcome:
    key = tried.key
    kind: Kind = "public" if number < len(key.public) else "hidden"
    count = len(key.public) if kind == "public" else len(key.hidden)
    possible = getattr(key.task.points, kind) / count
    case = key.cases[number]
    name = case.name if kind == "public" else f"hidden case {number - len(key.public) + 1}"
    check = CheckOutcome(name=name, kind=kind, points=0, possible=possible)
    if number not in tried.answers:
        return check.model_copy(update={"not_tried": True, "message": "not tried, as an earlier case did not end"})
    if tried.is_right(number):
        return check.model_copy(update={"points": possible})
    mistake = tried.mistake
    message = tried.problem(number)
    update = {"message": message if kind == "public" else _without_inputs(tried, number)}
    if mistake is not None:
        update |= {"hint": mistake.hint, "mistake": mistake.name}
    return check.model_copy(update=update)


def _without_inputs(tried: _Tried, number: int) -> str:
    """What a student may know of a wrong answer to a hidden case."""
    case, failure = tried.key.cases[number], tried.answers[number].failure
    ranks = f"{case.ranks} ranks: " if case.ranks > 1 else ""
    if failure is None:
        return f"{ranks}{IMPOSSIBLE if tried.impossible(number) else 'wrong outputs'}"
    return f"{ranks}{_known_kind(failure.kind)}"


def _known_kind(kind: str) -> str:
    """The kind of a failure, without that of an exception: the submission could tell the inputs by it."""
    if kind.startswith("raised "):
        return "raised an exception"
    return kind if kind in FAILURES or DEADLOCK.fullmatch(kind) else "failed"


def _budget_checks(tried: _Tried) -> list[CheckOutcome]:
    """One check for each bounded quantity, over all cases; a case without a right answer has no points."""
    key = tried.key
    fractions: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    worst: dict[str, Bound] = {}
    for number in range(len(key.cases)):
        right = number in tried.answers and tried.is_right(number)
        reference = replace(tried, answers={number: key.expected(number)})
        bounds = tried.bounds(number) if right else reference.bounds(number)
        for bound in bounds:
            fractions.setdefault(bound.what, []).append(bound.fraction if right else 0.0)
            if right and bound.full > 0:
                ratios.setdefault(bound.what, []).append(bound.value / bound.full)
            if right and (bound.what not in worst or bound.fraction < worst[bound.what].fraction):
                worst[bound.what] = bound
    checks = []
    all_right = len(tried.answers) == len(key.cases) and all(map(tried.is_right, tried.answers))
    for what, values in fractions.items():
        possible = key.task.points.budget / len(fractions)
        fraction = sum(values) / len(values)
        measured = ratios.get(what, [])
        ratio = sum(measured) / len(measured) if all_right and len(measured) == len(values) else None
        check = CheckOutcome(name=what, kind="budget", points=possible * fraction, possible=possible, ratio=ratio)
        if fraction < 1 - 1e-9:
            largest = worst.get(what)
            message = "counted only where the outputs are right"
            if largest is not None and largest.fraction < 1:
                message = f"yours {largest.value:.6g}, allowed {largest.full:.6g}"
            update: dict[str, object] = {"message": message, "not_tried": not worst}
            if all_right and tried.mistake is not None:
                update |= {"hint": tried.mistake.hint, "mistake": tried.mistake.name}
            check = check.model_copy(update=update)
        checks.append(check)
    return checks


def _whole_check(runner: Runner, key: TaskKey, may_run: bool) -> CheckOutcome:
    whole = key.task.whole
    assert whole is not None
    possible = key.task.points.whole
    check = CheckOutcome(name=whole.name, kind="whole", points=0, possible=possible)
    if not may_run:
        message = "not tried: every case has to be right first"
        return check.model_copy(update={"not_tried": True, "message": message})
    answer = runner.run_whole(key.task, key.variant)
    if answer.failure is not None:
        return check.model_copy(update={"message": answer.failure.text})
    difference = first_difference(answer.outputs, key.whole.outputs, whole.tolerance)
    if difference is not None:
        return check.model_copy(update={"message": f"{difference.where}: {difference.text}"})
    return check.model_copy(update={"points": possible})


class TrustedRunner:
    """Runs the kit's own functions, one for each task, as a submission."""

    def __init__(self, functions: dict[str, Callable[..., object]]) -> None:
        self._functions = functions

    def run(self, task: Task, case: Case, variant: Variant) -> Answer:
        """The answer to a case."""
        return run_trusted(task, self._functions[task.name], case, variant)

    def run_whole(self, task: Task, variant: Variant) -> Answer:
        """The outcome of the training."""
        assert task.whole is not None
        from hybridnn_course.execution import failure_of

        try:
            return Answer(outputs=(task.whole.run(self._functions[task.name], variant),))
        except Exception as error:
            failure: Failure = failure_of(error)
            return Answer(failure=failure)
