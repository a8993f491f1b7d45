"""Checks of a submission: cases, bounds and trainings of every task, compared with the right answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from hybridnn_course.answer_key import AnswerKey, KnownMistake
from hybridnn_course.answers import DEADLOCK, NOT_WRITTEN, Answer, first_difference
from hybridnn_course.assignment import Bound, Case, Task, Variant
from hybridnn_course.outcome import CheckOutcome, Kind, TaskOutcome
from hybridnn_course.patterns import describe_difference

LEAST_CARRIED = 0.25
"""Least share of the bytes of a reference's rank that every rank has to send and receive.

Without messages, right outputs come from elsewhere. To know the sum of arrays of random numbers, a rank has to send its
array once and to receive one, which is at least half of what it does in a ring, and as much as a leaf of a tree does.
The other half is for elements of a smaller type.
"""

IMPOSSIBLE = "impossible"
OTHER_METHOD = "right by another method"
OTHER_METHOD_SHARE = 0.5  # of the points of a case


class Runner(Protocol):
    """Interface of what runs the student's functions."""

    def run(self, task: Task, case: Case, variant: Variant) -> Answer:
        """The answer to a case."""

    def run_whole(self, task: Task, variant: Variant) -> Answer:
        """The outcome of the training."""


@dataclass
class Tried:
    """Answers of a submission to the cases of a task; whether its budget counts."""

    key: AnswerKey
    answers: dict[int, Answer]
    with_budget: bool = True

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
        returns = self.key.task.returns
        if returns is None or answer.returned_none is None or returns != answer.returned_none:
            return ""
        return "; the function returned None" if returns else "; the function returned a value, which is not used"

    def has_right_outputs(self, number: int) -> bool:
        """Whether the outputs of an answer are right, however they were exchanged."""
        answer, expected = self.answers[number], self.key.expected(number)
        is_whole = answer.failure is None and len(answer.outputs) == len(expected.outputs)
        return is_whole and first_difference(answer.outputs, expected.outputs, self.key.task.tolerance) is None

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
            if own < self.key.fewest_bytes(number, rank):
                carried = f"rank {rank} sent and received {own:,} bytes by the group, and needs at least {least:,.0f}"
                return f"{IMPOSSIBLE}: right outputs without the messages that they need: {carried}"
        return ""

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

    def other_method(self, number: int) -> str:
        """What shows that a right answer is that of another method: an amount that leaves no points; or empty."""
        bounds = self.bounds(number) if self.with_budget else ()
        missed = next((one for one in bounds if one.zero > one.full and one.fraction == 0), None)
        return "" if missed is None else f"{OTHER_METHOD}: {missed.what} {missed.value:.6g}, allowed {missed.full:.6g}"

    @cached_property
    def mistake(self) -> KnownMistake | None:
        """The only known mistake that gives the same answers to all cases; None where there is none, or several."""
        return self.key.diagnose(self.answers, with_traffic=all(map(self.has_right_outputs, self.answers)))


def check_task(
    runner: Runner, key: AnswerKey, *, budget: bool = True, whole: bool = True, stop: Callable[[], bool] = lambda: False
) -> TaskOutcome:
    """All checks of a task.

    Parameters
    ----------
    stop : callable
        Asked before each check; once it returns True, the rest is not tried.
    """
    task, variant = key.task, key.variant
    tried = Tried(key, {}, with_budget=budget and bool(task.points.budget))
    endless = False
    for number, case in enumerate(key.cases):
        if endless or stop():
            break
        tried.answers[number] = answer = runner.run(task, case, variant)
        endless = _is_final(key, answer)
    checks = [_case_check(tried, number) for number in range(len(key.cases))]
    if task.budget is not None and tried.with_budget:
        checks += _budget_checks(tried)
    if task.whole is not None and task.points.whole and whole:
        may_run = all(map(tried.is_right, tried.answers)) and len(tried.answers) == len(key.cases) and not stop()
        checks.append(_whole_check(runner, key, may_run))
    flags = dict.fromkeys(filter(None, map(tried.flag, tried.answers)))
    return TaskOutcome(name=task.name, checks=tuple(checks), flags=tuple(flags))


