"""What the ranks of a run recorded, by epoch: what the breakdown and the drawing of a measured run are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hybridnn.comm.recorder import Event
from hybridnn.pipeline.execution.routes import StagePosition
from hybridnn.pipeline.schedules.instructions import Instruction

TRAINING = "training"
"""Name of the phase that holds an epoch's training."""


@dataclass(frozen=True)
class RankTrace:
    """What one rank recorded, of a run or within a phase of it.

    Attributes
    ----------
    position : StagePosition
        Of the rank.
    events : tuple of Event
        By beginning, an event before those within it.
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
        Name of the pipeline method, for people.
    stages : tuple of (int, int)
        Batch and model ranks of every stage.
    ranks : tuple of RankTrace
        By rank: instructions and communication.
    spans : tuple of (float, float)
        When each rank began and ended the training, seconds; where it is not whole, when what is left of it begins.
    is_complete : bool
        Whether nothing of it was dropped.
    """

    number: int
    method: str
    stages: tuple[tuple[int, int], ...]
    ranks: tuple[RankTrace, ...]
    spans: tuple[tuple[float, float], ...]
    is_complete: bool = True

    @property
    def start(self) -> float:
        """When the first rank began."""
        return min(start for start, _ in self.spans)

    @property
    def stop(self) -> float:
        """When the last rank ended."""
        return max(stop for _, stop in self.spans)

    @cached_property
    def computed(self) -> tuple[tuple[Event, Instruction], ...]:
        """Computations of all ranks and their instructions."""
        return tuple(
            (event, event.about)
            for lane in self.ranks
            for event in lane.events
            if event.kind == "compute" and isinstance(event.about, Instruction)
        )

    @cached_property
    def minibatches(self) -> range:
        """Numbers of the minibatches that were computed."""
        numbers = [about.minibatch for _, about in self.computed]
        return range(min(numbers), max(numbers) + 1) if numbers else range(0)

    @cached_property
    def microbatches(self) -> int:
        """Parts of a minibatch."""
        return 1 + max((about.microbatch for _, about in self.computed), default=0)

    @cached_property
    def chunks(self) -> int:
        """Parts of the layers on every rank."""
        return 1 + max((about.chunk for _, about in self.computed), default=0)


@dataclass(frozen=True)
class Trace:
    """What all ranks of a run recorded.

    Attributes
    ----------
    method : str
        Name of the pipeline method, for people; may be empty.
    stages : tuple of (int, int)
        Batch and model ranks of every stage.
    ranks : tuple of RankTrace
        By rank; times in seconds, of one clock.
    complete_since : float
        Before this moment some rank's events may have been dropped.
    """

    method: str
    stages: tuple[tuple[int, int], ...]
    ranks: tuple[RankTrace, ...]
    complete_since: float = 0.0

    @cached_property
    def epochs(self) -> tuple[int, ...]:
        """Numbers of the epochs of which every rank has something."""
        phases = [self._phases(lane) for lane in self.ranks]
        common = set.intersection(*(set(own) for own in phases)) if phases else set()
        return tuple(sorted(n for n in common if all(own[n].stop > self.complete_since for own in phases)))

    def epoch(self, number: int) -> Epoch:
        """What was recorded during the training of one of the `epochs`."""
        phases = [self._phases(lane)[number] for lane in self.ranks]
        spans = tuple((max(phase.start, self.complete_since), phase.stop) for phase in phases)
        lanes = tuple(_within(lane, *span) for lane, span in zip(self.ranks, spans, strict=True))
        whole = all(phase.start >= self.complete_since for phase in phases)
        return Epoch(number, self.method, self.stages, lanes, spans, whole)

    @staticmethod
    def _phases(lane: RankTrace) -> dict[int, Event]:
        """Phases of training by number of the epoch."""
        phases = (event for event in lane.events if event.kind == "phase" and event.name == TRAINING)
        return {phase.about: phase for phase in phases if isinstance(phase.about, int)}


def places_of(stages: Sequence[tuple[int, int]]) -> tuple[StagePosition, ...]:
    """Where every rank stands: ranks vary fastest along model, then batch, then pipeline.

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


def _within(lane: RankTrace, start: float, stop: float) -> RankTrace:
    """The events of a rank between two moments, without phases."""
    events = (event for event in lane.events if event.kind != "phase")
    return RankTrace(lane.position, tuple(event for event in events if start <= event.start and event.stop <= stop))
