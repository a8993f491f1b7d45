"""A3: tasks and cases."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from hybridnn.comm.blocks import block_size
from hybridnn_course.answers import UNWRITTEN
from hybridnn_course.assignment import Case, Points, Variant
from hybridnn_course.exercises.a3_allreduce.budgets import (
    SMALL_BYTES,
    allgather_budget,
    allreduce_budget,
    reduce_scatter_budget,
)
from hybridnn_course.exercises.a3_allreduce.calls import (
    Array,
    block_of,
    call_allgather,
    call_allreduce,
    call_reduce_scatter,
    call_shift,
    run_allgather,
    run_allreduce,
    run_reduce_scatter,
)
from hybridnn_course.whole_run import train_digits
from hybridnn_course_staff.assignment import Assignment, Task, WholeRun
from hybridnn_course_staff.assignments.a3_allreduce.solution import (
    allgather_solution,
    allreduce_solution,
    reduce_scatter_solution,
    shift_solution,
)

MESSAGES = ("isend", "ireceive")


# -- cases ------------------------------------------------------------------------------------------------------------


def _arrays(ranks: int, shape: Sequence[int], seed: int, dtype: str, *, are_added: bool = False) -> list[Array]:
    """An array for each rank, whose elements need most bits of their type: smaller messages cannot bring them.

    Those of float32 that are added have 22 bits, so that sums over seven ranks do not depend on their order. Their unit
    is another one at every place: no scaling makes whole numbers of three bytes of them.
    """
    random = np.random.default_rng(seed)
    if dtype == "float32" and are_added:
        units = np.ldexp(1.0, -random.integers(17, size=tuple(shape)))
        wholes = random.integers(-(1 << 21), 1 << 21, (ranks, *shape))
        return list((units * wholes).astype(dtype))
    return [random.uniform(-99, 100, tuple(shape)).astype(dtype) for _ in range(ranks)]


def _name(ranks: int, what: str, dtype: str) -> str:
    return f"{ranks} {'ranks' if ranks > 1 else 'rank'}, {what}{'' if dtype == 'float64' else f' of {dtype}'}"


def _rows(shape: Sequence[int]) -> str:
    columns = f" of {' x '.join(map(str, shape[1:]))} elements" if len(shape) > 1 else ""
    return f"{shape[0]} rows{columns}"


# -- shift ------------------------------------------------------------------------------------------------------------


def _shift_case(ranks: int, shape: Sequence[int], seed: int, dtype: str = "float64") -> Case:
    arrays = _arrays(ranks, shape, seed, dtype)
    what = f"array of shape {tuple(shape)}"
    return Case(_name(ranks, what, dtype), tuple({"array": array} for array in arrays))


def _public_shift(variant: Variant) -> Sequence[Case]:
    return [
        _shift_case(4, (3,), 1),
        _shift_case(2, (5,), 2),
        _shift_case(3, (2, 4), 3, "float32"),
        _shift_case(1, (4,), 4),
    ]


def _hidden_shift(random: Random, variant: Variant, number: int) -> Case:
    ranks = (1, 2, 6, 7)[number] if number < 4 else random.randint(3, 7)
    shape = [random.randint(2, 9) for _ in range(1 + number % 3)]
    return _shift_case(ranks, shape, random.randrange(10**6), "float32" if number == 3 else "float64")


# -- reduce_scatter ---------------------------------------------------------------------------------------------------


def _reduce_scatter_case(variant: Variant, ranks: int, shape: Sequence[int], seed: int, dtype: str = "float64") -> Case:
    def out(rank: int) -> Array:
        rows = block_size(shape[0], ranks, block_of(rank, ranks, variant))
        return np.full((rows, *shape[1:]), UNWRITTEN, dtype)

    arrays = _arrays(ranks, shape, seed, dtype, are_added=True)
    inputs = tuple({"array": array, "out": out(rank)} for rank, array in enumerate(arrays))
    return Case(_name(ranks, _rows(shape), dtype), inputs)


def _public_reduce_scatter(variant: Variant) -> Sequence[Case]:
    return [
        _reduce_scatter_case(variant, 2, (4,), 1),
        _reduce_scatter_case(variant, 4, (8,), 2),
        _reduce_scatter_case(variant, 3, (7, 2), 3, "float32"),
        _reduce_scatter_case(variant, 5, (3, 4), 4),
    ]


def _random_rows(random: Random, number: int) -> tuple[int, list[int], str]:
    """Ranks, shape and element type of a hidden case: one rank, few rows, no row, uneven blocks, and even ones."""
    ranks = {0: 1, 3: 6, 4: 7}.get(number) or random.randint(3, 7)
    more = random.randint(1, ranks - 1) if 2 < number < 5 else 0
    rows = [4, ranks - 1, 0][number] if number < 3 else ranks * random.randint(2, 9) + more
    columns = [random.randint(2, 60)] if number % 2 else []
    return ranks, [rows, *columns], "float32" if number == 4 else "float64"


def _hidden_reduce_scatter(random: Random, variant: Variant, number: int) -> Case:
    ranks, shape, dtype = _random_rows(random, number)
    return _reduce_scatter_case(variant, ranks, shape, random.randrange(10**6), dtype)


# -- allgather --------------------------------------------------------------------------------------------------------


def _allgather_case(ranks: int, shape: Sequence[int], seed: int, dtype: str = "float64") -> Case:
    arrays = _arrays(ranks, shape, seed, dtype)
    return Case(_name(ranks, _rows(shape), dtype), tuple({"array": array} for array in arrays))


def _public_allgather(variant: Variant) -> Sequence[Case]:
    return [
        _allgather_case(2, (4,), 1),
        _allgather_case(4, (8,), 2),
        _allgather_case(3, (7, 2), 3, "float32"),
        _allgather_case(5, (3, 4), 4),
    ]


def _hidden_allgather(random: Random, variant: Variant, number: int) -> Case:
    ranks, shape, dtype = _random_rows(random, number)
    return _allgather_case(ranks, shape, random.randrange(10**6), dtype)


# -- allreduce --------------------------------------------------------------------------------------------------------


def _allreduce_case(
    ranks: int, shape: Sequence[int], seed: int, operation: str = "sum", dtype: str = "float64"
) -> Case:
    arrays = _arrays(ranks, shape, seed, dtype, are_added=True)
    what = f"{operation} of {' x '.join(map(str, shape))} elements"
    inputs = tuple({"array": array, "operation": operation} for array in arrays)
    return Case(_name(ranks, what, dtype), inputs)


def _public_allreduce(variant: Variant) -> Sequence[Case]:
    return [
        _allreduce_case(2, (6,), 1),
        _allreduce_case(4, (4, 8), 2),
        _allreduce_case(3, (5, 9), 3, "max"),
        _allreduce_case(5, (3, 7), 4, dtype="float32"),
        _allreduce_case(6, (3,), 5),
        _allreduce_case(4, (2, 1001), 6, dtype="float32"),
    ]


def _hidden_allreduce(random: Random, variant: Variant, number: int) -> Case:
    ranks = {0: 1, 1: 6, 2: 7}.get(number) or random.randint(3, 7)
    if number == 1:
        return _allreduce_case(ranks, (ranks - 1,), random.randrange(10**6))
    if number == 2:
        return _allreduce_case(ranks, (SMALL_BYTES // 8,), random.randrange(10**6), "max")
    if number == 3:
        return _allreduce_case(4, (3, random.randint(500, 900)), random.randrange(10**6))
    if number == 4:
        return _allreduce_case(ranks, (0,), random.randrange(10**6))
    if number == 5:
        return _allreduce_case(random.randint(4, 7), (random.randint(40, 200),), random.randrange(10**6))
    shape = (random.randint(1, 3), random.randint(300, 900))
    return _allreduce_case(ranks, shape, random.randrange(10**6), dtype="float32")


ASSIGNMENT = Assignment(
    id="a3",
    package="hybridnn_course_staff.assignments.a3_allreduce",
    title="A3: An all-reduce from messages",
    goal="Collectives from isend and ireceive alone, without deadlock, at the cost that the model predicts",
    hours=6,
    imports={"hybridnn.comm.blocks": ("block_bounds",)},
    axes={
        "direction": {
            "up": "Messages travel up the ring: rank r sends to rank (r + 1) mod p and receives from rank (r - 1) mod "
            "p.",
            "down": "Messages travel down the ring: rank r sends to rank (r - 1) mod p and receives from rank "
            "(r + 1) mod p.",
        },
        "block_of_rank": {
            "own": "Block r of the rows belongs to rank r.",
            "next": "Block (r + 1) mod p of the rows belongs to rank r.",
            "reversed": "Block p - 1 - r of the rows belongs to rank r.",
        },
        "small_arrays": {
            "ring": "Arrays of every size go round the ring.",
            "doubling": f"Arrays of at most {SMALL_BYTES} bytes do not go round the ring: they are reduced by "
            "recursive doubling.",
            "tree": f"Arrays of at most {SMALL_BYTES} bytes do not go round the ring: they are reduced along a "
            "binomial tree.",
        },
    },
    tasks=(
        Task(
            name="shift",
            file="collectives.py",
            target="hybridnn_course_staff.assignments.a3_allreduce.solution:shift",
            call=call_shift,
            solution=shift_solution,
            public=_public_shift,
            hidden=_hidden_shift,
            points=Points(public=5, hidden=7),
            axes=("direction",),
            operations=MESSAGES,
        ),
        Task(
            name="reduce_scatter",
            file="collectives.py",
            target="hybridnn_course_staff.assignments.a3_allreduce.solution:reduce_scatter_rows",
            call=call_reduce_scatter,
            solution=reduce_scatter_solution,
            public=_public_reduce_scatter,
            hidden=_hidden_reduce_scatter,
            points=Points(public=8, hidden=12, budget=3, whole=3),
            axes=("direction", "block_of_rank"),
            operations=MESSAGES,
            budget=reduce_scatter_budget,
            whole=WholeRun(
                "digits on 2 x 2 ranks: your reduce-scatter, then an all-gather of the library, for each sum",
                run_reduce_scatter,
                lambda _: train_digits(),
            ),
        ),
        Task(
            name="allgather",
            file="collectives.py",
            target="hybridnn_course_staff.assignments.a3_allreduce.solution:allgather_rows",
            library="hybridnn.comm.group:Group.allgather_rows",
            call=call_allgather,
            solution=allgather_solution,
            public=_public_allgather,
            hidden=_hidden_allgather,
            points=Points(public=7, hidden=10, budget=3, whole=3),
            axes=("direction", "block_of_rank"),
            operations=MESSAGES,
            budget=allgather_budget,
            whole=WholeRun("digits, layers split over 4 ranks", run_allgather, lambda _: train_digits()),
        ),
        Task(
            name="allreduce",
            file="collectives.py",
            target="hybridnn_course_staff.assignments.a3_allreduce.solution:allreduce",
            library="hybridnn.comm.group:Group.allreduce",
            call=call_allreduce,
            solution=allreduce_solution,
            public=_public_allreduce,
            hidden=_hidden_allreduce,
            hidden_cases=7,
            points=Points(public=10, hidden=16, budget=9, whole=4),
            axes=("direction", "small_arrays"),
            operations=MESSAGES,
            budget=allreduce_budget,
            whole=WholeRun("digits on 2 x 2 ranks, every sum is yours", run_allreduce, lambda _: train_digits()),
        ),
    ),
)
