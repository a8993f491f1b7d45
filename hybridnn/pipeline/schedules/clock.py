"""The clock of a schedule: when every computation runs, from the costs of computations, messages and barriers.

Times are numbers, or arrays with one element per replica of the pipeline or per candidate of a plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hybridnn.pipeline.schedules.compiled_schedule import BARRIER, CompiledSchedule, Meet
from hybridnn.pipeline.schedules.instructions import Instruction
from hybridnn.pipeline.schedules.schedule import Message

Seconds = float | NDArray[np.float64]  # a time, or one per replica or candidate


class InstructionCosts(Protocol):
    """Costs of the instructions of a schedule."""

    @property
    def hidden(self) -> float:
        """Fraction of a message's time that overlaps with the receiver's computation, from 0 to 1."""

    def duration(self, stage: int, instruction: Instruction) -> Seconds:
        """Time of a computation."""

    def message(self, message: Message) -> Seconds:
        """Time from the moment at which a message is sent to its arrival."""

    def link(self, message: Message) -> float:
        """Time in which a message occupies the link from its sender to its receiver: the next one waits for it."""

    def barrier_seconds(self) -> Seconds:
        """Time of a barrier, after its last stage has arrived."""


@dataclass(frozen=True)
class ScheduleTimes:
    """When the computations of a program run.

    The arrays have a row per computation; where costs are arrays, the rows have their shape. `receiving` is the time
    directly before the start of a computation in which a message occupies the stage, the part of it that is not hidden.
    """

    program: CompiledSchedule
    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    receiving: NDArray[np.float64]

    @property
    def makespan(self) -> Any:
        """End of the last computation, a number or an array."""
        return self.ends.max(axis=0)

    @property
    def waits(self) -> NDArray[np.float64]:
        """Time before each computation, and before its message is received, in which the stage waits.

        Barriers are part of it; the time after a stage's last computation is not.
        """
        before = np.zeros_like(self.ends)
        before[1:] = self.ends[:-1]
        before[list(self.program.offsets[:-1])] = 0.0
        waits: NDArray[np.float64] = self.starts - before - self.receiving
        return waits

    @property
    def busy(self) -> NDArray[np.float64]:
        """Per stage, the time in which it computes."""
        return self._per_stage(self.ends - self.starts)

    @property
    def communication(self) -> NDArray[np.float64]:
        """Per stage, the time in which messages occupy it."""
        return self._per_stage(self.receiving)

    @property
    def bubble(self) -> NDArray[np.float64]:
        """Per stage, the rest of the makespan."""
        bubble: NDArray[np.float64] = self.makespan - self.busy - self.communication
        return bubble

    @property
    def bubble_fraction(self) -> Any:
        """Share of the stages' time that is bubble; 0 if nothing takes time."""
        stages = self.program.schedule.stages
        return self.bubble.sum(axis=0) / np.maximum(stages * self.makespan, np.finfo(float).tiny)

    def _per_stage(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        stages = range(self.program.schedule.stages)
        return np.array([seconds[self.program.of(stage)].sum(axis=0) for stage in stages])


def run(program: CompiledSchedule, costs: InstructionCosts, meet: Meet | None = None) -> ScheduleTimes:
    """Time a compiled schedule: see `CompiledSchedule.times`, with ``exposed = 1 - hidden``.

    Parameters
    ----------
    costs : InstructionCosts
        Numbers, or arrays of one shape.
    meet : callable, optional
        Start times of a computation's replicas from the earliest ones possible. With it, all replicas meet at a
        barrier; without it, the elements of an array are independent.
    """
    durations: list[Any] = [
        costs.duration(stage, item) for stage, item in zip(program.stages, program.computations, strict=True)
    ]
    transfers: list[Any] = [0.0 if message is None else costs.message(message) for message in program.messages]
    links = [0.0 if message is None else costs.link(message) for message in program.messages]
    barrier: Any = costs.barrier_seconds() if BARRIER in program.order else 0.0
    exposed = 1.0 - costs.hidden
    shape = np.broadcast_shapes(*{getattr(seconds, "shape", ()) for seconds in (*durations, *transfers, barrier)})
    occupied = links if any(links) else None
    if shape:
        more: dict[str, Any] = {"zero": np.zeros(shape), "later": np.maximum, "meet": meet}
        times = program.times(durations, transfers, barrier, exposed, occupied, **more)
    else:
        times = program.times(durations, transfers, barrier, exposed, occupied)
    receiving = exposed * np.array([np.broadcast_to(transfer, shape) for transfer in transfers])
    return ScheduleTimes(program, np.array(times.starts), np.array(times.ends), receiving)
