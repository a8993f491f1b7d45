"""What became of a trial, whatever it tried."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["AnyTrial", "Outcome"]


class AnyTrial(Protocol):
    """What is to happen, all of it drawn from the seed and the number."""

    @property
    def seed(self) -> int:
        """The seed of the drill."""
        ...

    @property
    def number(self) -> int:
        """Its place in the drill."""
        ...

    @property
    def fault(self) -> str:
        """The fault that is tried."""
        ...


@dataclass
class Outcome:
    """What became of a trial.

    Attributes
    ----------
    trial : AnyTrial
    complaints : list of str
        What is wrong.
    struck : bool
        Whether its fault came before the run had ended.
    named : bool
        Whether every fault was told of.
    ended : bool
        Whether it came to its due end: of a training the end of its last epoch, of a job that must be ended its end.
    resumed : bool
        Whether the training went on from a checkpoint.
    hung : bool
        Whether something had to be ended at the limit, or outlived its job.
    silent : bool
        Whether it went on without a word where it should have refused.
    traceback : bool
        Whether damage to a file was answered with a traceback.
    lost : bool
        Whether the result is not that of an undisturbed run.
    end_seconds : float
        From the strike until all processes were gone, at most.
    """

    trial: AnyTrial
    complaints: list[str] = field(default_factory=list)
    struck: bool = False
    named: bool = True
    ended: bool = False
    resumed: bool = False
    hung: bool = False
    silent: bool = False
    traceback: bool = False
    lost: bool = True
    end_seconds: float = 0.0
