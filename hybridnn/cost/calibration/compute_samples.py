"""Measuring what computing costs: passes of layers in networks of random shapes, and element-wise work of random sizes.

All ranks that are to be busy call these at the same time, so that they share caches and memory as in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import perf_counter
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.kernels import numpy_kernels as kernels
from hybridnn.nn.mlp import ACTIVATIONS, MLP
from hybridnn.pipeline.partition.layer_profile import LayerSeconds, layer_passes, time_passes

WIDTHS = 4, 2600
"""Widths of layers, drawn evenly on a logarithmic scale; the network's last layer may be narrower."""

NARROWEST = 1
SAMPLES = 4, 640
LAYERS = 1, 5
MOST_MULTIPLY_ADDS = 2e9
"""Of one pass over a network forward and back; larger networks are as fast per multiply-add and take longer to time."""

SIZE_CLASSES = tuple((2**power, 2 ** (power + 3)) for power in (6, 19, 12, 16, 9))
"""Sizes of arrays for element-wise work: one after another, so that few samples already are of all sizes."""

ROUNDS = 5, 40
PASS_SECONDS, ELEMENT_SECONDS = 0.08, 0.01
"""A network, and element-wise work of one size, is timed until so many seconds are spent on it, within the rounds
above."""


@dataclass(frozen=True)
class PassSample:
    """One layer that was timed in its network.

    Attributes
    ----------
    outputs, inputs, samples : int
        Its shape.
    first : bool
        Whether it was the network's first layer, which computes no gradient of its input.
    seconds : LayerSeconds
    """

    outputs: int
    inputs: int
    samples: int
    first: bool
    seconds: LayerSeconds


@dataclass(frozen=True)
class TimedNetwork:
    """The layers of a network, and the seconds that all passes took in each round."""

    layers: tuple[PassSample, ...]
    rounds: tuple[float, ...]


@dataclass(frozen=True)
class ElementSample:
    """Element-wise work that was timed.

    Attributes
    ----------
    kind : str
        ``forward relu``, ``gradient tanh``, ``loss mse``, ``update adam``, ``packing``, …
    numbers : int
    seconds : float
    """

    kind: str
    numbers: int
    seconds: float


def draw_shape(generator: np.random.Generator) -> tuple[list[int], int]:
    """Sizes of a network and samples of a minibatch, not too large to be timed quickly."""
    while True:
        layers = int(generator.integers(*LAYERS, endpoint=True))
        sizes = [_log_uniform(generator, *WIDTHS) for _ in range(layers)]
        sizes.append(_log_uniform(generator, NARROWEST, WIDTHS[1]))
        samples = _log_uniform(generator, *SAMPLES)
        weights = sum(inputs * outputs for inputs, outputs in pairwise(sizes))
        if 3 * weights * samples <= MOST_MULTIPLY_ADDS:
            return sizes, samples


class ConcurrentRanks:
    """Ranks that compute at the same time; alone, one of them.

    Parameters
    ----------
    group : Group
    """

    def __init__(self, group: Group) -> None:
        self._group = group

    def before(self, end: float) -> bool:
        """Whether it is earlier than `end` by every rank's clock; the ranks go on together."""
        late = np.array([perf_counter() >= end], np.float64)
        self._group.allreduce(late, "max")
        return not late[0]


def measure_passes(
    dtype: str, budget_seconds: float, generator: np.random.Generator, crowd: ConcurrentRanks
) -> list[TimedNetwork]:
    """Time the passes of random networks without activations until the budget is spent.

    Every rank of the crowd times the same networks at the same time.
    """
    networks: list[TimedNetwork] = []
    end = perf_counter() + budget_seconds
    while not networks or crowd.before(end):
        sizes, samples = draw_shape(generator)
        passes = layer_passes(MLP(sizes, "identity"), samples, dtype)
        crowd.before(end)
        rounds = list(_rounds(lambda: time_passes(passes), PASS_SECONDS))  # noqa: B023 - called at once
        layers = tuple(
            PassSample(outputs, inputs, samples, place == 0, layer)
            for place, (inputs, outputs, layer) in enumerate(zip(sizes[:-1], sizes[1:], _medians(rounds), strict=True))
        )
        networks.append(TimedNetwork(layers, tuple(sum(map(sum, one)) for one in rounds)))
    return networks


