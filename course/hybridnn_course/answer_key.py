"""What answers are compared with: the cases of a task, the right answers, and those of known mistakes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from hybridnn_course.answers import NOT_WRITTEN, Answer, answer_digest
from hybridnn_course.assignment import OTHER_VARIANT, Assignment, Case, Task, Variant


class KnownMistake(Protocol):
    """What is said of a known mistake: its name, and a hint."""

    @property
    def name(self) -> str:
        """For example ``"average-of-averages"``, or `OTHER_VARIANT` and the choices of the other variant."""

    @property
    def hint(self) -> str:
        """What happened, and a question that leads on; never the solution."""


class AnswerKey(ABC):
    """Cases of a task, the right answers, and the digests of those that known mistakes give.

    Parameters
    ----------
    public, hidden : sequence of Case
    mistakes : sequence of KnownMistake
        Those of this variant, with the solutions of other variants.
    salt : bytes
        Of the digests.
    """

    def __init__(
        self,
        assignment: Assignment,
        task: Task,
        variant: Variant,
        *,
        public: Sequence[Case],
        hidden: Sequence[Case] = (),
        salt: bytes = b"",
    ) -> None:
        self.assignment, self.task, self.variant = assignment, task, variant
        self.public, self.hidden, self.salt = tuple(public), tuple(hidden), salt

    @property
    def cases(self) -> tuple[Case, ...]:
        """Public cases, then hidden ones."""
        return self.public + self.hidden

    @property
    @abstractmethod
    def mistakes(self) -> Sequence[KnownMistake]:
        """Known mistakes of this variant, with the solutions of other variants."""

    @abstractmethod
    def expected(self, number: int) -> Answer:
        """The right answer to a case."""

    @abstractmethod
    def digest(self, mistake: KnownMistake, number: int, *, with_traffic: bool) -> str:
        """The digest of the answer of a known mistake to a case."""

    @abstractmethod
    def fewest_bytes(self, number: int, rank: int) -> float:
        """Fewest bytes that a rank carries in a known mistake that is right in this case; infinite without one."""

    @property
    @abstractmethod
    def whole(self) -> Answer:
        """Outcome of the training without the student's function."""

    def diagnose(self, answers: Mapping[int, Answer], *, with_traffic: bool) -> KnownMistake | None:
        """The only known mistake that gives the same answers to all these cases; of other variants the first one.

        Parameters
        ----------
        with_traffic : bool
            Whether the communication has to be the same, too: where only that is wrong.
        """
        if all(answer.failure is not None and answer.failure.kind == NOT_WRITTEN for answer in answers.values()):
            return None
        own = {
            number: answer_digest(answer, self.expected(number), self.salt, with_traffic=with_traffic)
            for number, answer in answers.items()
        }
        found = [
            mistake
            for mistake in self.mistakes
            if all(self.digest(mistake, number, with_traffic=with_traffic) == one for number, one in own.items())
        ]
        is_clear = len(found) == 1 or (bool(found) and all(item.name.startswith(OTHER_VARIANT) for item in found))
        return found[0] if is_clear else None
