"""Where the seconds of an instruction go."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Shares"]


@dataclass(frozen=True, slots=True)
class Shares:
    """Seconds of an instruction.

    Attributes
    ----------
    computing : float
    communication : float
        Waited for.
    overhead : float
        Loading, copying, and Python between instructions.
    hidden : float
        Communication that passes while the rank computes; not part of the time.
    """

    computing: float = 0.0
    communication: float = 0.0
    overhead: float = 0.0
    hidden: float = 0.0

    @property
    def total(self) -> float:
        """Time of the instruction."""
        return self.computing + self.communication + self.overhead

    def __add__(self, other: Shares) -> Shares:
        return Shares(
            self.computing + other.computing,
            self.communication + other.communication,
            self.overhead + other.overhead,
            self.hidden + other.hidden,
        )
