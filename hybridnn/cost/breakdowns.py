"""Breakdowns of time and memory: where the seconds of a step, or the bytes of a rank, go."""

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


@dataclass(frozen=True, slots=True)
class MemoryBreakdown:
    """Bytes of a rank's arrays by purpose, without the samples of the data set.

    Of an array that several ranks share, a rank's part counts.

    Attributes
    ----------
    weights : int
        Current weights and their gradients.
    optimizer : int
        Optimizer state.
    weight_versions : int
        Stashed and predicted weights.
    activations : int
        Inputs and activations kept for a backward pass.
    buffers : int
        Messages, gradients between layers, and microbatches concatenated for one product.
    """

    weights: int = 0
    optimizer: int = 0
    weight_versions: int = 0
    activations: int = 0
    buffers: int = 0

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return sum(astuple(self))

    def __add__(self, other: MemoryBreakdown) -> MemoryBreakdown:
        return MemoryBreakdown(*(own + more for own, more in zip(astuple(self), astuple(other), strict=True)))
