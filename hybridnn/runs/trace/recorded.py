"""Recorded events of a run, by epoch: the input of the breakdown and of the drawing of a measured run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hybridnn.comm.recorder import Event
from hybridnn.pipeline.execution.routes import StagePosition
from hybridnn.pipeline.schedules.instructions import Instruction

TRAINING = "training"
"""Name of the phase of an epoch's training."""


@dataclass(frozen=True)
class RankTrace:
    """Events of one rank, of a run or of a phase of it.

    Attributes
    ----------
    position : StagePosition
    events : tuple of Event
        By start, an event before those nested in it.
    """

    position: StagePosition
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Epoch:
    """The training of an epoch, without its evaluation.

    Attributes
    ----------
    number : int
        From 1.
    method : str
        Name of the pipeline method, for display.
    stages : tuple of (int, int)
        Batch and model ranks of every stage.
    ranks : tuple of RankTrace
        Instructions and communication, by rank.
    spans : tuple of (float, float)
        Start and end of the training on each rank, seconds; where events were dropped, start of the rest.
    is_complete : bool
        Whether no events were dropped.
    """

    number: int
    method: str
    stages: tuple[tuple[int, int], ...]
    ranks: tuple[RankTrace, ...]
    spans: tuple[tuple[float, float], ...]
    is_complete: bool = True

    @property
    def start(self) -> float:
        """Start on the first rank."""
        return min(start for start, _ in self.spans)

    @property
    def stop(self) -> float:
        """End on the last rank."""
        return max(stop for _, stop in self.spans)

    @cached_property
    def computed(self) -> tuple[tuple[Event, Instruction], ...]:
        """Computations of all ranks, with their instructions."""
        return tuple(
            (event, event.about)
            for trace in self.ranks
            for event in trace.events
            if event.kind == "compute" and isinstance(event.about, Instruction)
        )

    @cached_property
    def minibatches(self) -> range:
        """Numbers of the minibatches that were computed."""
        numbers = [about.minibatch for _, about in self.computed]
        return range(min(numbers), max(numbers) + 1) if numbers else range(0)

    @cached_property
    def microbatches(self) -> int:
        """Microbatches of a minibatch."""
        return 1 + max((about.microbatch for _, about in self.computed), default=0)

    @cached_property
    def chunks(self) -> int:
        """Chunks of every rank."""
        return 1 + max((about.chunk for _, about in self.computed), default=0)


@dataclass(frozen=True)
class Trace:
    """Events of all ranks of a run.

    Attributes
    ----------
    method : str
        Name of the pipeline method, for display; may be empty.
    stages : tuple of (int, int)
        Batch and model ranks of every stage.
    ranks : tuple of RankTrace
        By rank; times in seconds of one clock.
    complete_since : float
        Time before which events of some rank may have been dropped.
    """

    method: str
    stages: tuple[tuple[int, int], ...]
    ranks: tuple[RankTrace, ...]
    complete_since: float = 0.0

    @cached_property
    def epochs(self) -> tuple[int, ...]:
        """Numbers of the epochs of which every rank has something."""
        phases = [self._phases(trace) for trace in self.ranks]
        common = set.intersection(*(set(own) for own in phases)) if phases else set()
        return tuple(sorted(n for n in common if all(own[n].stop > self.complete_since for own in phases)))

    def epoch(self, number: int) -> Epoch:
        """Events of the training of one of the `epochs`."""
        phases = [self._phases(trace)[number] for trace in self.ranks]
        spans = tuple((max(phase.start, self.complete_since), phase.stop) for phase in phases)
        ranks = tuple(_within(trace, *span) for trace, span in zip(self.ranks, spans, strict=True))
        is_complete = all(phase.start >= self.complete_since for phase in phases)
        return Epoch(number, self.method, self.stages, ranks, spans, is_complete)

    @staticmethod
    def _phases(trace: RankTrace) -> dict[int, Event]:
        """Phases of training by number of the epoch."""
        phases = (event for event in trace.events if event.kind == "phase" and event.name == TRAINING)
        return {phase.about: phase for phase in phases if isinstance(phase.about, int)}


def positions_of(stages: Sequence[tuple[int, int]]) -> tuple[StagePosition, ...]:
    """Positions of all ranks, which vary fastest along model, then batch, then pipeline.

    Parameters
    ----------
    stages : sequence of (int, int)
        Batch and model ranks of every stage.
    """
    return tuple(
        StagePosition(stage, batch_rank, model_rank)
        for stage, (batch, model) in enumerate(stages)
        for batch_rank in range(batch)
        for model_rank in range(model)
    )


def _within(trace: RankTrace, start: float, stop: float) -> RankTrace:
    """The events of a rank in a span, without phases."""
    events = (event for event in trace.events if event.kind != "phase")
    return RankTrace(trace.position, tuple(event for event in events if start <= event.start and event.stop <= stop))
