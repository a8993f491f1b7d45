"""Breakdown of time: where the seconds of a step go."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """Seconds of an instruction, a stage or a step, by activity.

    Attributes
    ----------
    computing : float
        Passes, loss and update.
    communication : float
        Exposed communication: the messages and collectives that the rank waits for.
    bubble : float
        Waiting for other stages.
    overhead : float
        Loading samples, copying messages, and Python between instructions. Simulations count it as computing.
    communication_hidden : float
        Communication during computation; not part of the total.
    """

    computing: float = 0.0
    communication: float = 0.0
    bubble: float = 0.0
    overhead: float = 0.0
    communication_hidden: float = 0.0

    @property
    def total(self) -> float:
        """Elapsed time: the sum of `parts`."""
        return self.computing + self.communication + self.overhead + self.bubble

    @property
    def parts(self) -> dict[str, float]:
        """The activities that add up to the total, by name."""
        return {
            "computing": self.computing,
            "communication": self.communication,
            "bubble": self.bubble,
            "overhead": self.overhead,
        }

    def __add__(self, other: TimeBreakdown) -> TimeBreakdown:
        return TimeBreakdown(
            self.computing + other.computing,
            self.communication + other.communication,
            self.bubble + other.bubble,
            self.overhead + other.overhead,
            self.communication_hidden + other.communication_hidden,
        )

    def __mul__(self, factor: float) -> TimeBreakdown:
        return TimeBreakdown(*(seconds * factor for seconds in astuple(self)))
