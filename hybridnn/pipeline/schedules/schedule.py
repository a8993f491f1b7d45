"""A pipeline schedule: instructions of every stage, weights that they read, messages; and the method that defines it.

A schedule is built without MPI and never changed; the same object is linted, drawn, simulated, executed and traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from hybridnn.errors import HybridnnError
from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    InputGradient,
    Instruction,
    Load,
    Recompute,
    Update,
)
from hybridnn.pipeline.schedules.placements import LOOP, Placement


class ScheduleError(HybridnnError):
    """A schedule breaks a rule.

    Parameters
    ----------
    stage : int
        Stage whose list breaks the rule, from 0.
    position : int
        Index of the instruction in that list; the list's length where an instruction is missing.
    instruction : Instruction or None
        The instruction there; None at the end of the list.
    reason : str
        The rule and how it is broken.
    """

    def __init__(self, stage: int, position: int, instruction: Instruction | None, reason: str) -> None:
        where = "end of the list" if instruction is None else f"instruction {position} ({instruction})"
        super().__init__(f"stage {stage}, {where}: {reason}")
        self.stage = stage
        self.position = position
        self.instruction = instruction
        self.reason = reason


class WeightRead(NamedTuple):
    """Weights that a pass reads."""

    version: int  # number of updates before it
    # Updates predicted beyond that version: s in Chen et al. 2018, equation 4. Negative: estimated so many back.
    ahead: int = 0


Rule = Callable[[int, int, int], WeightRead]  # from (stage, stages, minibatch) to the weights


@dataclass(frozen=True)
class WeightPolicy:
    """A rule for each pass, and the number of versions that it stores; a recomputation reads as the backward pass."""

    name: str
    forward: Rule
    backward: Rule
    # From (stage, stages) to the most weight versions a stage holds at a time, the current one included.
    versions: Callable[[int, int], int]

    def mean_staleness(self, stage: int, stages: int, minibatches: int) -> float:
        """Mean over so many minibatches: updates from the version that a forward pass reads to the own update."""
        return sum(t - self.forward(stage, stages, t).version for t in range(minibatches)) / minibatches


def newest(stage: int, stages: int, minibatch: int) -> WeightRead:
    """The newest version."""
    return WeightRead(minibatch)


def one_version(stage: int, stages: int) -> int:
    """The current version alone."""
    return 1


EXACT = WeightPolicy("exact", newest, newest, one_version)
"""All passes read the current weights: every minibatch is complete before the next begins."""

INITIAL = WeightPolicy(
    "initial", lambda stage, stages, t: WeightRead(0), lambda stage, stages, t: WeightRead(0), one_version
)
"""All passes read version 0: evaluation."""


READS_BACKWARD_WEIGHTS = (Backward, InputGradient, Recompute)


@dataclass(frozen=True)
class Schedule:
    """Instructions of every stage."""

    method: str  # name of the method, for display
    stages: int  # ranks along the pipeline, K
    chunks: int  # chunks of every stage, v
    minibatches: int  # minibatches until the pipeline is empty, T
    microbatches: int  # microbatches of a minibatch, M
    policy: WeightPolicy
    orders: tuple[tuple[Instruction, ...], ...]  # one list per stage
    activation_bound: tuple[int, ...]  # per stage, the most microbatches whose activations it may hold at a time
    placement: Placement = LOOP

    def is_first(self, stage: int, chunk: int) -> bool:
        """Whether a chunk begins with the network's first layer."""
        return self.placement.virtual(stage, chunk, self.stages) == 0

    def is_last(self, stage: int, chunk: int) -> bool:
        """Whether a chunk ends with the network's last layer."""
        return self.placement.virtual(stage, chunk, self.stages) == self.stages * self.chunks - 1

    def loads(self, stage: int, chunk: int) -> bool:
        """Whether a chunk loads samples: the inputs, the targets, or both."""
        return self.is_first(stage, chunk) or self.is_last(stage, chunk)

    def before(self, stage: int, chunk: int) -> tuple[int, int]:
        """Stage and chunk of the previous virtual stage; not for the first."""
        return self.placement.at(self.placement.virtual(stage, chunk, self.stages) - 1, self.stages)

    def after(self, stage: int, chunk: int) -> tuple[int, int]:
        """Stage and chunk of the next virtual stage; not for the last."""
        return self.placement.at(self.placement.virtual(stage, chunk, self.stages) + 1, self.stages)

    def receives(self, stage: int, chunk: int) -> bool:
        """Whether a chunk receives its input from another stage; else the chunk before on its stage hands it over."""
        return not self.is_first(stage, chunk) and self.before(stage, chunk)[0] != stage

    def sends(self, stage: int, chunk: int) -> bool:
        """Whether a chunk sends its output to another stage."""
        return not self.is_last(stage, chunk) and self.after(stage, chunk)[0] != stage

    def weights_read(self, stage: int, instruction: Instruction) -> WeightRead | None:
        """Weights that an instruction reads; None if it reads none.

        Predictions aim at most at the version before the last update: no more updates follow.
        """
        if isinstance(instruction, Forward):
            read = self.policy.forward(stage, self.stages, instruction.minibatch)
        elif isinstance(instruction, READS_BACKWARD_WEIGHTS):
            read = self.policy.backward(stage, self.stages, instruction.minibatch)
        else:
            return None
        return WeightRead(read.version, min(read.ahead, self.minibatches - 1 - read.version)) if read.ahead else read

    def versions(self, stage: int) -> Iterator[tuple[int, Instruction, int, WeightRead | None]]:
        """Each position of a stage: its instruction, the number of updates before it, and the weights that it reads."""
        updates = 0
        for position, instruction in enumerate(self.orders[stage]):
            yield position, instruction, updates, self.weights_read(stage, instruction)
            updates += isinstance(instruction, Update)

    def error(self, stage: int, position: int, reason: str) -> ScheduleError:
        """The error at a position of a stage's list, which may be its end."""
        order = self.orders[stage]
        return ScheduleError(stage, position, order[position] if position < len(order) else None, reason)


