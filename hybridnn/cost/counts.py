"""The currency of the cost models: messages, bytes and reductions that have to follow one another."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counts", "Rounds"]


@dataclass(frozen=True, slots=True)
class Counts:
    """What lies on the critical path of an operation.

    Attributes
    ----------
    messages : float
        Messages sent one after another. What travels at the same time between other ranks is one message with them.
    nbytes : float
        Bytes of these messages.
    reduced : float
        Received bytes that are added to a rank's own, one after another.
    """

    messages: float = 0
    nbytes: float = 0
    reduced: float = 0

    def seconds(self, alpha: float, beta: float, gamma: float = 0.0) -> float:
        """Seconds of the operation (Hockney's model with a term for reductions).

        Parameters
        ----------
        alpha : float
            Seconds per message.
        beta : float
            Seconds per byte sent.
        gamma : float
            Seconds per *byte* reduced: the gamma of a floating-point operation, divided by the bytes of a number.
        """
        return self.messages * alpha + self.nbytes * beta + self.reduced * gamma

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.messages + other.messages, self.nbytes + other.nbytes, self.reduced + other.reduced)

    def __mul__(self, times: float) -> Counts:
        return Counts(self.messages * times, self.nbytes * times, self.reduced * times)


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds of a collective in which the same ranks send, one round after another.

    Attributes
    ----------
    pattern : str
        Which ranks send to which, a key of `hybridnn.cost.crossings.PATTERNS`.
    distance : int
        Between sender and receiver, as far as the pattern has one.
    counts : Counts
        Of these rounds together.
    """

    pattern: str
    distance: int
    counts: Counts
