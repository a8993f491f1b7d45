"""A3: the references against NumPy, the library and the formulas; submissions in processes of their own."""

from __future__ import annotations

import inspect
from itertools import product

import numpy as np
import pytest

from hybridnn.assignments.a3_allreduce import solution as reference
from hybridnn.comm.blocks import block_slice
from hybridnn.comm.group import Group
from hybridnn.cost.collectives import counts
from hybridnn.course.assignment import load_assignment
from hybridnn.course.carrier import Worker
from hybridnn.course.checks import TaskKey, TrustedRunner, check_task
from hybridnn.course.execution import ALPHA, BETA, make_group, run_trusted
from hybridnn.course.handout import render_handout
from hybridnn.course.stubs import require_same_signature
from hybridnn.course.whole_run import train_digits
from hybridnn.in_process import run_ranks

KEY = b"0123456789abcdef"
ASSIGNMENT = load_assignment("a3")
FEW = [
    {"direction": "up", "block_of_rank": "own", "small_arrays": "ring"},
    {"direction": "down", "block_of_rank": "next", "small_arrays": "doubling"},
    {"direction": "up", "block_of_rank": "reversed", "small_arrays": "tree"},
]
# No task depends on all axes: these are all variants of every task.
VARIANTS = [{**variant, "direction": direction} for direction in ("up", "down") for variant in FEW]


def owner(variant, rank, ranks):
    """Block of a rank, by the sentences of the handout."""
    return {"own": rank, "next": (rank + 1) % ranks, "reversed": ranks - 1 - rank}[variant["block_of_rank"]]


def arrays_of(ranks, shape, seed=0):
    return [np.random.default_rng((seed, rank)).integers(-50, 50, shape).astype(float) for rank in range(ranks)]


def on_ranks(ranks, function, arguments, **options):
    """Arguments of every rank after the call, and what it returns."""

    def program(comm):
        own = [argument.copy() if isinstance(argument, np.ndarray) else argument for argument in arguments[comm.rank]]
        return function(make_group(comm), *own), own

    return run_ranks(ranks, program, alpha=ALPHA, beta=BETA, **options)


def submission(variant, **replaced):
    """A file with the references of a variant, and other code for some functions."""
    lines = ["import numpy as np", "from hybridnn.assignments.a3_allreduce import solution"]
    for task in ASSIGNMENT.tasks:
        name = task.solution.__name__
        lines.append(replaced.get(task.name) or f"{task.function} = solution.{name}({variant!r})")
    return {"collectives.py": "\n".join(lines)}


def checked(worker, task, variant, **options):
    return check_task(worker, TaskKey(ASSIGNMENT, ASSIGNMENT.task(task), variant, KEY), **options)


def test_points_handout_and_files():
    assert ASSIGNMENT.points == pytest.approx(100)
    for variant in VARIANTS:
        text = render_handout(ASSIGNMENT, variant)
        assert all(ASSIGNMENT.axes[axis][choice] in text for axis, choice in variant.items())


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "-".join(variant.values()))
def test_reference_earns_all_points(variant):
    for task in ASSIGNMENT.tasks:
        solution = task.solution(variant)
        require_same_signature(task, solution)
        outcome = check_task(TrustedRunner({task.name: solution}), TaskKey(ASSIGNMENT, task, variant, KEY), whole=False)
        assert all(check.passed for check in outcome.checks), outcome


@pytest.mark.parametrize("variant", FEW, ids=lambda variant: "-".join(variant.values()))
def test_trainings_with_the_reference_equal_one_rank(variant):
    for task in ASSIGNMENT.tasks:
        if task.whole is not None:
            found, expected = task.whole.run(task.solution(variant), variant), task.whole.expected(variant)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-10)


def test_signatures_are_those_of_the_group():
    for own, method in (
        (reference.allreduce, Group.allreduce),
        (reference.allgather_rows, Group.allgather_rows),
    ):
        wanted = list(inspect.signature(method).parameters.values())
        found = list(inspect.signature(own).parameters.values())
        assert [(item.name, item.kind, item.default) for item in found[1:]] == [
            (item.name, item.kind, item.default) for item in wanted[1:]
        ]


@pytest.mark.parametrize("name", ["allreduce", "allgather"])
def test_methods_of_the_library_give_the_expected_outputs(name):
    task = ASSIGNMENT.task(name)
    key = TaskKey(ASSIGNMENT, task, ASSIGNMENT.standard, KEY)
    for number, case in enumerate(key.cases):
        answer = run_trusted(task, getattr(Group, task.function), case, key.variant)
        assert answer.failure is None
        for own, right in zip(answer.outputs, key.expected(number).outputs, strict=True):
            np.testing.assert_array_equal(own["array"], right["array"])


