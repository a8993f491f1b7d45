"""Costs of computing on a rank: passes of a layer by its shape, element-wise work by its size."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import fsum, log
from typing import Any, Literal

from pydantic import BaseModel, Field

from hybridnn.utils.checks import AtLeastZero, Count
from hybridnn.utils.settings_models import Section


class PassCost(Section):
    """One kind of pass through a dense layer without its activation: a matrix product, and the bias.

    The product of an (m, k) with a (k, n) matrix takes time per multiply-add, per element read and written (outputs,
    inputs and weights), and per call; the last two make small shapes slow. The uncached seconds are added for layers
    whose weights do not fit the cache.
    """

    call_seconds: AtLeastZero = 0.0
    output_seconds: AtLeastZero = 0.0
    input_seconds: AtLeastZero = 0.0
    weight_seconds: AtLeastZero = 0.0
    uncached_weight_seconds: AtLeastZero = 0.0
    multiply_add_seconds: AtLeastZero

    def seconds(self, outputs: int, inputs: int, samples: int, *, cached: bool) -> float:
        """Seconds of a pass."""
        weights = outputs * inputs
        per_weight = self.weight_seconds if cached else self.weight_seconds + self.uncached_weight_seconds
        return (
            self.call_seconds
            + samples * (self.output_seconds * outputs + self.input_seconds * inputs)
            + weights * per_weight
            + weights * samples * self.multiply_add_seconds
        )


class ElementCost(Section):
    """Element-wise work, per call and element; the uncached seconds are added for arrays that do not fit the cache."""

    call_seconds: AtLeastZero = 0.0
    number_seconds: AtLeastZero
    uncached_number_seconds: AtLeastZero = 0.0

    def seconds(self, elements: float, *, cached: bool = True) -> float:
        """Seconds of a call."""
        per_element = self.number_seconds if cached else self.number_seconds + self.uncached_number_seconds
        return self.call_seconds + elements * per_element


class ActivationCost(Section):
    """An activation function on the outputs of a layer, forward and backward."""

    forward: ElementCost
    gradient: ElementCost


class Compute(Section):
    """Costs of computing in one precision, with a number of busy ranks on a node.

    Attributes
    ----------
    dtype : {"float32", "float64"}
    busy_ranks : int
        Ranks of a node that computed at the same time in the measurement; they share caches and memory bandwidth.
    cache_bytes : float
        Arrays of at least this size do not fit the cache.
    forward, input_gradient, weight_gradient : PassCost
        Of a layer.
    activations : dict
        By name; a missing one costs what the most expensive does, and ``identity`` nothing.
    losses : dict
        Per element of the network's outputs, for ``mse`` and ``cross_entropy``; a missing one costs what the most
        expensive does.
    load : ElementCost
        Per element of the samples that are gathered.
    packing : ElementCost
        Per element that is copied to or from a message, or added to another.
    updates : dict
        Per parameter, for the optimizers ``sgd``, ``momentum`` and ``adam``; a missing one costs what the most
        expensive does.
    instruction_seconds : float
        Python around an instruction of a schedule.
    step_seconds : float
        Python around a step.
    noise : float
        Mean delay of a computation by other activity of the node, relative to its median; the other entries are
        medians. See `pace`.
    """

    dtype: Literal["float32", "float64"]
    busy_ranks: Count = 1
    cache_bytes: AtLeastZero = 1e6
    forward: PassCost
    input_gradient: PassCost
    weight_gradient: PassCost
    activations: dict[str, ActivationCost] = Field(min_length=1)
    losses: dict[str, ElementCost] = Field(min_length=1)
    load: ElementCost
    packing: ElementCost
    updates: dict[str, ElementCost] = Field(min_length=1)
    instruction_seconds: AtLeastZero = 0.0
    step_seconds: AtLeastZero = 0.0
    noise: AtLeastZero = 0.0

    def activation(self, name: str) -> ActivationCost:
        """Cost of an activation function."""
        if name == "identity":
            free = ElementCost(number_seconds=0.0)
            return ActivationCost(forward=free, gradient=free)
        return self.activations.get(name) or max(
            self.activations.values(), key=lambda cost: cost.forward.number_seconds + cost.gradient.number_seconds
        )

    def loss(self, classification: bool) -> ElementCost:
        """Cost of the loss and its gradient."""
        return _named(self.losses, "cross_entropy" if classification else "mse")

    def update(self, optimizer: str) -> ElementCost:
        """Cost of an optimizer's update."""
        return _named(self.updates, optimizer)

    def scaled(self, factor: float, *, calls: bool = True) -> Compute:
        """All costs times `factor`, those of Python and of calls only with `calls`."""
        fixed = {"cache_bytes", "noise"}
        if not calls:
            fixed |= {"call_seconds", "instruction_seconds", "step_seconds"}

        def scale(value: Any) -> Any:
            if isinstance(value, BaseModel):
                return value.model_copy(update={name: scale(item) for name, item in value if name not in fixed})
            if isinstance(value, dict):
                return {key: scale(item) for key, item in value.items()}
            return value * factor if isinstance(value, float) else value

        return self.model_copy(update={name: scale(value) for name, value in self if name not in fixed})

    def pace(self, ranks: int) -> float:
        """Mean time until the last of `ranks` has finished a computation, relative to its median.

        Ranks that wait for each other run at the pace of the slowest (Petrini, Kerbyson and Pakin 2003). Delays are
        taken as exponential: the largest of P has mean H_P = 1 + 1/2 + … + 1/P, in mean delays; the median is ln 2.
        """
        return 1.0 + self.noise * (_harmonic(ranks) - log(2.0))

    def in_other_precision(self) -> Compute:
        """Estimate of the other precision: work on elements scales with their size, calls do not."""
        if self.dtype == "float32":
            return self.scaled(2.0, calls=False).model_copy(update={"dtype": "float64"})
        return self.scaled(0.5, calls=False).model_copy(update={"dtype": "float32"})


@lru_cache
def _harmonic(count: int) -> float:
    return fsum(1.0 / number for number in range(1, count + 1))


def _named(costs: Mapping[str, ElementCost], name: str) -> ElementCost:
    """The cost of that name, or the most expensive."""
    return costs.get(name) or max(costs.values(), key=lambda cost: cost.number_seconds)
