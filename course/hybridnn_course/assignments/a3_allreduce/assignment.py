"""A3: tasks, cases and the trainings with the student's functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np

from hybridnn.comm.blocks import block_size
from hybridnn.cost.collectives import CommunicationCounts, counts, rounds_of
from hybridnn_course.answers import Answer
from hybridnn_course.assignment import Assignment, Bound, Case, Points, Task, Variant, WholeRun
from hybridnn_course.assignments.a3_allreduce.allreduce_mistakes import ALLREDUCE
from hybridnn_course.assignments.a3_allreduce.phase_mistakes import ALLGATHER, REDUCE_SCATTER, SHIFT
from hybridnn_course.assignments.a3_allreduce.solution import (
    SMALL_BYTES,
    allgather_solution,
    allreduce_solution,
    is_small,
    reduce_scatter_solution,
    shift_solution,
    step_of,
)
from hybridnn_course.execution import ALPHA, BETA
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

MESSAGES = ("isend", "ireceive")
ALGORITHMS = {"ring": "ring", "doubling": "recursive_doubling", "tree": "binomial"}
"""Names in `hybridnn.cost.collectives` of the algorithms for small arrays."""

UNFILLED = -1000.0  # in the output arrays that the function has to fill

Route = set[tuple[int, int]]  # pairs of a sender and a receiver


# -- cases ------------------------------------------------------------------------------------------------------------


def _arrays(ranks: int, shape: Sequence[int], seed: int, dtype: str) -> list[Array]:
    """An array for each rank, whose elements need most bits of their type: smaller messages cannot bring them.

    Those of float32 are whole numbers, so that sums do not depend on their order.
    """
    random = np.random.default_rng(seed)
    if dtype == "float32":
        return [random.integers(-(1 << 20), 1 << 20, tuple(shape)).astype(dtype) for _ in range(ranks)]
    return [random.uniform(-99, 100, tuple(shape)) for _ in range(ranks)]


def _name(ranks: int, what: str, dtype: str) -> str:
    return f"{ranks} {'ranks' if ranks > 1 else 'rank'}, {what}{'' if dtype == 'float64' else f' of {dtype}'}"


def _rows(shape: Sequence[int]) -> str:
    columns = f" of {' x '.join(map(str, shape[1:]))} elements" if len(shape) > 1 else ""
    return f"{shape[0]} rows{columns}"


# -- bounds -----------------------------------------------------------------------------------------------------------


def _bounds(case: Case, answer: Answer, model: CommunicationCounts, route: Route) -> Sequence[Bound]:
    """The time of the model, its messages and bytes, and no message between other ranks than those of the route."""
    if case.ranks == 1:
        return []
    sends = [answer.sent(rank) for rank in range(case.ranks)]
    amounts = (
        ("virtual time in microseconds", 1e6 * answer.clock, 1e6 * model.seconds(ALPHA, BETA)),
        ("messages sent by a rank", max(map(len, sends)), model.messages),
        ("bytes sent by a rank", max(sum(call.nbytes for call in calls) for calls in sends), model.nbytes),
    )
    strays = sum((call.rank, call.peer) not in route for calls in sends for call in calls)
    return [
        *(Bound(what, value, full, 2 * full) for what, value, full in amounts),
        Bound("messages off the route", strays, 0, 1),
    ]


def _ring(ranks: int, variant: Variant) -> Route:
    return {(rank, (rank + step_of(variant)) % ranks) for rank in range(ranks)}


def _with_even_blocks(items: int, item_bytes: int, ranks: int) -> int:
    """Bytes of an array whose blocks are all as large as the largest one."""
    return block_size(items, ranks, 0) * ranks * item_bytes


def _phase_budget(operation: str) -> Callable[[Case, Answer, Variant], Sequence[Bound]]:
    def budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
        array = case.inputs[0]["array"]
        nbytes = _with_even_blocks(len(array), array[:1].nbytes or array.itemsize, case.ranks)
        return _bounds(case, answer, counts(operation, "ring", nbytes, case.ranks), _ring(case.ranks, variant))

    return budget


def _allreduce_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    array, ranks = case.inputs[0]["array"], case.ranks
    if not is_small(array, variant):
        nbytes = _with_even_blocks(array.size, array.itemsize, ranks)
        return _bounds(case, answer, counts("allreduce", "ring", nbytes, ranks), _ring(ranks, variant))
    algorithm = ALGORITHMS[variant["small_arrays"]]
    route: Route = set()
    for rounds in rounds_of("allreduce", algorithm, array.nbytes, ranks):
        senders, receivers = (side.tolist() for side in rounds.pattern(ranks, rounds.distance))
        route |= set(zip(senders, receivers, strict=True)) | set(zip(receivers, senders, strict=True))
    return _bounds(case, answer, counts("allreduce", algorithm, array.nbytes, ranks), route)


# -- trainings --------------------------------------------------------------------------------------------------------


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
        return np.full((rows, *shape[1:]), UNFILLED, dtype)

    arrays = _arrays(ranks, shape, seed, dtype)
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
    arrays = _arrays(ranks, shape, seed, dtype)
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
    package="hybridnn_course.assignments.a3_allreduce",
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
            target="hybridnn_course.assignments.a3_allreduce.solution:shift",
            call=call_shift,
            solution=shift_solution,
            public=_public_shift,
            hidden=_hidden_shift,
            points=Points(public=5, hidden=7),
            axes=("direction",),
            operations=MESSAGES,
            mistakes=SHIFT,
        ),
        Task(
            name="reduce_scatter",
            file="collectives.py",
            target="hybridnn_course.assignments.a3_allreduce.solution:reduce_scatter_rows",
            call=call_reduce_scatter,
            solution=reduce_scatter_solution,
            public=_public_reduce_scatter,
            hidden=_hidden_reduce_scatter,
            points=Points(public=8, hidden=12, budget=3, whole=3),
            axes=("direction", "block_of_rank"),
            operations=MESSAGES,
            budget=_phase_budget("reduce_scatter"),
            whole=WholeRun(
                "digits on 2 x 2 ranks: your reduce-scatter, then an all-gather of the library, for each sum",
                run_reduce_scatter,
                lambda _: train_digits(),
            ),
            mistakes=REDUCE_SCATTER,
        ),
        Task(
            name="allgather",
            file="collectives.py",
            target="hybridnn_course.assignments.a3_allreduce.solution:allgather_rows",
            library="hybridnn.comm.group:Group.allgather_rows",
            call=call_allgather,
            solution=allgather_solution,
            public=_public_allgather,
            hidden=_hidden_allgather,
            points=Points(public=7, hidden=10, budget=3, whole=3),
            axes=("direction", "block_of_rank"),
            operations=MESSAGES,
            budget=_phase_budget("allgather"),
            whole=WholeRun("digits, layers split over 4 ranks", run_allgather, lambda _: train_digits()),
            mistakes=ALLGATHER,
        ),
        Task(
            name="allreduce",
            file="collectives.py",
            target="hybridnn_course.assignments.a3_allreduce.solution:allreduce",
            library="hybridnn.comm.group:Group.allreduce",
            call=call_allreduce,
            solution=allreduce_solution,
            public=_public_allreduce,
            hidden=_hidden_allreduce,
            hidden_cases=7,
            points=Points(public=10, hidden=16, budget=9, whole=4),
            axes=("direction", "small_arrays"),
            operations=MESSAGES,
            budget=_allreduce_budget,
            whole=WholeRun("digits on 2 x 2 ranks, every sum is yours", run_allreduce, lambda _: train_digits()),
            mistakes=ALLREDUCE,
        ),
    ),
)