# -- against NumPy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "-".join(variant.values()))
def test_values_on_one_to_nine_ranks(variant):
    """The sizes are fewer than the ranks, uneven, and on both sides of the limit of small arrays."""
    step = 1 if variant["direction"] == "up" else -1
    for ranks in range(1, 10):
        arrays = arrays_of(ranks, 3)
        run = on_ranks(ranks, reference.shift_solution(variant), [[array] for array in arrays])
        for rank, (result, own) in enumerate(run.results):
            np.testing.assert_array_equal(result, arrays[(rank - step) % ranks])
            np.testing.assert_array_equal(own[0], arrays[rank])
        for shape in ((0,), (2,), (31,), (32,), (33, 1), (5, 8)):
            arrays = arrays_of(ranks, shape, 1)
            total, highest = np.sum(arrays, axis=0), np.max(arrays, axis=0)
            blocks = [block_slice(shape[0], ranks, owner(variant, rank, ranks)) for rank in range(ranks)]

            outs = [np.full_like(total[block], np.nan) for block in blocks]
            arguments = list(zip(arrays, outs, strict=True))
            for rank, (_, own) in enumerate(
                on_ranks(ranks, reference.reduce_scatter_solution(variant), arguments).results
            ):
                np.testing.assert_array_equal(own[1], total[blocks[rank]])
                np.testing.assert_array_equal(own[0], arrays[rank])

            filled = [np.full_like(total, np.nan) for _ in range(ranks)]
            for array, block in zip(filled, blocks, strict=True):
                array[block] = total[block]
            for _, own in on_ranks(ranks, reference.allgather_solution(variant), [[one] for one in filled]).results:
                np.testing.assert_array_equal(own[0], total)

            for operation, expected in (("sum", total), ("max", highest)):
                arguments = [[array, operation] for array in arrays]
                for _, own in on_ranks(ranks, reference.allreduce_solution(variant), arguments).results:
                    np.testing.assert_array_equal(own[0], expected)


def test_every_order_of_the_ranks_gives_the_same():
    for variant, seed, delivery in product(FEW, range(3), ("late", "early")):
        for size in (13, 130):
            arrays = arrays_of(5, size)
            function = reference.allreduce_solution(variant)
            run = on_ranks(5, function, [[array] for array in arrays], order=seed, delivery=delivery)
            for _, own in run.results:
                np.testing.assert_array_equal(own[0], np.sum(arrays, axis=0))


# -- the clock --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", range(2, 10))
def test_time_is_that_of_the_formulas(ranks):
    for variant, algorithm in zip(FEW, ("ring", "recursive_doubling", "binomial"), strict=True):
        arrays = arrays_of(ranks, 3 * ranks)
        run = on_ranks(ranks, reference.allreduce_solution(variant), [[array] for array in arrays])
        model = counts("allreduce", algorithm, arrays[0].nbytes, ranks)
        assert max(run.clock) == pytest.approx(model.seconds(ALPHA, BETA), rel=1e-12)
        senders = [message.rank for message in run.messages if message.name == "send"]
        assert max(map(senders.count, range(ranks))) <= model.messages


def test_numbers_of_the_handout():
    assert counts("allreduce", "ring", 1_000_000, 4).seconds(ALPHA, BETA) == pytest.approx(1506e-6)
    assert pytest.approx(6006e-6) == 2 * 3 * (ALPHA + 1_000_000 * BETA)
    small = [counts("allreduce", name, 128, 4) for name in ("ring", "binomial", "recursive_doubling")]
    assert [round(1e6 * item.seconds(ALPHA, BETA), 1) for item in small] == [6.2, 4.5, 2.3]
    equal = [counts("allreduce", name, 8000, 4).seconds(ALPHA, BETA) for name in ("ring", "recursive_doubling")]
    assert equal == pytest.approx([18e-6, 18e-6])


# -- trainings --------------------------------------------------------------------------------------------------------


