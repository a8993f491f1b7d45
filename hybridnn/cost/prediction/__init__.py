"""What a step of a layout costs on a machine, and the `Workload` that is predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from types import MappingProxyType

from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import SGD, Adam, Optimizer

UPDATE_RULES: Mapping[str, Optimizer] = MappingProxyType({"sgd": SGD(momentum=0.0), "momentum": SGD(), "adam": Adam()})
"""Update rules with coefficients of their own in machine files: one for each number of optimizer arrays."""


@dataclass(frozen=True)
class Workload:
    """A training run, independent of its layout."""

    model: MLP
    samples: int  # training samples of an epoch
    batch_size: int  # samples of a minibatch, over all ranks
    dtype: str = "float32"  # one of "float32", "float64"
    optimizer: Optimizer = field(default_factory=SGD)
    classification: bool = True  # whether targets are labels
    distribution: str = "local"  # how minibatches are distributed to the ranks; the last two only without a pipeline

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return 4 if self.dtype == "float32" else 8

    @property
    def target_bytes(self) -> int:
        """Bytes of the target of a sample."""
        return 8 if self.classification else self.model.sizes[-1] * self.itemsize

    @property
    def slots(self) -> int:
        """Arrays of the optimizer."""
        return len(self.optimizer.slot_names)

    @property
    def update_rule(self) -> str:
        """The key of `UPDATE_RULES` whose update costs as much."""
        return list(UPDATE_RULES)[min(self.slots, len(UPDATE_RULES) - 1)]

    @property
    def steps_per_epoch(self) -> int:
        """Minibatches of an epoch."""
        return ceil(self.samples / self.batch_size)
