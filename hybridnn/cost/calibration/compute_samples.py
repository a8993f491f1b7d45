"""Measurement of computing: passes in networks of random shapes, element-wise work of random sizes, training steps.

All ranks that are to be busy call these functions at the same time, so that they share caches and memory bandwidth as
in training.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.cost.prediction.workload import OPTIMIZERS
from hybridnn.kernels import numpy_kernels as kernels
from hybridnn.kernels.activations import ACTIVATIONS
from hybridnn.nn.mlp import MLP
from hybridnn.pipeline.partition.layer_profile import LayerSeconds, layer_timer

WIDTHS = 4, 2600  # widths of layers, drawn evenly on a logarithmic scale; the network's last layer may be narrower

NARROWEST = 1
SAMPLES = 4, 640
LAYERS = 1, 5
MOST_MULTIPLY_ADDS = 2e9
"""Of one forward and backward pass; larger networks are as fast per multiply-add and take longer to time."""

MOST_STEP_MULTIPLY_ADDS = 2e8  # of a timed training step: in longer ones, updates, losses and Python are a small part

SIZE_CLASSES = tuple((2**power, 2 ** (power + 3)) for power in (6, 19, 12, 16, 9))
"""Sizes of arrays for element-wise work, in an order in which few samples cover the range."""

ROUNDS = 5, 40
PASS_SECONDS, ELEMENT_SECONDS = 0.08, 0.01
"""Time for the rounds of a network, and of element-wise work of one size, within `ROUNDS`."""

MICROBATCHES = (1, 2, 1, 4, 1, 8, 1, 16)
LEAST_STEPS = 6


def draw_shape(generator: np.random.Generator) -> tuple[list[int], int]:
    """Sizes of a network and samples of a minibatch, small enough to be timed quickly."""
    while True:
        layers = int(generator.integers(*LAYERS, endpoint=True))
        sizes = [_log_uniform(generator, *WIDTHS) for _ in range(layers)]
        sizes.append(_log_uniform(generator, NARROWEST, WIDTHS[1]))
        samples = _log_uniform(generator, *SAMPLES)
        if _multiply_adds(sizes, samples) <= MOST_MULTIPLY_ADDS:
            return sizes, samples


def _multiply_adds(sizes: Sequence[int], samples: int) -> int:
    return 3 * samples * sum(inputs * outputs for inputs, outputs in pairwise(sizes))


def _log_uniform(generator: np.random.Generator, low: int, high: int) -> int:
    return round(float(np.exp(generator.uniform(np.log(low), np.log(high)))))


def _before(end: float, ranks: Group) -> bool:
    """Whether it is earlier than `end` by every rank's clock; also a barrier."""
    is_late = np.array([perf_counter() >= end], np.float64)
    ranks.allreduce(is_late, "max")
    return not is_late[0]


def _rounds(measure: Callable[[], Any], seconds: float) -> Iterator[Any]:
    """Results of repeated measurements, after a first one that does not count."""
    measure()
    least, most = ROUNDS
    start, done = perf_counter(), 0
    while done < least or (done < most and perf_counter() - start < seconds):
        yield measure()
        done += 1


# -- passes ----------------------------------------------------------------------------------------------------------


class PassSample(NamedTuple):
    """A layer that was timed in its network; the first one computes no input gradient."""

    outputs: int
    inputs: int
    samples: int
    first: bool
    seconds: LayerSeconds


class TimedNetwork(NamedTuple):
    """The layers of a network, and the seconds of all passes in each round."""

    layers: tuple[PassSample, ...]
    rounds: tuple[float, ...]


def measure_passes(
    dtype: str, budget_seconds: float, generator: np.random.Generator, ranks: Group
) -> list[TimedNetwork]:
    """Time the passes of random networks without activations until the budget is spent; collective."""
    networks: list[TimedNetwork] = []
    end = perf_counter() + budget_seconds
    while not networks or _before(end, ranks):
        sizes, samples = draw_shape(generator)
        time_passes = layer_timer(MLP(sizes, "identity"), samples, dtype)
        _before(end, ranks)
        rounds = list(_rounds(time_passes, PASS_SECONDS))
        medians = [LayerSeconds(*map(median, zip(*layer, strict=True))) for layer in zip(*rounds, strict=True)]
        layers = tuple(
            PassSample(outputs, inputs, samples, index == 0, seconds)
            for index, ((inputs, outputs), seconds) in enumerate(zip(pairwise(sizes), medians, strict=True))
        )
        networks.append(TimedNetwork(layers, tuple(sum(map(sum, seconds)) for seconds in rounds)))
    return networks


