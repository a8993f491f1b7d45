"""Whole steps of training, for what cannot be timed apart from them.

Updates and losses find the caches as a step leaves them, and Python runs around instructions and steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from types import MappingProxyType
from typing import Protocol

import numpy as np

from hybridnn.cost.calibration.compute_samples import ConcurrentRanks, draw_shape
from hybridnn.cost.calibration.fit import fit_linear
from hybridnn.cost.machine.compute import ElementCost
from hybridnn.nn.mlp import MLP

SLOTS: Mapping[str, int] = MappingProxyType({"sgd": 0, "momentum": 1, "adam": 2})
"""Arrays that each optimizer keeps beside weights and gradients."""

MOST_MULTIPLY_ADDS = 2e8
"""Of a step that is timed: what is asked for is a small part of longer ones."""

MICROBATCHES = (1, 2, 1, 4, 1, 8, 1, 16)
LEAST_SAMPLES = 6
LEAST_SECONDS = 1e-7
"""Stands for what the clock could not see."""


@dataclass(frozen=True)
class StepCase:
    """A training whose steps are timed.

    Attributes
    ----------
    model : MLP
    batch_size : int
    microbatches : int
        Parts that every minibatch is cut into, as in a pipeline.
    dtype : {"float32", "float64"}
    optimizer : {"sgd", "momentum", "adam"}
    classification : bool
    """

    model: MLP
    batch_size: int
    microbatches: int
    dtype: str
    optimizer: str
    classification: bool

    @property
    def loaded_numbers(self) -> int:
        """Numbers of samples and targets."""
        sizes = self.model.sizes
        return self.batch_size * (sizes[0] + (1 if self.classification else sizes[-1]))


class TimedStep(Protocol):
    """A step of training that was timed."""

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        ...

    @property
    def computing(self) -> Mapping[str, float]:
        """Seconds by kind of computation: passes, ``loss`` and ``update``."""
        ...

    @property
    def instructions(self) -> int:
        """Of the schedule."""
        ...


StepTimer = Callable[[StepCase], TimedStep]
"""Times a step on this rank alone."""


@dataclass(frozen=True)
class StepSample:
    """A case and its step."""

    case: StepCase
    step: TimedStep


def measure_steps(
    dtype: str, budget_seconds: float, generator: np.random.Generator, crowd: ConcurrentRanks, time_step: StepTimer
) -> list[StepSample]:
    """Time steps of random networks until the budget is spent; every rank of the crowd the same at the same time."""
    found: list[StepSample] = []
    end = perf_counter() + budget_seconds
    while len(found) < LEAST_SAMPLES or crowd.before(end):
        sizes, batch_size = draw_shape(generator)
        if 3 * batch_size * sum(inputs * outputs for inputs, outputs in pairwise(sizes)) > MOST_MULTIPLY_ADDS:
            continue
        number = len(found)
        microbatches = min(MICROBATCHES[number % len(MICROBATCHES)], batch_size)
        optimizer = tuple(SLOTS)[number % len(SLOTS)]
        case = StepCase(MLP(sizes, "relu"), batch_size, microbatches, dtype, optimizer, number % 2 == 0)
        found.append(StepSample(case, time_step(case)))
    return found


@dataclass(frozen=True)
class StepCosts:
    """What was fitted to whole steps."""

    updates: dict[str, ElementCost]
    losses: dict[str, ElementCost]
    load: ElementCost
    instruction_seconds: float
    step_seconds: float


def fit_steps(samples: Sequence[StepSample], cache_numbers: float) -> StepCosts:
    """Costs of updates by optimizer, of losses, and of Python, from whole steps."""
    updates = {name: _fit_update(samples, name, cache_numbers) for name in SLOTS}
    losses = {
        name: fit_element(
            [_of_one_loss(one) for one in samples if one.case.classification == labels],
            cache_numbers,
        )
        for name, labels in (("mse", False), ("cross_entropy", True))
    }
    rows = [(1, one.step.instructions, one.case.loaded_numbers) for one in samples]
    beside = [max(one.step.seconds - sum(one.step.computing.values()), LEAST_SECONDS) for one in samples]
    step, instruction, number = fit_linear(rows, beside).coefficients
    return StepCosts(updates, losses, ElementCost(number_seconds=number), instruction, step)


def fit_element(samples: Sequence[tuple[float, float]], cache_numbers: float, arrays: int = 1) -> ElementCost:
    """Costs of element-wise work on so many arrays from pairs of numbers and seconds."""
    rows = [(1, n, n if n * arrays >= cache_numbers else 0) for n, _ in samples]
    call, number, uncached = fit_linear(rows, [seconds for _, seconds in samples]).coefficients
    return ElementCost(call_seconds=call, number_seconds=number, uncached_number_seconds=uncached)


def _fit_update(samples: Sequence[StepSample], optimizer: str, cache_numbers: float) -> ElementCost:
    pairs = [
        (one.case.model.parameters, one.step.computing["update"]) for one in samples if one.case.optimizer == optimizer
    ]
    return fit_element(pairs, cache_numbers, 2 + SLOTS[optimizer])


def _of_one_loss(sample: StepSample) -> tuple[float, float]:
    """Numbers and seconds of one call of the loss; there is one for each microbatch."""
    case, calls = sample.case, sample.case.microbatches
    return case.batch_size * case.model.sizes[-1] / calls, sample.step.computing["loss"] / calls
