"""Staleness audit of a schedule: the weight versions that every gradient is computed with and applied to."""

from __future__ import annotations

from dataclasses import dataclass

from hybridnn.pipeline.schedules.instructions import Backward, Forward, InputGradient, Update
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.pipeline.schedules.weight_policies import WeightRead


@dataclass(frozen=True)
class StalenessRow:
    """Weights of one minibatch on one stage; its gradient is applied to the version `applied_at`."""

    stage: int
    minibatch: int
    forward: WeightRead
    backward: WeightRead
    applied_at: int

    @property
    def staleness(self) -> int:
        """Updates between the version of the forward pass and the one that the gradient is applied to."""
        return self.applied_at - self.forward.version

    @property
    def consistent(self) -> bool:
        """Whether both passes read, or predict, the same version."""
        return sum(self.forward) == sum(self.backward)


def audit(schedule: Schedule) -> tuple[StalenessRow, ...]:
    """List the weights that every minibatch reads on every stage of a schedule, which must pass the linter.

    The rows are in the order of the updates, stage by stage; without updates there are none.
    """
    return tuple(row for stage in range(schedule.stages) for row in _rows(schedule, stage))


def _rows(schedule: Schedule, stage: int) -> list[StalenessRow]:
    forward: dict[int, WeightRead] = {}
    backward: dict[int, WeightRead] = {}
    rows: list[StalenessRow] = []
    for instruction in schedule.orders[stage]:
        read = schedule.weights_read(stage, instruction)
        t = instruction.minibatch
        if read is not None and isinstance(instruction, Forward):
            forward[t] = read
        elif read is not None and isinstance(instruction, Backward | InputGradient):
            backward[t] = read
        elif isinstance(instruction, Update):
            rows.append(StalenessRow(stage, t, forward[t], backward[t], len(rows)))
    return rows
