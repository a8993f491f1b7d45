"""Public and hidden cases of a task, and the answers of its reference solution and of its known mistakes to them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import product
from random import Random

from hybridnn_course.answer_key import AnswerKey, KnownMistake
from hybridnn_course.answers import Answer, answer_digest, first_difference
from hybridnn_course.assignment import OTHER_VARIANT, Variant
from hybridnn_course_staff.assignment import Assignment, Mistake, Task
from hybridnn_course_staff.trusted import run_trusted


class TaskKey(AnswerKey):
    """Cases of a task, and the answers of the reference solution and of every known mistake to them.

    Parameters
    ----------
    key : bytes or None
        Key of the term, from which the hidden cases are made; None: public cases only.
    student : str
        Whose hidden cases they are; empty: the same for all.
    salt : bytes
        What makes the digests of answers differ from those of other terms; by default the key.
    """

    task: Task

    def __init__(
        self,
        assignment: Assignment,
        task: Task,
        variant: Variant,
        key: bytes | None = None,
        student: str = "",
        salt: bytes = b"",
    ) -> None:
        hidden = (
            []
            if key is None
            else [
                task.hidden(seeded(key, assignment.id, task.name, student, number), variant, number)
                for number in range(task.hidden_cases)
            ]
        )
        text = f"{(salt or key or b'').hex()}|{assignment.id}|{task.name}|{sorted(variant.items())}"
        digest = hashlib.sha256(text.encode()).digest()[:8]
        super().__init__(assignment, task, variant, public=task.public(variant), hidden=hidden, salt=digest)
        wrong_ones = (*task.mistakes, *other_variants(assignment, task, variant))
        self._mistakes = tuple(mistake for mistake in wrong_ones if mistake.applies(variant))
        self._expected: dict[int, Answer] = {}
        self._wrong: dict[tuple[str, int], Answer] = {}

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        """Known mistakes of this variant, with the solutions of other variants."""
        return self._mistakes

    def expected(self, number: int) -> Answer:
        """The answer of the reference solution to a case."""
        if number not in self._expected:
            answer = run_trusted(self.task, self.task.solution(self.variant), self.cases[number], self.variant)
            if answer.failure is not None:
                raise RuntimeError(f"{self.task.name}, {self.cases[number].name}: {answer.failure.text}")
            self._expected[number] = answer
        return self._expected[number]

    def wrong(self, mistake: KnownMistake, number: int) -> Answer:
        """The answer of a known mistake to a case."""
        assert isinstance(mistake, Mistake)
        found = self._wrong.get((mistake.name, number))
        if found is None:
            found = run_trusted(self.task, mistake.function(self.variant), self.cases[number], self.variant)
            self._wrong[mistake.name, number] = found
        return found

    def digest(self, mistake: KnownMistake, number: int, *, with_traffic: bool = False) -> str:
        """The digest of the answer of a known mistake to a case."""
        answer = self.wrong(mistake, number)
        return answer_digest(answer, self.expected(number), self.salt, with_traffic=with_traffic)

    def fewest_bytes(self, number: int, rank: int) -> float:
        """Fewest bytes that a rank carries in a known mistake that is right in this case; infinite without one."""
        expected, tolerance = self.expected(number).outputs, self.task.tolerance
        known = (self.wrong(mistake, number) for mistake in self.mistakes)
        right = (one for one in known if one.failure is None and not first_difference(one.outputs, expected, tolerance))
        return min((one.carried_bytes(rank) for one in right), default=float("inf"))

    @cached_property
    def _whole(self) -> Answer:
        assert self.task.whole is not None
        return Answer(outputs=(self.task.whole.expected(self.variant),))

    @property
    def whole(self) -> Answer:
        """Outcome of the training without the student's function."""
        return self._whole


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


def seeded(key: bytes | str, *names: object) -> Random:
    """A generator that depends on the key and the names alone."""
    text = key.hex() if isinstance(key, bytes) else key
    return Random("|".join([text, *map(str, names)]))
