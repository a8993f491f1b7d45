"""Results of trials of all kinds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["AnyTrial", "Outcome"]


class AnyTrial(Protocol):
    """A trial of a fault, drawn from the seed of the drill and its number in the drill."""

    @property
    def seed(self) -> int: ...

    @property
    def number(self) -> int: ...

    @property
    def fault(self) -> str: ...


@dataclass
class Outcome:
    """Result of a trial."""

    trial: AnyTrial
    complaints: list[str] = field(default_factory=list)  # descriptions of all errors
    injected: bool = False  # whether the fault was injected before the run had ended
    named: bool = True  # whether every fault was reported
    ended: bool = False  # whether the training was completed, or the job ended as required
    resumed: bool = False  # whether the training resumed from a checkpoint
    hung: bool = False  # whether a job exceeded its time limit, or a process outlived its job
    silent: bool = False  # whether it continued without a required error
    lost: bool = True  # whether the results differ from those of an undisturbed run
    end_seconds: float = 0.0  # longest time from a fault until all processes had ended
