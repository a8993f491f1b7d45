"""The file of cases: all that a student's computer knows of an assignment, made by the lecturer for a variant.

It has the tasks, the public cases, the right answers to them, the outcomes of the trainings, and of every known mistake
a hint and digests of its answers: no solution, and no mistake. Its content are frames: JSON and arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hybridnn.errors import DataError
from hybridnn_course.answer_key import AnswerKey, KnownMistake
from hybridnn_course.answers import Answer, Call
from hybridnn_course.assignment import Assignment, Case, Points, Task, Variant, WholeRun
from hybridnn_course.frames import FrameError, packed, unpacked
from hybridnn_course.injection import find

CASES = "cases.bin"
VERSION = 1
EXERCISES = "hybridnn_course.exercises."


@dataclass(frozen=True)
class StoredMistake:
    """A hint, and digests of answers by case: of outputs alone, and with their communication."""

    name: str
    hint: str
    digests: Sequence[Sequence[str]]


class StoredKey(AnswerKey):
    """The answers of a file to the public cases of a task."""

    def __init__(self, assignment: Assignment, task: Task, variant: Variant, stored: Mapping[str, Any]) -> None:
        cases = [Case(item["name"], tuple(item["inputs"])) for item in stored["cases"]]
        super().__init__(assignment, task, variant, public=cases, salt=bytes.fromhex(stored["salt"]))
        self._stored = stored

    @property
    def mistakes(self) -> Sequence[KnownMistake]:
        """As `AnswerKey.mistakes`."""
        return [StoredMistake(**item) for item in self._stored["mistakes"]]

    def expected(self, number: int) -> Answer:
        """As `AnswerKey.expected`."""
        item = self._stored["cases"][number]
        return Answer(tuple(item["outputs"]), calls=tuple(Call(*call) for call in item["calls"]), clock=item["clock"])

    def digest(self, mistake: KnownMistake, number: int, *, with_traffic: bool) -> str:
        """As `AnswerKey.digest`."""
        assert isinstance(mistake, StoredMistake)
        return mistake.digests[number][with_traffic]

    def fewest_bytes(self, number: int, rank: int) -> float:
        """As `AnswerKey.fewest_bytes`."""
        return float(self._stored["cases"][number]["fewest bytes"][rank])

    @property
    def whole(self) -> Answer:
        """As `AnswerKey.whole`."""
        return Answer(outputs=(self._stored["whole"],))


@dataclass(frozen=True)
class CaseFile:
    """The content of a file of cases.

    Attributes
    ----------
    keys : mapping
        By the names of the tasks.
    templates : mapping
        The texts that students get of files that are not code.
    """

    assignment: Assignment
    variant: Variant
    keys: Mapping[str, AnswerKey]
    templates: Mapping[str, str] = field(default_factory=dict)

    def pack(self) -> bytes:
        """The file, with digests of its own salt for each task."""
        assignment = self.assignment
        head = {
            "version": VERSION,
            "id": assignment.id,
            "variant": dict(self.variant),
            "texts": list(assignment.texts),
            "templates": dict(self.templates),
            "imports": {module: list(names) for module, names in assignment.imports.items()},
            "tasks": [_packed_task(task) for task in assignment.tasks],
        }
        return b"".join([packed(head), *(packed(_packed_key(self.keys[task.name])) for task in assignment.tasks)])

    @classmethod
    def read(cls, data: bytes, name: str) -> CaseFile:
        """The content of a file of this name; `DataError` where it is none."""
        try:
            head, *stored = unpacked(data)
            if head["version"] != VERSION:
                raise DataError(f"{name}: was made by another version of hybridnn-course; ask for a new one")
            tasks = tuple(map(_task_of, head["tasks"]))
            assignment = Assignment(id=head["id"], tasks=tasks, texts=tuple(head["texts"]), imports=head["imports"])
            keys: dict[str, AnswerKey] = {
                task.name: StoredKey(assignment, task, head["variant"], item)
                for task, item in zip(tasks, stored, strict=True)
            }
            return cls(assignment, head["variant"], keys, head["templates"])
        except (FrameError, KeyError, TypeError, ValueError, AttributeError, ImportError) as error:
            raise DataError(f"{name}: is not the file of cases of an assignment: {error}") from None


def _packed_key(key: AnswerKey) -> dict[str, Any]:
    numbers = range(len(key.public))
    cases = []
    for number in numbers:
        case, answer = key.public[number], key.expected(number)
        ranks = range(case.ranks)
        about = {"name": case.name, "inputs": case.inputs, "outputs": answer.outputs, "clock": answer.clock}
        fewest = [key.fewest_bytes(number, rank) for rank in ranks] if case.ranks > 1 else [0.0]
        cases.append({**about, "calls": answer.calls, "fewest bytes": fewest})
    mistakes = [
        {
            "name": mistake.name,
            "hint": mistake.hint,
            "digests": [[key.digest(mistake, n, with_traffic=traffic) for traffic in (False, True)] for n in numbers],
        }
        for mistake in key.mistakes
    ]
    whole = None if key.task.whole is None else key.whole.outputs[0]
    return {"cases": cases, "mistakes": mistakes, "salt": key.salt.hex(), "whole": whole}


def _packed_task(task: Task) -> dict[str, Any]:
    whole = task.whole and [task.whole.name, _name_of(task.whole.run), task.whole.tolerance]
    about = {name: getattr(task, name) for name in ("name", "file", "function", "returns", "operations", "tolerance")}
    called = {name: _name_of(getattr(task, name)) for name in ("call", "budget")}
    return {**about, **called, "points": asdict(task.points), "whole": whole}


def _task_of(packed_task: Mapping[str, Any]) -> Task:
    about = dict(packed_task)
    called = {name: _called(about.pop(name)) for name in ("call", "budget")}
    name, run, tolerance = about.pop("whole") or ("", None, 0)
    whole = None if run is None else WholeRun(name, _called(run), tolerance=tolerance)
    points, operations = Points(**about.pop("points")), tuple(about.pop("operations"))
    return Task(**about, **called, points=points, operations=operations, whole=whole)


def _name_of(function: Callable[..., Any] | None) -> str | None:
    """The name by which a student's computer finds a function of the exercises; `ValueError` where it does not."""
    if function is None:
        return None
    name = f"{function.__module__}:{function.__qualname__}"
    if _called(name) is not function:
        raise ValueError(f"{name} is not a function of a module")
    return name


def _called(name: str | None) -> Any:
    if name is None:
        return None
    if not name.startswith(EXERCISES):
        raise ValueError(f"{name} is not in {EXERCISES}")
    return find(name)