def with_loads(schedule: Schedule) -> Schedule:
    """Add loads to a schedule without any, directly before the forward passes that use them."""

    def loaded(stage: int, order: tuple[Instruction, ...]) -> Iterator[Instruction]:
        for instruction in order:
            if isinstance(instruction, Forward) and schedule.loads(stage, instruction.chunk):
                yield Load(*instruction.part)
            yield instruction

    orders = tuple(tuple(loaded(stage, order)) for stage, order in enumerate(schedule.orders))
    return replace(schedule, orders=orders)


# -- methods -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScheduleSize:
    """Size of a schedule: K, T, M and v; whether ``ddg`` and ``fr`` have barriers; where chunks are, and the order."""

    stages: int
    minibatches: int
    microbatches: int = 1
    chunks: int = 1
    barriers: bool = False
    placement: Placement = LOOP
    order: tuple[str, ...] = ()  # a word per stage: see `hybridnn.pipeline.schedules.computation_orders.in_word`


Order = Callable[[ScheduleSize, int], list[Instruction]]  # from (size, stage) to the stage's computations

ActivationBound = Callable[[ScheduleSize, int], int]
"""From (size, stage) to the most microbatches whose activations the stage holds at a time."""


@dataclass(frozen=True)
class Method:
    """A pipeline method."""

    name: str
    summary: str  # one line for display
    order: Order
    policy: WeightPolicy
    activations: ActivationBound
    cuts_minibatches: bool = False  # splits minibatches into microbatches
    chunks: range = range(1, 2)  # numbers of chunks that a stage may have, the first by default
    placement: Placement = LOOP
    microbatches_per_stage: int = 0  # times the stages: the fewest microbatches of a minibatch
    whole_groups: bool = False  # the number of microbatches is a multiple of that of the stages
    placed_weight_gradients: bool = False  # the order itself places the weight gradients
    placed_messages: bool = False  # the order itself places loads and messages
    may_have_barriers: bool = False  # the order places barriers if its size asks for them
    updates_alone: bool = False  # a stage updates after its own last weight gradient, whatever the others do
    recomputes: bool = False  # every stage but the last computes its forward passes twice
    ordered: bool = False  # the order is that of the size, which may be searched for given times

    @property
    def exact(self) -> bool:
        """Whether every minibatch is complete before the next one begins."""
        return self.policy is EXACT

    @property
    def drains(self) -> bool:
        """Whether the pipeline is empty between minibatches: no stage begins the next one before all have updated."""
        return self.exact and not self.updates_alone

    def can_cut(self, microbatches: int, stages: int) -> bool:
        """Whether a minibatch may have so many microbatches; on one stage any number."""
        if not self.cuts_minibatches:
            return microbatches == 1
        least = self.microbatches_per_stage * stages if stages > 1 else 1
        return microbatches >= least and not (self.whole_groups and microbatches % stages)

    @cached_property
    def predicts(self) -> bool:
        """Whether it reads predicted weights, which needs an optimizer with momentum."""
        stages = 4
        points = [(stage, stages, minibatch) for stage in range(stages) for minibatch in range(2 * stages)]
        return any(read(*point).ahead for read in (self.policy.forward, self.policy.backward) for point in points)
