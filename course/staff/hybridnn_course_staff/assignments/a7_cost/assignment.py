"""A7: tasks and cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from hybridnn_course.answers import Values
from hybridnn_course.assignment import Case, Points, Variant
from hybridnn_course.exercises.a7_cost.calls import call_counts, call_cuts, call_fit, call_grid, slowest_part
from hybridnn_course.exercises.a7_cost.predictions import (
    calibrated,
    calibrated_with,
    compared,
    map_of,
    mapped_with,
    partitioned,
    planned,
    planned_with,
)
from hybridnn_course_staff.assignment import Assignment, Task, WholeRun
from hybridnn_course_staff.assignments.a7_cost.solution import (
    NODE,
    RADIX,
    collective_solution,
    cuts_solution,
    fit_solution,
    grid_solution,
    ring_counts,
    ring_solution,
)
from hybridnn_course_staff.mistakes import known_mistakes

MESSAGE_UNITS = {"alpha in us": 1e-6, "beta in ns per byte": 1e-9}
GAMMA = {"gamma in ns per byte": 1e-9}


# -- fit --------------------------------------------------------------------------------------------------------------


def _fit_case(name: str, features: Any, seconds: Any, units: dict[str, float]) -> Case:
    arrays = {"features": np.array(features, np.float64), "seconds": np.array(seconds, np.float64)}
    return Case(name, ({**arrays, "units": units},))


def _public_fit(variant: Variant) -> Sequence[Case]:
    exact = [[1, nbytes] for nbytes in (100, 1000, 10000)]
    repeated = [[1, 1000], [1, 64000], [1, 1000], [1, 64000], [1, 8000], [1, 1000], [1, 8000], [1, 8000], [1, 64000]]
    measured = [4.1e-6, 18e-6, 3.8e-6, 19e-6, 6.1e-6, 60e-6, 5.8e-6, 5.7e-6, 18.5e-6]
    ring = [[6, 6 * 250, 3 * 250], [6, 6 * 5000, 3 * 5000], [14, 14 * 125, 7 * 125], [14, 14 * 2500, 7 * 2500]]
    ring += [[2, 2 * 100000, 0]]
    ring_seconds = [12.4e-6, 27.5e-6, 27.6e-6, 45.9e-6, 105e-6]
    return [
        _fit_case("3 sizes, no noise", exact, [2.1e-6, 3e-6, 12e-6], MESSAGE_UNITS),
        _fit_case("3 sizes, 3 repetitions, 1 outlier", repeated, measured, MESSAGE_UNITS),
        _fit_case("alpha, beta and gamma", ring, ring_seconds, {**MESSAGE_UNITS, **GAMMA}),
        _fit_case(
            "seconds grow faster than the bytes",
            [[1, 1000], [1, 2000], [1, 4000], [1, 8000]],
            [1e-6, 3.1e-6, 7e-6, 16e-6],
            MESSAGE_UNITS,
        ),
        _fit_case(
            "a feature that is always 0",
            [[1, 1000, 0], [1, 2000, 0], [1, 8000, 0]],
            [3e-6, 4.1e-6, 9.8e-6],
            {**MESSAGE_UNITS, **GAMMA},
        ),
    ]


def _noisy(random: Random, seconds: float, repetitions: int, outliers: int) -> list[float]:
    """Repetitions with 5 % noise, of which some are disturbed."""
    found = [seconds * math.exp(random.gauss(0, 0.05)) for _ in range(repetitions)]
    return [value * random.uniform(3, 30) if index < outliers else value for index, value in enumerate(found)]


def _hidden_fit(random: Random, variant: Variant, number: int) -> Case:
    alpha, beta, gamma = random.uniform(1e-6, 2e-5), random.uniform(5e-11, 2e-9), random.uniform(1e-10, 1e-9)
    rows: list[list[float]] = []
    seconds: list[float] = []
    kind = number % 3
    for index in range(random.randint(6, 9)):
        nbytes = round(math.exp(random.uniform(math.log(8), math.log(1 << 22))))
        ranks = random.choice((2, 3, 4, 7, 8))
        if kind == 0:
            row, taken = [1.0, float(nbytes)], alpha + beta * nbytes
        elif kind == 1:
            # All-reduces, all-gathers and reductions in turn: of one kind alone, gamma could not be told from beta.
            messages, sent, reduced = ring_counts(nbytes, ranks)
            row = [float(messages), float(sent), [float(reduced), 0.0, float(sent)][index % 3]]
            taken = row[0] * alpha + row[1] * beta + row[2] * gamma
        else:  # a negative alpha would fit best
            row, taken = [1.0, float(nbytes), 0.0], beta * nbytes * (1 + nbytes / (1 << 22)) ** 2 / (1 + 40 / nbytes)
        repetitions = random.randint(3, 6)
        rows += [row] * repetitions
        seconds += _noisy(random, taken, repetitions, random.choice((0, 1, 1)))
    order = random.sample(range(len(rows)), len(rows))
    units = MESSAGE_UNITS if kind == 0 else {**MESSAGE_UNITS, **GAMMA}
    return _fit_case("noise and outliers", [rows[i] for i in order], [seconds[i] for i in order], units)


# -- collectives ------------------------------------------------------------------------------------------------------


def _counts_case(nbytes: int, ranks: int) -> Case:
    return Case(
        f"{nbytes:,} bytes on {ranks} {'rank' if ranks == 1 else 'ranks'}", ({"nbytes": nbytes, "ranks": ranks},)
    )


def _public_ring(variant: Variant) -> Sequence[Case]:
    return [_counts_case(*sizes) for sizes in ((8000, 4), (8002, 5), (100, 1), (3, 5))]


def _public_collective(variant: Variant) -> Sequence[Case]:
    return [_counts_case(*sizes) for sizes in ((8000, 8), (8005, 6), (1000, 11), (100, 1))]


def _hidden_counts(random: Random, variant: Variant, number: int) -> Case:
    first = (1, 2, random.choice((7, 13, 17)), random.choice((10, 14, 18)), random.choice((33, 39, 45)))
    ranks = first[number] if number < len(first) else random.choice((6, 12, 20, 22, 36, 50, 66, 100))
    longer = 1 if number == 3 else ranks // 2 + 1  # blocks that have one byte more
    nbytes = random.randint(ranks // 2 + 1, ranks - 1) if number == 4 else ranks * random.randint(50, 9999) + longer
    return _counts_case(nbytes, ranks)


# -- cuts -------------------------------------------------------------------------------------------------------------


def _cuts_case(seconds: Sequence[float], boundaries: Sequence[float], stages: int) -> Case:
    name = f"{len(seconds)} layers, {stages} {'stage' if stages == 1 else 'stages'}"
    values = {"seconds": list(map(float, seconds)), "boundaries": list(map(float, boundaries)), "stages": stages}
    return Case(name, (values,))


def _public_cuts(variant: Variant) -> Sequence[Case]:
    return [
        _cuts_case([3, 1, 2, 4], [0, 0, 0], 2),
        _cuts_case([5, 2, 2, 6, 3], [1, 9, 2, 1], 3),
        # Two cases in which every known mistake has another partition, whether messages overlap or not.
        _cuts_case([8, 7, 2, 2, 2, 6, 9], [13, 18, 1, 2, 14, 1], 3),
        _cuts_case([7, 7, 3, 3, 2, 4, 8, 3], [2, 7, 2, 15, 1, 19, 2], 3),
        _cuts_case([4, 7, 1], [2, 3], 1),
        _cuts_case([2, 9, 4], [1, 1], 3),
    ]


def _hidden_cuts(random: Random, variant: Variant, number: int) -> Case:
    while True:
        layers, stages = (60, 12) if number == 5 else (random.randint(8, 12), random.randint(3, 4))
        seconds = [float(random.randint(1, 9) * random.choice((1, 1, 3))) for _ in range(layers)]
        # Some boundaries are as expensive as a stage, so that it matters where the cuts are.
        share = sum(seconds) / stages
        boundaries = [float(random.choice((0, 1, 2, round(share * random.uniform(0.8, 2))))) for _ in seconds[1:]]
        if number == 4:  # cuts so expensive that fewer stages would be faster
            boundaries = [sum(seconds) + random.randint(1, 99) for _ in seconds[1:]]
        if number > 3 or _tells_apart(variant, seconds, boundaries, stages):
            return _cuts_case(seconds, boundaries, stages)


def _tells_apart(variant: Variant, seconds: Sequence[float], boundaries: Sequence[float], stages: int) -> bool:
    """Whether messages matter so much that every wrong way to count them has cuts of another value."""
    ways = [cuts_solution({**variant, "messages": choice}) for choice in ("overlapped", "waited for")]
    wrong = {mistake.name: mistake.function for mistake in known_mistakes("cuts", cuts_solution)}
    ways += [wrong[name](variant) for name in ("boundary-ignored", "boundary-shifted", "one-stage-at-a-time")]
    found = {slowest_part(variant, seconds, boundaries, way(seconds, boundaries, stages)) for way in ways}
    return len(found) == len(ways)


# -- grid -------------------------------------------------------------------------------------------------------------


def _grid_case(widths: Sequence[int], batch: int, ranks: int, alpha: float, beta: float) -> Case:
    name = f"{'-'.join(map(str, widths))}, minibatch {batch}, {ranks} {'rank' if ranks == 1 else 'ranks'}"
    return Case(name, ({"widths": list(widths), "batch": batch, "ranks": ranks, "alpha": alpha, "beta": beta},))


def _public_grid(variant: Variant) -> Sequence[Case]:
    return [
        _grid_case([64, 512, 10], 100, 4, 2e-6, 1e-10),
        _grid_case([300, 300, 300, 300], 48, 12, 1e-5, 1e-9),
        _grid_case([5, 6, 6, 6], 4, 8, 1e-5, 1e-10),
        _grid_case([64, 24, 10], 100, 1, 2e-6, 1e-10),
    ]


def _hidden_grid(random: Random, variant: Variant, number: int) -> Case:
    if number == 3:  # the best grid would have idle ranks
        width = random.randint(5, 7)
        return _grid_case([random.randint(4, 9), *[width] * 3], random.randint(3, 7), 8, 1e-5, 1e-10)
    if number == 4:  # a grid with several ranks along both axes is much better than one along the model axis
        width = random.randint(36, 44)
        return _grid_case([random.randint(8, 16), width, width, 10], 29, 30, random.uniform(1e-6, 5e-6), 1e-9)
    ranks = random.choice((6, 12, 16, 18, 24, 30))
    widths = [random.choice((64, 200, 784))]
    widths += [random.choice((48, 100, 256, 600, 1500)) for _ in range(random.randint(1, 4))] + [10]
    batch = random.choice((30, 64, 128, 500, 2000))
    return _grid_case(widths, batch, ranks, random.choice((1e-6, 5e-6, 3e-5)), random.choice((8e-11, 4e-10, 1e-9)))


def _expected_map(variant: Variant) -> Values:
    return map_of(grid_solution(variant))


ASSIGNMENT = Assignment(
    id="a7",
    package="hybridnn_course_staff.assignments.a7_cost",
    title="A7: The cost of communication",
    goal="Predict the time of communication from alpha and beta, and choose partitions and grids by it",
    hours=6,
    axes={
        "repetitions": {
            "median": "Of several repetitions of a measurement the median counts.",
            "least": "Of several repetitions of a measurement the least counts.",
        },
        "collective": {
            "neighbour exchange": "The collective is an all-gather by neighbour exchange.",
            "4-nomial tree": f"The collective is a broadcast in a {RADIX}-nomial tree.",
            "two levels": f"The collective is an all-reduce on two levels, {NODE} ranks on every node but the last.",
        },
        "messages": {
            "overlapped": "Messages overlap with computing: the parts of a pipeline are its stages and the boundaries "
            "between them.",
            "waited for": "Messages do not overlap with computing: a part of a pipeline is a stage together with the "
            "boundaries at both of its ends.",
        },
        "weights": {
            "replicated": "The weights are replicated along the batch axis: their gradients are all-reduced along it.",
            "sharded": "The weights are sharded along the batch axis: along it, they are all-gathered before the "
            "forward pass and again before the backward pass, and their gradients are reduce-scattered.",
        },
    },
    tasks=(
        Task(
            name="fit",
            file="fitting.py",
            target="hybridnn_course_staff.assignments.a7_cost.solution:fit_costs",
            call=call_fit,
            solution=fit_solution,
            public=_public_fit,
            hidden=_hidden_fit,
            points=Points(public=7, hidden=12, whole=4),
            axes=("repetitions",),
            whole=WholeRun(
                "calibration of a machine, errors on held-out sizes",
                calibrated_with,
                lambda _: calibrated(),
                tolerance=1e-6,
            ),
            tolerance=1e-7,
        ),
        Task(
            name="ring",
            file="collectives.py",
            target="hybridnn_course_staff.assignments.a7_cost.solution:ring_counts",
            call=call_counts,
            solution=ring_solution,
            public=_public_ring,
            hidden=_hidden_counts,
            points=Points(public=5, hidden=7, whole=4),
            whole=WholeRun("plan of 6 and 12 ranks with this all-reduce", planned_with, lambda _: planned()),
        ),
        Task(
            name="collective",
            file="collectives.py",
            target="hybridnn_course_staff.assignments.a7_cost.solution:collective_counts",
            call=call_counts,
            solution=collective_solution,
            public=_public_collective,
            hidden=_hidden_counts,
            points=Points(public=6, hidden=10, whole=3),
            axes=("collective",),
            whole=WholeRun(
                "comparison with the library's algorithms",
                compared,
                lambda variant: compared(collective_solution(variant), variant),
            ),
        ),
        Task(
            name="cuts",
            file="planning.py",
            target="hybridnn_course_staff.assignments.a7_cost.solution:best_cuts",
            call=call_cuts,
            solution=cuts_solution,
            public=_public_cuts,
            hidden=_hidden_cuts,
            points=Points(public=6, hidden=12, whole=3),
            axes=("messages",),
            whole=WholeRun(
                "predicted pipelines of 2 to 5 stages",
                partitioned,
                lambda variant: partitioned(cuts_solution(variant), variant),
            ),
        ),
        Task(
            name="grid",
            file="planning.py",
            target="hybridnn_course_staff.assignments.a7_cost.solution:best_grid",
            call=call_grid,
            solution=grid_solution,
            public=_public_grid,
            hidden=_hidden_grid,
            hidden_cases=12,
            points=Points(public=6, hidden=12, whole=3),
            axes=("weights",),
            whole=WholeRun("map of the best grids of 16 ranks", mapped_with, _expected_map),
        ),
    ),
)
