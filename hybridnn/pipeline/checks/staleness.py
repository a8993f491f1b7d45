"""How old the weights are that each gradient was computed with: the audit of a schedule."""

from __future__ import annotations

from dataclasses import dataclass

from hybridnn.pipeline.schedules.instructions import Backward, Forward, InputGradient, Update
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.pipeline.schedules.weight_policies import WeightRead


@dataclass(frozen=True)
class StalenessRow:
    """Weights of one minibatch at one stage.

    Attributes
    ----------
    stage, minibatch : int
    forward, backward : WeightRead
        Weights that its passes read.
    applied_at : int
        Version to which its gradient is applied.
    """

    stage: int
    minibatch: int
    forward: WeightRead
    backward: WeightRead
    applied_at: int

    @property
    def staleness(self) -> int:
        """Updates between the version that its forward pass read and the one its gradient is applied to."""
        return self.applied_at - self.forward.version

    @property
    def consistent(self) -> bool:
        """Whether both passes use, or predict, the same version."""
        return sum(self.forward) == sum(self.backward)


def audit(schedule: Schedule) -> tuple[StalenessRow, ...]:
    """List the weights of every minibatch at every stage, as its instructions read them.

    Parameters
    ----------
    schedule : Schedule
        Must pass the linter.

    Returns
    -------
    tuple of StalenessRow
        Stage by stage, in the order of the updates; empty for a schedule that updates nothing.
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
