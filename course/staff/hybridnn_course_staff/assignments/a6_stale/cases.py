"""Cases of A6."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from hybridnn_course.assignment import Case, Variant
from hybridnn_course.exercises.a6_stale.runs import METHODS, STAGE_METHODS

Steps = list[list[object]]


# -- rules ------------------------------------------------------------------------------------------------------------


def _rules_case(method: str, stages: int, minibatches: int) -> Case:
    inputs = {"method": method, "stages": stages, "minibatches": minibatches}
    return Case(f"{method}, {stages} stages, {minibatches} minibatches", (inputs,))


def public_rules(variant: Variant) -> Sequence[Case]:
    """Every method once."""
    return [_rules_case(method, 5 if method == "extra" else 3, 6) for method in METHODS]


def hidden_rules(random: Random, variant: Variant, number: int) -> Case:
    """Every method once, on more stages."""
    stages = random.randint(5, 8)
    return _rules_case(METHODS[number % len(METHODS)], stages, stages + random.randint(2, 5))


# -- store ------------------------------------------------------------------------------------------------------------


def _store_case(name: str, last_reads: Sequence[int], size: int, seed: int) -> Case:
    """A case where version v is read after every update up to number ``last_reads[v]``."""
    steps: Steps = []
    most = 1
    for updates in range(len(last_reads)):
        alive = [version for version in range(updates + 1) if last_reads[version] >= updates]
        most = max(most, len({*alive, updates}))
        steps += [["read", updates - version] for version in alive]
        later = [version for version in range(updates + 1) if last_reads[version] > updates]
        steps.append(["update", *(updates + 1 - version for version in later)])
    steps.append(["read", 0])
    inputs = {"size": size, "versions": most, "seed": seed, "steps": steps}
    return Case(f"{name}, {most} {'buffers' if most > 1 else 'buffer'}", (inputs,))


def _delayed(updates: int, delay: int) -> list[int]:
    """Version v is read until update v + delay, or the last one."""
    return [min(version + delay, updates - 1) for version in range(updates)]


def public_store(variant: Variant) -> Sequence[Case]:
    """Pipelines with and without older versions, and versions that are kept with gaps."""
    return [
        _store_case("current versions only", _delayed(4, 0), 3, 1),
        _store_case("PipeDream, stage 0 of 3", _delayed(7, 2), 3, 2),
        _store_case("two versions at a time", _delayed(5, 1), 4, 3),
        _store_case("every second version is kept", [3, 1, 5, 3, 7, 5, 7, 7], 3, 4),
    ]


def hidden_store(random: Random, variant: Variant, number: int) -> Case:
    """Pipelines, and versions that are kept for random times."""
    seed, size = random.randrange(10**6), random.randint(3, 30)
    updates = random.randint(7, 12)
    if number < 2:
        return _store_case("pipeline", _delayed(updates, [random.randint(3, 5), 0][number]), size, seed)
    last_reads = [min(version + random.choice([0, 0, 1, 2, 5]), updates - 1) for version in range(updates)]
    last_reads[:3] = [4, 1, 3]  # a gap, whatever the others are
    return _store_case("kept for different times", last_reads, size, seed)


# -- stage ------------------------------------------------------------------------------------------------------------


def _stage_case(method: str, sizes: Sequence[int], samples: Sequence[int], rate: float, seed: int) -> Case:
    """Weights are so small that the training is stable: rounding errors of other right formulas do not grow."""
    random = np.random.default_rng(seed)
    shapes = zip(sizes[1:], sizes[:-1], strict=True)
    inputs = {
        "method": method,
        "rate": rate,
        "layers": [random.normal(size=shape) / np.sqrt(shape[1]) for shape in shapes],
        "batches": [random.normal(size=(sizes[0], count)) for count in samples],
        "targets": [random.normal(size=(sizes[-1], count)) for count in samples],
    }
    stages = len(sizes) - 1
    name = f"{method}, {stages} {'stages' if stages > 1 else 'stage'}, {len(samples)} minibatches"
    return Case(name, (inputs,))


def public_stage(variant: Variant) -> Sequence[Case]:
    """One stage, and three stages with every method."""
    cases = [_stage_case("vanilla", (2, 2), [2, 1, 2], 0.5, 1)]
    return cases + [_stage_case(method, (3, 4, 2, 2), [2, 2, 1, 2, 2], 0.25, 2) for method in STAGE_METHODS]


def hidden_stage(random: Random, variant: Variant, number: int) -> Case:
    """Every method on two to five stages of different sizes."""
    stages = random.randint(4, 5) if number < 3 else random.randint(2, 3)
    sizes = [random.randint(2, 7) for _ in range(stages + 1)]
    samples = [random.randint(1, 4) for _ in range(stages + random.randint(3, 6))]
    method = STAGE_METHODS[number % len(STAGE_METHODS)]
    return _stage_case(method, sizes, samples, random.choice([0.1, 0.2, 0.3]), random.randrange(10**6))


# -- distance ---------------------------------------------------------------------------------------------------------


def _distance_case(stages: int, minibatches: int) -> Case:
    return Case(f"{stages} stages, {minibatches} minibatches", ({"stages": stages, "minibatches": minibatches},))


def public_distance(variant: Variant) -> Sequence[Case]:
    """Pipelines that are full, and one that never is."""
    return [_distance_case(2, 4), _distance_case(4, 8), _distance_case(5, 3)]


def hidden_distance(random: Random, variant: Variant, number: int) -> Case:
    """More stages, and fewer minibatches than stages."""
    stages = [1, 6][number] if number < 2 else random.randint(5, 9)
    return _distance_case(stages, random.randint(2, stages) if number == 2 else stages + random.randint(2, 6))


# -- predict ----------------------------------------------------------------------------------------------------------


def _predict_case(size: int, momentum: float, lr: float, steps: int, seed: int) -> Case:
    name = f"{size} weights, {steps} {'step' if steps == 1 else 'steps'}, rate {lr:g}, momentum {momentum:g}"
    return Case(name, ({"size": size, "momentum": momentum, "lr": lr, "steps": steps, "seed": seed},))


def public_predict(variant: Variant) -> Sequence[Case]:
    """One step, and several steps."""
    return [
        _predict_case(3, 0.9, 0.1, 1, 1),
        _predict_case(4, 0.5, 0.2, 3, 2),
        _predict_case(20, 0.9, 0.05, 2, 3),
    ]


def hidden_predict(random: Random, variant: Variant, number: int) -> Case:
    """Further numbers of steps."""
    momentum, lr = random.choice([0.3, 0.6, 0.8]), random.choice([0.01, 0.03, 0.3])
    steps = 0 if number == 2 else random.randint(2, 6)
    return _predict_case(random.randint(5, 50), momentum, lr, steps, random.randrange(10**6))
