"""Results of trials of all kinds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["AnyTrial", "Outcome"]


class AnyTrial(Protocol):
    """A trial, drawn from the seed and the number."""

    @property
    def seed(self) -> int:
        """The seed of the drill."""
        ...

    @property
    def number(self) -> int:
        """Index in the drill."""
        ...

    @property
    def fault(self) -> str:
        """Name of the fault."""
        ...


@dataclass
class Outcome:
    """Result of a trial.

    Attributes
    ----------
    complaints : list of str
        Descriptions of all errors.
    injected : bool
        Whether the fault was injected before the run had ended.
    named : bool
        Whether every fault was reported.
    ended : bool
        Whether the training was completed, or the job ended as required.
    resumed : bool
        Whether the training resumed from a checkpoint.
    hung : bool
        Whether a job exceeded its time limit, or a process outlived its job.
    silent : bool
        Whether it continued without a required error.
    traceback : bool
        Whether a damaged file caused a traceback.
    lost : bool
        Whether the results differ from those of an undisturbed run.
    end_seconds : float
        Longest time from a fault until all processes had ended.
    """

    trial: AnyTrial
    complaints: list[str] = field(default_factory=list)
    injected: bool = False
    named: bool = True
    ended: bool = False
    resumed: bool = False
    hung: bool = False
    silent: bool = False
    traceback: bool = False
    lost: bool = True
    end_seconds: float = 0.0
