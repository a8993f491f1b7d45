"""Right outputs of several ranks need messages: what has too few of them fails, and no program that exchanges does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hybridnn_course.answers import Answer, Call
from hybridnn_course.assignment import Variant
from hybridnn_course.checks import OTHER_METHOD, check_task
from hybridnn_course.outcome import TaskOutcome
from hybridnn_course_staff.assignment import load_assignment
from hybridnn_course_staff.task_key import TaskKey
from hybridnn_course_staff.trusted import TrustedRunner
from hybridnn_course_staff.verify import some_variants

A3 = load_assignment("a3")
KEY = b"key of the tests"


def _checked(key: TaskKey, function: Callable[..., Any]) -> TaskOutcome:
    return check_task(TrustedRunner({key.task.name: function}), key, whole=False)


def _in_a_chain(group: Any, array: Any, operation: str = "sum") -> None:
    """All-reduce up a chain of ranks and down again: with the fewest bytes of all."""
    combine = np.add if operation == "sum" else np.maximum
    incoming = np.empty_like(array)
    last = group.size - 1
    if group.rank:
        group.ireceive(incoming, group.rank - 1, 0).wait()
        combine(array, incoming, out=array)
    if group.rank < last:
        group.isend(array, group.rank + 1, 0).wait()
        group.ireceive(array, group.rank + 1, 0).wait()
    if group.rank:
        group.isend(array, group.rank - 1, 0).wait()


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_messages_of_a_smaller_type_do_not_bring_the_elements(dtype: str) -> None:
    def shift(group: Any, array: Any) -> Any:
        outgoing = array.astype(dtype).view(np.uint8).reshape(-1)
        incoming = np.empty_like(outgoing)
        send = group.isend(outgoing, (group.rank + 1) % group.size, 0)
        group.ireceive(incoming, (group.rank - 1) % group.size, 0).wait()
        send.wait()
        return incoming.view(dtype).astype(array.dtype).reshape(array.shape)

    checks = _checked(TaskKey(A3, A3.task("shift"), A3.standard, KEY), shift).checks
    assert not any(check.passed for check in checks if "float32" not in check.name and check.kind == "public")
    assert sum(check.passed for check in checks) <= 2  # cases of float32


def test_the_fewest_bytes_are_possible() -> None:
    outcome = _checked(TaskKey(A3, A3.task("allreduce"), A3.standard, KEY), _in_a_chain)
    assert outcome.flags == ()
    others = [check for check in outcome.checks if check.kind != "budget" and not check.passed]
    assert {check.message.partition(":")[0] for check in others} == {OTHER_METHOD}, outcome


def _told(key: TaskKey) -> Callable[..., None]:
    """An all-reduce that finds the arrays of all ranks elsewhere."""

    def allreduce(group: Any, array: Any, operation: str = "sum") -> None:
        arrays = next(
            arrays
            for case in key.cases
            if len(arrays := [inputs["array"] for inputs in case.inputs]) == group.size
            and np.array_equal(arrays[group.rank], array)
        )
        array[...] = sum(arrays) if operation == "sum" else np.max(arrays, axis=0)

    return allreduce


@pytest.mark.parametrize("variant", some_variants(A3, 2), ids=lambda variant: variant["small_arrays"])
def test_right_outputs_without_messages_fail_and_are_flagged(variant: Variant) -> None:
    key = TaskKey(A3, A3.task("allreduce"), variant, KEY)
    outcome = _checked(key, _told(key))
    assert outcome.flags
    assert all(flag.startswith("allreduce: impossible: right outputs without the messages") for flag in outcome.flags)
    for number, check in enumerate(outcome.checks[: len(key.cases)]):
        case = key.cases[number]
        needs_messages = case.ranks > 1 and case.inputs[0]["array"].size > 0
        assert check.passed != needs_messages, check
        assert ("impossible" in check.message) == needs_messages
        if check.kind == "hidden" and needs_messages:
            assert check.message == f"{case.ranks} ranks: impossible"  # says nothing about the arguments


def test_a_rank_that_is_idle_in_the_reference_may_be_idle() -> None:
    """The first rank has the only row of the result; what its rank of the ring sends is empty."""
    key = TaskKey(A3, A3.task("reduce_scatter"), A3.standard, KEY)
    for number, case in enumerate(key.cases):
        carried = [key.expected(number).carried_bytes(rank) for rank in range(case.ranks)]
        assert (sum(carried) > 0) == (case.ranks > 1 and case.inputs[0]["array"].size > 0)


def test_bytes_of_a_rank_are_those_of_both_directions() -> None:
    calls = [("send", 8), ("receive", 16), ("allreduce", 32), ("allgather", 64), ("barrier", 0)]
    made = tuple(Call(1, name, 0, nbytes, 0, 0, 0) for name, nbytes in calls)
    answer = Answer(calls=(*made, Call(0, "send", 1, 1000, 0, 0, 0)))
    assert answer.carried_bytes(1) == 8 + 16 + 2 * 32 + 64
