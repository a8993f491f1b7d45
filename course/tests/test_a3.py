"""A3: the references against NumPy and the formulas, and functions that call one another."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hybridnn.comm.blocks import block_slice
from hybridnn.cost.collectives import counts
from hybridnn.in_process import run_ranks
from hybridnn_course.checks import check_task
from hybridnn_course.execution import ALPHA, BETA, make_group
from hybridnn_course_staff.assignment import load_assignment
from hybridnn_course_staff.assignments.a3_allreduce import solution as reference
from hybridnn_course_staff.task_key import TaskKey
from hybridnn_course_staff.trusted import TrustedRunner

KEY = b"0123456789abcdef"
ASSIGNMENT = load_assignment("a3")
FEW = [
    {"direction": "up", "block_of_rank": "own", "small_arrays": "ring"},
    {"direction": "down", "block_of_rank": "next", "small_arrays": "doubling"},
    {"direction": "up", "block_of_rank": "reversed", "small_arrays": "tree"},
]
# No task depends on all axes: with both directions, these are all variants of every task.
OTHER_DIRECTION = {"up": "down", "down": "up"}
VARIANTS = [
    *FEW,
    *(pytest.param({**one, "direction": OTHER_DIRECTION[one["direction"]]}, marks=pytest.mark.slow) for one in FEW),
]


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


# -- against NumPy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
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


# -- functions that call one another ----------------------------------------------------------------------------------


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
    names = {}
    exec(f"import numpy as np\n{shift}\n{AROUND}", names)
    keys = [TaskKey(ASSIGNMENT, ASSIGNMENT.task(task), ASSIGNMENT.standard, KEY) for task in ("shift", "allreduce")]
    outcomes = [check_task(TrustedRunner(names), key, whole=False) for key in keys]
    assert (outcomes[0].points == outcomes[0].possible) == (shift == RIGHT)
    cases = [check for check in outcomes[1].checks if check.kind in ("public", "hidden")]
    assert not any(check.not_tried for check in cases)
    assert [check.points > 0 for check in cases].count(True) == right_cases