# -- element-wise work -----------------------------------------------------------------------------------------------

Action = Callable[[], object]


def measure_elements(
    dtype: str, budget_seconds: float, generator: np.random.Generator, ranks: Group
) -> dict[str, list[tuple[float, float]]]:
    """Time element-wise work on arrays of random sizes until the budget is spent, at least once in each size class.

    Returns elements and seconds of the samples of ``packing``, ``forward relu``, ``gradient tanh``, …
    """
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    end, count = perf_counter() + budget_seconds, 0
    while count < len(ELEMENT_KINDS) * len(SIZE_CLASSES) or _before(end, ranks):
        kind = ELEMENT_KINDS[count % len(ELEMENT_KINDS)]
        elements = _log_uniform(generator, *SIZE_CLASSES[count // len(ELEMENT_KINDS) % len(SIZE_CLASSES)])
        action = _work(kind, elements, np.dtype(dtype), generator)
        found[kind].append((elements, median(_rounds(lambda: _seconds_of(action), ELEMENT_SECONDS))))  # noqa: B023
        count += 1
    return dict(found)


def _seconds_of(action: Action) -> float:
    start = perf_counter()
    action()
    return perf_counter() - start


def _normal(elements: int, dtype: np.dtype[Any], generator: np.random.Generator) -> NDArray[Any]:
    # Repeated, because drawing them all would take longer than what is timed.
    return np.resize(generator.standard_normal(min(elements, 4096), dtype=dtype.type), elements)


def _work(kind: str, elements: int, dtype: np.dtype[Any], generator: np.random.Generator) -> Action:
    source, out = _normal(elements, dtype, generator), np.empty(elements, dtype)
    kind, _, name = kind.partition(" ")
    if kind == "packing":
        return lambda: kernels.copy(source, out)
    if kind == "forward":
        return lambda: ACTIVATIONS[name].apply(source, out)
    gradient, scratch = _normal(elements, dtype, generator), np.empty(elements, dtype)
    return lambda: ACTIVATIONS[name].gradient(source, gradient, out, scratch)


_FUNCTIONS = tuple(name for name in ACTIVATIONS if name != "identity")
ELEMENT_KINDS = ("packing", *(f"{kind} {name}" for kind in ("forward", "gradient") for name in _FUNCTIONS))
"""Kinds of element-wise work that are measured."""


# -- training steps --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepCase:
    """A training whose steps are timed, with a key of `OPTIMIZERS`."""

    model: MLP
    batch_size: int
    microbatches: int
    dtype: str
    optimizer: str
    classification: bool

    @property
    def loaded_elements(self) -> int:
        """Elements of the samples and targets of a minibatch."""
        sizes = self.model.sizes
        return self.batch_size * (sizes[0] + (1 if self.classification else sizes[-1]))


@dataclass(frozen=True)
class StepTime:
    """Seconds of a training step, and of its kinds of computation: passes, ``loss`` and ``update``."""

    seconds: float
    computing: Mapping[str, float]
    instructions: int

    @property
    def overhead(self) -> float:
        """Seconds outside computations."""
        return self.seconds - sum(self.computing.values())


StepTimer = Callable[[StepCase], StepTime]  # times a step on this rank alone

StepSample = tuple[StepCase, StepTime]


def measure_steps(
    dtype: str, budget_seconds: float, generator: np.random.Generator, ranks: Group, time_step: StepTimer
) -> list[StepSample]:
    """Time training steps of random networks until the budget is spent; collective.

    Updates and losses find the caches as a step leaves them, and Python around instructions and steps is part of it.
    """
    found: list[StepSample] = []
    end = perf_counter() + budget_seconds
    while len(found) < LEAST_STEPS or _before(end, ranks):
        sizes, batch_size = draw_shape(generator)
        if _multiply_adds(sizes, batch_size) > MOST_STEP_MULTIPLY_ADDS:
            continue
        number = len(found)
        microbatches = min(MICROBATCHES[number % len(MICROBATCHES)], batch_size)
        optimizer = tuple(OPTIMIZERS)[number % len(OPTIMIZERS)]
        case = StepCase(MLP(sizes, "relu"), batch_size, microbatches, dtype, optimizer, number % 2 == 0)
        found.append((case, time_step(case)))
    return found
