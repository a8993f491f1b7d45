"""A2: cases of the reducer."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from hybridnn.parallel.gradient_reduction import plan_buckets
from hybridnn_course.assignment import Case, Variant
from hybridnn_course.exercises.a2_batch.budgets import STEPS


def ends_of(layers: Sequence[int], variant: Variant) -> tuple[list[int], int]:
    """The element after the last one of each layer in the buffer, and the size of the buffer with the loss."""
    first = int(variant["loss_place"] == "first")
    return [first + int(end) for end in np.cumsum(layers)], sum(layers) + 1


# -- cases ------------------------------------------------------------------------------------------------------------


def _reducer_case(ranks: int, layers: Sequence[int], elements: int, seed: int, variant: Variant) -> Case:
    """A case whose elements have fractions: messages of a smaller type cannot bring them."""
    random = np.random.default_rng(seed)
    ends, size = ends_of(layers, variant)
    buckets = [[layer, start, stop] for layer, (start, stop) in plan_buckets(ends, size, elements).items()]
    common = {"layers": list(layers), "ends": ends, "buckets": buckets, "place": -1 if ends[-1] < size else 0}
    inputs = [{**common, "steps": [random.uniform(-99, 100, size) for _ in range(STEPS)]} for _ in range(ranks)]
    name = f"{len(layers)} layers, {len(buckets)} {'buckets' if len(buckets) > 1 else 'bucket'}"
    return Case(f"{ranks} {'ranks' if ranks > 1 else 'rank'}, {name}", tuple(inputs))


def public_reducer(variant: Variant) -> Sequence[Case]:
    """Several buckets of several layers, and a single one."""
    sizes = ((4, [3, 4, 2, 5], 6), (2, [4, 6], 100), (3, [2, 6, 1, 1, 3, 2], 4))
    return [_reducer_case(*size, seed, variant) for seed, size in enumerate(sizes)]


def hidden_reducer(random: Random, variant: Variant, number: int) -> Case:
    """One rank, a single bucket, and several buckets, the first of which has several layers."""
    ranks = number + 2 if number > 3 else random.randint(2, 5)
    count = random.randint(3, 7)
    layers = [random.randint(2, 12) for _ in range(count)]
    if number < 2:
        return _reducer_case((1, ranks)[number], layers, (6, 100)[number], random.randrange(10**6), variant)
    elements = layers[-1] + layers[-2]
    layers[0] = elements
    return _reducer_case(ranks, layers, elements, random.randrange(10**6), variant)
