"""Virtual clock: the communication time of a program on several ranks, exact and repeatable.

Every rank has a time. A message begins when both sides have called and the sender's and the receiver's port are free,
and takes alpha + n beta; a collective begins when its last rank has entered, and takes the time of the cost models
(an all-to-all: one message to each other rank, in turn). Computing takes no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from hybridnn.utils.checks import require_number

if TYPE_CHECKING:
    from hybridnn.cost.machine import Machine


class VirtualClock:
    """Times of all ranks.

    Parameters
    ----------
    alpha, beta : float
        Seconds per message, and per byte.
    machine : Machine, optional
        Takes the place of both: its links and collectives inside a node.

    Attributes
    ----------
    now : list of float
        Seconds since the start, by rank.
    """

    def __init__(self, size: int, alpha: float = 0.0, beta: float = 0.0, machine: Machine | None = None) -> None:
        for name, value in (("alpha", alpha), ("beta", beta)):
            require_number(name, value, at_least=0, allowed="seconds, 0 or more")
        self.now = [0.0] * size
        self._alpha, self._beta, self._machine = alpha, beta, machine
        self._sending, self._receiving = [0.0] * size, [0.0] * size
        self._collective = lru_cache(maxsize=None)(self._collective_seconds)

    def message(self, source: int, target: int, nbytes: int, sent: float, received: float) -> float:
        """Arrival of a message whose two sides were called at the times `sent` and `received`."""
        begun = max(sent, received, self._sending[source], self._receiving[target])
        end = begun + self._message_seconds(nbytes)
        self._sending[source] = self._receiving[target] = end
        return end

    def collective(self, name: str, nbytes: int, entered: Sequence[float]) -> float:
        """End of a collective on all ranks, which entered it at these times."""
        return max(entered) + self._collective(name, nbytes, len(entered))

    def _message_seconds(self, nbytes: int) -> float:
        if self._machine is None:
            return self._alpha + nbytes * self._beta
        return self._machine.message_seconds(nbytes)

    def _collective_seconds(self, name: str, nbytes: int, ranks: int) -> float:
        if ranks == 1:
            return 0.0
        from hybridnn.cost.collectives import ALGORITHMS, counts  # a single rank without MPI needs no cost model

        if name == "alltoall":
            return (ranks - 1) * self._message_seconds(nbytes // ranks)
        if name not in ALGORITHMS:
            return 0.0
        if self._machine is not None:
            return self._machine.collective_seconds(name, nbytes, ranks)
        return min(
            counts(name, algorithm, nbytes, ranks).seconds(self._alpha, self._beta) for algorithm in ALGORITHMS[name]
        )
