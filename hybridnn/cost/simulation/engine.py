"""A schedule run on a clock: every computation starts when its stage is free and what it needs has arrived.

Times are numbers or arrays: one figure per replica of the pipeline, or per candidate that shares the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hybridnn.cost.simulation.program import BARRIER, Program, compile_schedule
from hybridnn.pipeline.schedules.instructions import Instruction
from hybridnn.pipeline.schedules.message_flow import Message

__all__ = ["Costs", "Meet", "Program", "Run", "Seconds", "compile_schedule", "run"]

Seconds = float | NDArray[np.float64]
"""A time, or one per replica or candidate."""

Meet = Callable[[int, Instruction, NDArray[np.float64]], NDArray[np.float64]]
"""From (stage, computation, moments at which it could start) to when it starts."""


class Costs(Protocol):
    """What a schedule costs on a machine."""

    @property
    def hidden(self) -> float:
        """Fraction of a message's time that can pass before its receiver waits for it, from 0 to 1."""

    def duration(self, stage: int, instruction: Instruction) -> Seconds:
        """Time of a computation."""

    def message(self, message: Message) -> Seconds:
        """Time from the end of the computation that makes a message to its arrival."""

    def barrier_seconds(self) -> Seconds:
        """Time of a barrier, after its last stage has come."""


@dataclass(frozen=True)
class Run:
    """When the computations of a program run.

    All arrays have a row for each computation of `program`; where costs are arrays, a row has their shape.

    Attributes
    ----------
    program : Program
    starts, ends : NDArray of float64
    receiving : NDArray of float64
        Time directly before each start in which a message occupies the stage: what cannot be hidden.
    """

    program: Program
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


def run(program: Program, costs: Costs, meet: Meet | None = None) -> Run:
    """Run a program.

    A computation that needs a message made at time m, with transfer time t, starts at ``max(free + (1 - hidden) t, m +
    t)``, where ``free`` is the end of what its stage did before.

    Parameters
    ----------
    program : Program
    costs : Costs
        Numbers, or arrays of one shape.
    meet : callable, optional
        From (stage, computation, the moments at which replicas could start it) to when they do: who waits for whom.
        With it, all replicas meet at a barrier; without, what stands in different places of an array never meets.

    Returns
    -------
    Run
    """
    durations = [costs.duration(stage, one) for stage, one in zip(program.stages, program.computations, strict=True)]
    transfers = [0.0 if message is None else costs.message(message) for message in program.messages]
    barrier = costs.barrier_seconds() if BARRIER in program.order else 0.0
    shape = np.broadcast_shapes(*{getattr(seconds, "shape", ()) for seconds in (*durations, *transfers, barrier)})
    times = _Times(durations, transfers, barrier, 1.0 - costs.hidden)
    starts, ends = _times_of_arrays(program, times, shape, meet) if shape else _times_of_numbers(program, times)
    rows = [np.broadcast_to(transfer, shape) for transfer in transfers] if shape else transfers
    return Run(program, starts, ends, times.exposed * np.array(rows))


class _Times(NamedTuple):
    """Of each computation and of the message it needs; of a barrier; what of a message occupies its receiver."""

    durations: Sequence[Any]
    transfers: Sequence[Any]
    barrier: Any
    exposed: float


def _times_of_numbers(program: Program, times: _Times) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    durations, transfers, barrier, exposed = times
    stages, needs = program.stages, program.needs
    clocks = [0.0] * program.schedule.stages
    starts, ends = [0.0] * len(durations), [0.0] * len(durations)
    for place in program.order:
        if place == BARRIER:
            clocks = [max(clocks) + barrier] * len(clocks)
            continue
        stage, need = stages[place], needs[place]
        start = clocks[stage]
        if need >= 0:
            transfer = transfers[place]
            start, arrival = start + exposed * transfer, ends[need] + transfer
            if arrival > start:
                start = arrival
        starts[place] = start
        ends[place] = clocks[stage] = start + durations[place]
    return np.array(starts), np.array(ends)


def _times_of_arrays(
    program: Program, times: _Times, shape: tuple[int, ...], meet: Meet | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """As `_times_of_numbers`, which is the fast one, with all its numbers arrays."""
    durations, transfers, barrier, exposed = times
    clocks = np.zeros((program.schedule.stages, *shape))
    starts, ends = np.zeros((len(durations), *shape)), np.zeros((len(durations), *shape))
    for place in program.order:
        if place == BARRIER:
            clocks[:] = clocks.max(axis=0 if meet is None else None) + barrier
            continue
        stage, need, start = program.stages[place], program.needs[place], starts[place]
        start[...] = clocks[stage]
        if need >= 0:
            start += exposed * transfers[place]
            np.maximum(start, ends[need] + transfers[place], out=start)
        if meet is not None:
            start[...] = meet(stage, program.computations[place], start)
        clocks[stage] = ends[place] = start + durations[place]
    return starts, ends