def measure_elements(
    dtype: str, budget_seconds: float, generator: np.random.Generator, crowd: ConcurrentRanks
) -> list[ElementSample]:
    """Time element-wise work of all kinds on arrays of random sizes until the budget is spent, once each at least."""
    works = list(_WORKS.items())
    found: list[ElementSample] = []
    end = perf_counter() + budget_seconds
    while len(found) < len(works) * len(SIZE_CLASSES) or crowd.before(end):
        kind, make = works[len(found) % len(works)]
        numbers = _log_uniform(generator, *SIZE_CLASSES[len(found) // len(works) % len(SIZE_CLASSES)])
        action = make(numbers, np.dtype(dtype), generator)
        found.append(ElementSample(kind, numbers, median(_rounds(lambda: _seconds_of(action), ELEMENT_SECONDS))))  # noqa: B023
    return found


Action = Callable[[], object]
Work = Callable[[int, "np.dtype[Any]", np.random.Generator], Action]


def _normal(numbers: int, dtype: np.dtype[Any], generator: np.random.Generator) -> NDArray[Any]:
    # Repeated, because drawing them all would take longer than what is timed.
    return np.resize(generator.standard_normal(min(numbers, 4096), dtype=dtype.type), numbers)


def _packing(numbers: int, dtype: np.dtype[Any], generator: np.random.Generator) -> Action:
    source, out = _normal(numbers, dtype, generator), np.empty(numbers, dtype)
    return lambda: kernels.copy(source, out)


def _activation(name: str) -> Work:
    def make(numbers: int, dtype: np.dtype[Any], generator: np.random.Generator) -> Action:
        z, scratch = _normal(numbers, dtype, generator), np.empty(numbers, dtype)
        return lambda: kernels.activate(name, z, scratch)

    return make


def _gradient(name: str) -> Work:
    def make(numbers: int, dtype: np.dtype[Any], generator: np.random.Generator) -> Action:
        y, dy = _normal(numbers, dtype, generator), _normal(numbers, dtype, generator)
        out, scratch = np.empty_like(y), np.empty_like(y)
        return lambda: kernels.gradient_of_activation(name, y, dy, out, scratch)

    return make


def _medians(rounds: Sequence[list[LayerSeconds]]) -> list[LayerSeconds]:
    """Median of every pass of every layer over the rounds."""
    layers = zip(*rounds, strict=True)
    return [LayerSeconds(*(median(times) for times in zip(*layer, strict=True))) for layer in layers]


def _rounds(measure: Callable[[], Any], seconds: float) -> Iterator[Any]:
    """Results of one round after another, after one that does not count."""
    measure()
    least, most = ROUNDS
    start, done = perf_counter(), 0
    while done < least or (done < most and perf_counter() - start < seconds):
        yield measure()
        done += 1


def _seconds_of(action: Action) -> float:
    start = perf_counter()
    action()
    return perf_counter() - start


def _log_uniform(generator: np.random.Generator, low: int, high: int) -> int:
    return round(float(np.exp(generator.uniform(np.log(low), np.log(high)))))


_WORKS: Mapping[str, Work] = MappingProxyType(
    {
        "packing": _packing,
        **{f"forward {name}": _activation(name) for name in ACTIVATIONS if name != "identity"},
        **{f"gradient {name}": _gradient(name) for name in ACTIVATIONS if name != "identity"},
    }
)

ELEMENT_KINDS = tuple(_WORKS)
"""All element-wise work that is measured."""
