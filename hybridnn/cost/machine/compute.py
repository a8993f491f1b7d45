"""What computing costs on a rank: passes of a layer by its shape, element-wise work by its size."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import fsum, log
from typing import Literal, TypeVar

from pydantic import Field

from hybridnn.utils.settings_models import AtLeastZero, Count, Section

Cost = TypeVar("Cost", bound="_Linear")


class _Linear(Section):
    """Seconds for numbers of several kinds."""

    def scaled(self: Cost, factor: float, *, calls: bool = True) -> Cost:
        """Every cost times `factor`, that of a call only where `calls`."""
        changed = {name: value * factor for name, value in self.model_dump().items() if calls or name != "call_seconds"}
        return self.model_copy(update=changed)


class PassCost(_Linear):
    """One kind of pass through one dense layer, without its activation: a product, and the bias.

    A product of an (m, k) with a (k, n) matrix takes time for every multiply-add, for every number read and written,
    and for the call: small shapes are slow because the last three do not shrink with the first.

    Attributes
    ----------
    call_seconds : float
    output_seconds, input_seconds : float
        Per number of the layer's outputs, samples times outputs, and of its inputs.
    weight_seconds : float
        Per weight.
    uncached_weight_seconds : float
        Added per weight of a layer whose weights do not fit the cache.
    multiply_add_seconds : float
        Per sample, input and output.
    """

    call_seconds: AtLeastZero = 0.0
    output_seconds: AtLeastZero = 0.0
    input_seconds: AtLeastZero = 0.0
    weight_seconds: AtLeastZero = 0.0
    uncached_weight_seconds: AtLeastZero = 0.0
    multiply_add_seconds: AtLeastZero

    def seconds(self, outputs: int, inputs: int, samples: int, *, cached: bool) -> float:
        """Time of a pass."""
        weights = outputs * inputs
        per_weight = self.weight_seconds if cached else self.weight_seconds + self.uncached_weight_seconds
        return (
            self.call_seconds
            + samples * (self.output_seconds * outputs + self.input_seconds * inputs)
            + weights * per_weight
            + weights * samples * self.multiply_add_seconds
        )


class ElementCost(_Linear):
    """Element-wise work.

    Attributes
    ----------
    call_seconds : float
    number_seconds : float
        Per number.
    uncached_number_seconds : float
        Added per number where the arrays do not fit the cache.
    """

    call_seconds: AtLeastZero = 0.0
    number_seconds: AtLeastZero
    uncached_number_seconds: AtLeastZero = 0.0

    def seconds(self, numbers: float, *, cached: bool = True) -> float:
        """Time for so many numbers."""
        per_number = self.number_seconds if cached else self.number_seconds + self.uncached_number_seconds
        return self.call_seconds + numbers * per_number


class ActivationCost(Section):
    """An activation function on the outputs of a layer, forward and backward."""

    forward: ElementCost
    gradient: ElementCost


class Compute(Section):
    """Costs of computing in one precision, with so many ranks of a node busy.

    Attributes
    ----------
    dtype : {"float32", "float64"}
    busy_ranks : int
        Ranks of a node that computed at the same time when this was measured; they share caches and memory.
    cache_bytes : float
        Arrays of at least this size count as not cached.
    forward, input_gradient, weight_gradient : PassCost
        Of a layer.
    activations : dict
        By name; one that is not there costs what the dearest does, and ``identity`` nothing.
    losses : dict
        Per number of the network's outputs, by loss: ``mse``, ``cross_entropy``; one that is not there costs what the
        dearest does.
    load : ElementCost
        Per number of the samples that are gathered.
    packing : ElementCost
        Per number that is copied to or from a message, or added to another.
    updates : dict
        Per parameter, by optimizer: ``sgd``, ``momentum``, ``adam``; one that is not there costs what the dearest does.
    instruction_seconds : float
        Python around an instruction of a schedule.
    step_seconds : float
        Python around a step.
    noise : float
        Mean delay of a computation by whatever else the node does, relative to the computation; the other entries are
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
            nothing = ElementCost(number_seconds=0.0)
            return ActivationCost(forward=nothing, gradient=nothing)
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
        """Every cost times `factor`, those of Python and of calls only where `calls`."""

        def scale(value: object) -> object:
            if isinstance(value, _Linear):
                return value.scaled(factor, calls=calls)
            if isinstance(value, ActivationCost):
                return ActivationCost(
                    forward=value.forward.scaled(factor, calls=calls),
                    gradient=value.gradient.scaled(factor, calls=calls),
                )
            if isinstance(value, dict):
                return {key: scale(item) for key, item in value.items()}
            return value * factor if isinstance(value, float) else value

        fixed = {"cache_bytes", "noise"} | (set() if calls else {"instruction_seconds", "step_seconds"})
        return self.model_copy(update={name: scale(value) for name, value in self if name not in fixed})

    def pace(self, ranks: int) -> float:
        """How many times the median a computation takes, on average, until the last of so many ranks is through.

        Ranks that meet go at the pace of the last (Petrini, Kerbyson, Pakin 2003). Delays are taken as exponential: the
        largest of P is H_P = 1 + 1/2 + … + 1/P mean delays, their median ln 2 of one.
        """
        return 1.0 + self.noise * (_harmonic(ranks) - log(2.0))

    def in_other_precision(self) -> Compute:
        """The other precision where only one is known: numbers twice as long take twice as long, calls do not."""
        if self.dtype == "float32":
            return self.scaled(2.0, calls=False).model_copy(update={"dtype": "float64"})
        return self.scaled(0.5, calls=False).model_copy(update={"dtype": "float32"})


@lru_cache
def _harmonic(count: int) -> float:
    return fsum(1.0 / number for number in range(1, count + 1))


def _named(costs: Mapping[str, ElementCost], name: str) -> ElementCost:
    """The cost of that name, else the dearest."""
    return costs.get(name) or max(costs.values(), key=lambda cost: cost.number_seconds)