def _is_final(key: AnswerKey, answer: Answer) -> bool:
    """Whether other cases would end in the same way: not where the function calls another one that is not written."""
    failure = answer.failure
    if failure is None or failure.kind not in ("no end", NOT_WRITTEN, "no function"):
        return False
    others = [task for task in key.assignment.tasks if task is not key.task]
    return not any(key.assignment.not_written(other) in failure.text for other in others)


def _case_check(tried: Tried, number: int) -> CheckOutcome:
    key = tried.key
    kind: Kind = "public" if number < len(key.public) else "hidden"
    count = len(key.public) if kind == "public" else len(key.hidden)
    possible = getattr(key.task.points, kind) / count
    case = key.cases[number]
    name = case.name if kind == "public" else f"hidden case {number - len(key.public) + 1}"
    check = CheckOutcome(name=name, kind=kind, points=0, possible=possible)
    if number not in tried.answers:
        return check.model_copy(update={"not_tried": True, "message": "not tried, as an earlier case did not end"})
    is_right = tried.is_right(number)
    message = tried.other_method(number) if is_right else tried.problem(number)
    if not message and is_right:
        return check.model_copy(update={"points": possible})
    mistake = tried.mistake
    update: dict[str, object] = {"points": possible * OTHER_METHOD_SHARE * is_right}
    update["message"] = message if kind == "public" else OTHER_METHOD if is_right else _without_inputs(tried, number)
    if mistake is not None:
        update |= {"hint": mistake.hint, "mistake": mistake.name}
    return check.model_copy(update=update)


def _without_inputs(tried: Tried, number: int) -> str:
    """What a student may know of a wrong answer to a hidden case."""
    case, failure = tried.key.cases[number], tried.answers[number].failure
    ranks = f"{case.ranks} ranks: " if case.ranks > 1 else ""
    if failure is None:
        return f"{ranks}{IMPOSSIBLE if tried.impossible(number) else 'wrong outputs'}"
    return f"{ranks}{_known_kind(failure.kind)}"


def _known_kind(kind: str) -> str:
    """What a student may know of a failure: the submission could tell the inputs by an exception or a deadlock."""
    if kind.startswith("raised "):
        return "raised an exception"
    return next((known for known in (DEADLOCK, "no end") if kind.startswith(known)), "failed")


def _budget_checks(tried: Tried) -> list[CheckOutcome]:
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
            # Of a hidden case, what the submission did could tell the inputs, and what is allowed tells their sizes.
            is_worse = bound.what not in worst or bound.fraction < worst[bound.what].fraction
            if right and is_worse and number < len(key.public):
                worst[bound.what] = bound
    checks = []
    any_right = any(map(tried.is_right, tried.answers))
    all_right = len(tried.answers) == len(key.cases) and all(map(tried.is_right, tried.answers))
    for what, values in fractions.items():
        possible = key.task.points.budget / len(fractions)
        fraction = sum(values) / len(values)
        measured = ratios.get(what, [])
        ratio = sum(measured) / len(measured) if all_right and len(measured) == len(values) else None
        check = CheckOutcome(name=what, kind="budget", points=possible * fraction, possible=possible, ratio=ratio)
        if fraction < 1 - 1e-9:
            largest = worst.get(what)
            message = (
                "more than is allowed in a hidden case" if all_right else "counted only where the outputs are right"
            )
            if largest is not None and largest.fraction < 1:
                message = f"yours {largest.value:.6g}, allowed {largest.full:.6g}"
            update: dict[str, object] = {"message": message, "not_tried": not any_right}
            if all_right and tried.mistake is not None:
                update |= {"hint": tried.mistake.hint, "mistake": tried.mistake.name}
            check = check.model_copy(update=update)
        checks.append(check)
    return checks


def _whole_check(runner: Runner, key: AnswerKey, may_run: bool) -> CheckOutcome:
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