def test_every_sum_of_the_training_is_the_students(monkeypatch):
    """No all-reduce of the library is left in the training, blocking or not."""
    left = []
    for name in ("allreduce", "iallreduce"):
        monkeypatch.setattr(Group, name, lambda group, *_, name=name: left.append(name) if group.size > 1 else None)
    used = []

    def own(group, array, operation="sum"):
        used.append((array.ndim, operation))
        reference.allreduce(group, array, operation)

    found = ASSIGNMENT.task("allreduce").whole.run(own, ASSIGNMENT.standard)
    monkeypatch.undo()
    assert left == []
    assert {1, 2} <= {ndim for ndim, _ in used}  # gradients of all weights, and activations
    np.testing.assert_allclose(found["losses"], train_digits()["losses"], atol=1e-10)


# -- submissions in processes of their own ----------------------------------------------------------------------------


def test_reference_earns_all_points_in_processes():
    variant = FEW[1]
    with Worker(ASSIGNMENT, submission(variant), modules=["hybridnn"]) as worker:
        for task in ASSIGNMENT.tasks:
            outcome = checked(worker, task.name, variant)
            assert all(check.passed for check in outcome.checks), outcome


def test_wrong_submissions_in_processes():
    variant = ASSIGNMENT.standard
    blocking = """
def shift(group, array):
    incoming = np.empty_like(array)
    group.isend(array, (group.rank + 1) % group.size, 0).wait()
    group.ireceive(incoming, (group.rank - 1) % group.size, 0).wait()
    return incoming
"""
    # Works on ranks that are threads of one process, where all of them see the dictionary.
    shared = """
arrays = {}
def allreduce(group, array, operation="sum"):
    arrays[group.rank] = array.copy()
    for _ in range(2):
        shift(group, np.zeros(1))
    array[...] = sum(arrays[rank] for rank in range(group.size))
"""
    library = "def allgather_rows(group, array): group.allgather_rows(array)"
    files = submission(variant, shift=blocking, allgather=library)
    with Worker(ASSIGNMENT, files, modules=["hybridnn"]) as worker:
        outcome = checked(worker, "shift", variant)
        assert outcome.points == 0
        assert {check.mistake for check in outcome.checks} == {"blocking-ring"}
        assert "collectives.py" in outcome.checks[0].message
        outcome = checked(worker, "allgather", variant)
        assert "not allowed" in outcome.checks[0].message
    with Worker(ASSIGNMENT, submission(variant, allreduce=shared), modules=["hybridnn"]) as worker:
        outcome = checked(worker, "allreduce", variant, whole=False)
        # Only on one rank is the sum right.
        assert sum(check.passed for check in outcome.checks if check.kind in ("public", "hidden")) == 1


def test_solution_of_another_term_loses_most_points():
    variant, earlier = FEW[0], {"direction": "down", "block_of_rank": "reversed", "small_arrays": "tree"}
    points = 0
    for task in ASSIGNMENT.tasks:
        key = TaskKey(ASSIGNMENT, task, variant, KEY)
        points += check_task(TrustedRunner({task.name: task.solution(earlier)}), key).points
    assert points < 60


RIGHT = """
def shift(group, array):
    incoming = np.empty_like(array)
    receive = group.ireceive(incoming, (group.rank - 1) % group.size, 0)
    group.isend(array, (group.rank + 1) % group.size, 0).wait()
    receive.wait()
    return incoming
"""
UNWRITTEN = 'def shift(group, array): raise NotImplementedError("a3 shift: not written yet")'
UNCHANGED = "def shift(group, array): return array.copy()"
AROUND = """
def allreduce(group, array, operation="sum"):
    combine = np.add if operation == "sum" else np.maximum
    outgoing = array.copy()
    for _ in range(group.size - 1):
        outgoing = shift(group, outgoing)
        combine(array, outgoing, out=array)
"""


@pytest.mark.parametrize(("shift", "right_cases"), [(RIGHT, 13), (UNCHANGED, 2), (UNWRITTEN, 1)])
def test_a_function_that_calls_another_one_calls_the_students(shift, right_cases):
    """A missing function costs the cases that reach it: one rank, and without messages no elements, need none."""
    with Worker(ASSIGNMENT, {"collectives.py": f"import numpy as np\n{shift}\n{AROUND}"}) as worker:
        outcomes = [checked(worker, task, ASSIGNMENT.standard, whole=False) for task in ("shift", "allreduce")]
    assert (outcomes[0].points == outcomes[0].possible) == (shift == RIGHT)
    cases = [check for check in outcomes[1].checks if check.kind in ("public", "hidden")]
    assert not any(check.not_tried for check in cases)
    assert [check.points > 0 for check in cases].count(True) == right_cases
