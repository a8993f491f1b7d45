"""The search for the order of a pipeline: against every order, its bound, and the methods by name."""

from itertools import product
from math import inf
from random import Random
from time import process_time

import pytest

from hybridnn.cost.order_search import StageTimes, exact_orders, lower_bound, play, search
from hybridnn.pipeline.checks.lint import lint
from hybridnn.pipeline.checks.simulated_schedule import Durations, simulate
from hybridnn.pipeline.schedules.methods import make_schedule


def drawn(random: Random, stages: int) -> tuple[StageTimes, ...]:
    """Uneven stages with messages, and with updates where there are few stages."""
    paces = [random.uniform(0.5, 2) for _ in range(stages)]
    passes = [[pace * random.uniform(0.8, 1.2) for _ in range(3)] for pace in paces]
    ends = [random.uniform(0, 1) * (stages < 4) for _ in range(stages)]
    return tuple(StageTimes(*own, end, random.uniform(0, 0.5)) for own, end in zip(passes, ends, strict=True))


def words(microbatches: int, done: tuple[int, int, int] = (0, 0, 0)) -> list[str]:
    """The rest of every order of a stage."""
    f, b, w = done
    following = {"F": (f + 1, b, w), "B": (f, b + 1, w), "W": (f, b, w + 1)}
    allowed = {"F": f < microbatches, "B": b < f, "W": w < b}
    return [letter + it for letter in "FBW" if allowed[letter] for it in words(microbatches, following[letter])] or [""]


def in_flight(word: str) -> int:
    return max(word[:end].count("F") - word[:end].count("W") for end in range(len(word) + 1))


@pytest.mark.parametrize(("stages", "microbatches", "draws"), [(2, 2, 12), (3, 2, 8), (2, 3, 3)])
def test_no_order_of_few_is_faster(stages: int, microbatches: int, draws: int) -> None:
    for draw, limit in product(range(draws), range(1, microbatches + 1)):
        times = drawn(Random(draw), stages)
        allowed = [word for word in words(microbatches) if in_flight(word) <= limit]
        least = min(play(times, microbatches, order).makespan for order in product(allowed, repeat=stages))
        found = search(times, microbatches, limit)
        assert found.makespan == pytest.approx(least, rel=1e-12)
        assert lower_bound(times, microbatches, limit) <= least * (1 + 1e-12)


@pytest.mark.parametrize("limited", [False, True])
def test_uneven_stages(limited: bool) -> None:
    """Never slower than a method by name, often faster, and mostly close to the bound."""
    faster = close = 0
    for draw in range(100):
        random = Random(draw)
        stages = random.randint(2, 8)
        times, microbatches = drawn(random, stages), random.randint(stages, 2 * stages)
        found = search(times, microbatches, stages if limited else 0)
        assert found.in_flight == max(map(in_flight, found.order)) <= (stages if limited else microbatches)
        named = [play(times, microbatches, order) for order in exact_orders(stages, microbatches)]
        assert len(named) > 3
        best = min(it.makespan for it in named if it.in_flight <= (stages if limited else microbatches))
        assert found.makespan <= best
        bound = lower_bound(times, microbatches, stages if limited else microbatches)
        assert bound <= found.makespan * (1 + 1e-12)
        faster += found.makespan < best * (1 - 1e-9)
        close += found.makespan <= 1.03 * bound
    assert faster >= 40
    assert close >= 80


def test_times_are_those_of_the_schedule() -> None:
    """The search and the simulation of schedules agree, and 8 stages of 32 microbatches take less than 2 s."""
    durations = Durations(1.0, 2.0, 0.75, 0.25)
    begun = process_time()
    found = search((StageTimes(1.0, 1.25, 0.75, message=0.25),) * 8, 32, 8)
    assert process_time() - begun < 2
    made = make_schedule("searched", stages=8, minibatches=1, microbatches=32, order=found.order)
    lint(made)
    assert simulate(made, durations).makespan == pytest.approx(found.makespan)
    assert play((StageTimes(1.0, 1.0, 1.0),) * 2, 2, ("FBFBWW", "FFBBWW")).makespan == inf  # stages wait for each other
