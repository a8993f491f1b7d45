"""Submissions as the staff reads them: in a process with a limit, and compared with the reference and the library."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from hybridnn_course.assignment import OTHER_VARIANT
from hybridnn_course.execution import MachineError
from hybridnn_course.isolation import has_memory
from hybridnn_course.submission import Submission, UngradableError, parsed_code, read_submission
from hybridnn_course_staff.assignment import Assignment
from hybridnn_course_staff.similarity import copied_functions

READ_SECONDS = 10  # of processor time
READ_BYTES = 512 << 20  # of memory, besides that of the grader


def read_in_time(
    assignment: Assignment, data: bytes | Mapping[str, bytes], modules: Collection[str] = ()
) -> Submission:
    """As `read_submission`, in a process with limits of processor time and memory, and with flags for copied functions.

    `MachineError` where that process ends for another reason.
    """
    receiver, sender = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (READ_SECONDS, READ_SECONDS + 1))
            _limit_memory()
            found: Submission | tuple[str, str] | None = None
            try:
                read = read_submission(assignment, data, modules)
                found = replace(read, flags=(*read.flags, *_copy_flags(assignment, read.files)))
            except UngradableError as error:
                found = str(error), error.student
            except MemoryError:
                found = (f"reading it takes more than {READ_BYTES >> 20} MiB of memory", "") if has_memory() else None
            except Exception as error:  # of a parser, by what it was not made for
                found = f"it cannot be read: {type(error).__name__}", ""
            with os.fdopen(sender, "wb") as file:
                pickle.dump(found, file)  # only texts that this program has read
        finally:
            os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, "rb") as file:
        result = file.read()
    _, status = os.waitpid(process, 0)
    if not result and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        raise UngradableError(f"reading it takes more than {READ_SECONDS} s")
    answer: Submission | tuple[str, str] | None = pickle.loads(result) if result else None
    if answer is None:
        raise MachineError("the process that reads it was lost, or the machine has no memory")
    if isinstance(answer, tuple):
        raise UngradableError(*answer)
    return answer


def _limit_memory() -> None:
    """Limit the memory of this process, where the system says how much it has."""
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + READ_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _copy_flags(assignment: Assignment, files: Mapping[str, str]) -> list[str]:
    """As `copy_flags`, which is advice: what it cannot compare is no reason to refuse a submission."""
    try:
        return copy_flags(assignment, files)
    except Exception as error:
        return [f"not compared with the reference and the library: {type(error).__name__}"]


def copy_flags(assignment: Assignment, files: Mapping[str, str]) -> list[str]:
    """Functions of code files that are code of the reference or the library."""
    trees = {name: parsed_code(name, text) for name, text in files.items()}
    return [f"{name}: {one}" for name, tree in trees.items() for one in copied_functions(assignment, tree)]


def variant_flags(mistakes: tuple[str, ...]) -> tuple[str, ...]:
    """A flag where two tasks or more solve one other variant: in a single one, it may be a slip."""
    tasks: list[str] = []
    variant: dict[str, str] = {}
    for mistake in mistakes:
        task, _, name = mistake.partition(".")
        if name.startswith(OTHER_VARIANT):
            changed = dict(one.split("=") for one in name.removeprefix(OTHER_VARIANT).split(","))
            if all(variant.get(axis, choice) == choice for axis, choice in changed.items()):
                tasks.append(task)
                variant |= changed
    return (f"{', '.join(tasks)}: solve another variant: {variant}",) if len(tasks) > 1 else ()
