"""Communication counts of collectives: messages, bytes and reductions on the critical path, by algorithm.

There is one function per algorithm, which the decorator `algorithm` enters in `ALGORITHMS`. It takes the bytes n of the
full vector, as `hybridnn.comm.recorder` counts them (the array that all ranks end up with, or start with; for scatter
and gather all blocks together), and the ranks p of the group, 1 or more, and returns the `Rounds` of the algorithm. The
closed forms in the docstrings are the sums of the rounds, which `counts` returns; lg is the logarithm to base 2. The
root is rank 0.

The model: an algorithm runs in rounds; in each, a rank sends at most one message and receives at most one, and the
round takes as long as its largest message. Nothing has to be divisible: the vector is cut by the block rule of
`hybridnn.comm.blocks` (in bytes, so that a block of elements differs by less than one element), and empty blocks
count as messages. The counts are exact for every size and take at most O(log p) operations.

If an algorithm needs a power of two and p is none, r = p - 2^floor(lg p) ranks are folded, as in MPICH: of the first
2 r ranks every even one sends its data to its neighbour, is idle, and receives the result in the end.

Sources: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH"; Chan,
Heimlich, Purkayastha and van de Geijn 2007, "Collective communication: theory, practice, and experience". Differences
are stated with the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.blocks import block_bounds, block_size
from hybridnn.utils.checks import require_choice, require_whole


@dataclass(frozen=True, slots=True)
class CommunicationCounts:
    """Messages sent one after another on the critical path of an operation, their bytes, and the bytes reduced.

    Concurrent messages between other ranks are not counted. Reduced are received bytes that are added to a rank's own.
    """

    messages: float = 0
    nbytes: float = 0
    reduced: float = 0

    def seconds(self, alpha: float, beta: float, gamma: float = 0.0) -> float:
        """Seconds of the operation (Hockney's model with a term for reductions).

        `alpha` is per message, `beta` per byte sent, and `gamma` per *byte* reduced: the gamma of a floating-point
        operation, divided by the bytes of an element.
        """
        return self.messages * alpha + self.nbytes * beta + self.reduced * gamma

    def __add__(self, other: CommunicationCounts) -> CommunicationCounts:
        return CommunicationCounts(
            self.messages + other.messages, self.nbytes + other.nbytes, self.reduced + other.reduced
        )

    def __mul__(self, times: float) -> CommunicationCounts:
        return CommunicationCounts(self.messages * times, self.nbytes * times, self.reduced * times)


Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]  # members of a group that send, and those that receive from them

Pattern = Callable[[int, int], Pairs]
"""Senders and receivers of a round, from the ranks of the group and a distance.

A reduction or gather sends the other way: as many messages leave a node as enter it here."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds of a collective in which the same ranks send, one round after another, with the sum of their counts.

    Contention at the nodes follows from the pattern and the distance between sender and receiver, if it has one.
    """

    pattern: Pattern
    distance: int
    counts: CommunicationCounts


RoundSequence = tuple[Rounds, ...]
Algorithm = Callable[[int, int], RoundSequence]

ALGORITHMS: dict[str, dict[str, Algorithm]] = {}
"""From operation, named as in `hybridnn.comm.recorder`, and algorithm to its function of (nbytes, ranks)."""


def algorithm(operation: str, name: str) -> Callable[[Algorithm], Algorithm]:
    """Decorator that enters a function in `ALGORITHMS`."""

    def enter(function: Algorithm) -> Algorithm:
        ALGORITHMS.setdefault(operation, {})[name] = function
        return function

    return enter


# -- patterns --------------------------------------------------------------------------------------------------------


def shift(ranks: int, distance: int) -> Pairs:
    """Every rank sends round a ring."""
    senders = np.arange(ranks)
    return senders, (senders + distance) % ranks


def pairs(ranks: int, distance: int) -> Pairs:
    """The ranks that remain after folding exchange in pairs."""
    power = 1 << (ranks.bit_length() - 1)
    folded = ranks - power
    # Of the first 2 `folded` ranks every even one is idle.
    members = np.concatenate((np.arange(1, 2 * folded, 2), np.arange(2 * folded, ranks)))
    return members, members[np.arange(power) ^ distance]


def fold(ranks: int, distance: int) -> Pairs:
    """Folded ranks send to their neighbours."""
    idle = np.arange(0, 2 * (ranks - (1 << (ranks.bit_length() - 1))), 2)
    return idle, idle + 1


def tree(ranks: int, distance: int) -> Pairs:
    """All ranks below `distance` send."""
    senders = np.arange(min(distance, ranks - distance))
    return senders, senders + distance


def scatter_tree(ranks: int, distance: int) -> Pairs:
    """Every rank with the blocks of 2 `distance` ranks sends half of them."""
    senders = np.arange(0, ranks - distance, 2 * distance)
    return senders, senders + distance


def from_root(ranks: int, distance: int) -> Pairs:
    """All rounds of the root at once."""
    receivers = np.arange(1, ranks)
    return np.zeros_like(receivers), receivers


# -- algorithms ------------------------------------------------------------------------------------------------------


@algorithm("send", "direct")
def point_to_point(nbytes: int, ranks: int) -> RoundSequence:
    """One message from a rank to another: alpha + n beta (Hockney 1994); none with one rank."""
    return (Rounds(tree, 1, CommunicationCounts(1, nbytes)),) if ranks > 1 else ()


@algorithm("broadcast", "binomial")
def broadcast_binomial(nbytes: int, ranks: int) -> RoundSequence:
    """In every round all ranks that have the vector send it on: ceil(lg p) (alpha + n beta)."""
    return tuple(Rounds(tree, gap, CommunicationCounts(1, nbytes)) for gap in _gaps(ranks))


@algorithm("broadcast", "scatter_recursive_doubling")
def broadcast_scatter_recursive_doubling(nbytes: int, ranks: int) -> RoundSequence:
    """Binomial scatter, then all-gather by recursive doubling (van de Geijn's broadcast).

    For a power of two and even blocks: 2 lg p alpha + 2 n (p-1)/p beta.
    """
    return scatter_binomial(nbytes, ranks) + allgather_recursive_doubling(nbytes, ranks)


@algorithm("broadcast", "scatter_ring")
def broadcast_scatter_ring(nbytes: int, ranks: int) -> RoundSequence:
    """Binomial scatter, then all-gather round a ring (van de Geijn's broadcast for long vectors).

    For even blocks: (ceil(lg p) + p - 1) alpha + 2 n (p-1)/p beta.
    """
    return scatter_binomial(nbytes, ranks) + allgather_ring(nbytes, ranks)


@algorithm("gather", "binomial")  # the same messages backwards
@algorithm("scatter", "binomial")
def scatter_binomial(nbytes: int, ranks: int) -> RoundSequence:
    """Every rank with several blocks sends half of them: ceil(lg p) alpha + n (p-1)/p beta.

    The root's message is the largest of every round; its messages together are all blocks but its own.
    """
    ends = [_leading_bytes(nbytes, ranks, min(2 * gap, ranks)) for gap in _gaps(ranks)]
    starts = [_leading_bytes(nbytes, ranks, gap) for gap in _gaps(ranks)]
    messages = zip(_gaps(ranks), starts, ends, strict=True)
    return tuple(Rounds(scatter_tree, gap, CommunicationCounts(1, end - start)) for gap, start, end in messages)


@algorithm("gather", "linear")  # the same messages backwards
@algorithm("scatter", "linear")
def scatter_linear(nbytes: int, ranks: int) -> RoundSequence:
    """The root sends every other rank its block: (p-1) alpha + n (p-1)/p beta."""
    return (Rounds(from_root, 0, CommunicationCounts(ranks - 1, nbytes - block_size(nbytes, ranks, 0))),)


@algorithm("allgather", "ring")
def allgather_ring(nbytes: int, ranks: int) -> RoundSequence:
    """Every block goes once round the ring: (p-1) alpha + n (p-1)/p beta.

    All blocks are sent in every round, which takes as long as the largest.
    """
    return (Rounds(shift, 1, CommunicationCounts(ranks - 1, (ranks - 1) * block_size(nbytes, ranks, 0))),)


@algorithm("allgather", "recursive_doubling")
def allgather_recursive_doubling(nbytes: int, ranks: int) -> RoundSequence:
    """Pairs exchange all they have, at distance 1, 2, 4, …: lg p alpha + n (p-1)/p beta for a power of two.

    Else two more messages: a folded rank's block before and the whole vector after. (MPICH sends the missing blocks
    through the subtrees instead.)
    """
    core = [(gap, CommunicationCounts(1, _doubled_bytes(nbytes, ranks, gap))) for gap in _core_gaps(ranks)]
    return _folded(ranks, CommunicationCounts(1, block_size(nbytes, ranks, 0)), core, CommunicationCounts(1, nbytes))


@algorithm("allgather", "bruck")
def allgather_bruck(nbytes: int, ranks: int) -> RoundSequence:
    """Bruck et al. 1997: rounds of recursive doubling round a ring, the last one shorter.

    For even blocks and every p: ceil(lg p) alpha + n (p-1)/p beta.
    """
    # Of all runs of blocks, also those around the end, the one at the start is the largest.
    sent = {gap: _leading_bytes(nbytes, ranks, min(gap, ranks - gap)) for gap in _gaps(ranks)}
    return tuple(Rounds(shift, gap, CommunicationCounts(1, size)) for gap, size in sent.items())


@algorithm("reduce_scatter", "ring")
def reduce_scatter_ring(nbytes: int, ranks: int) -> RoundSequence:
    """Every block goes round the ring, and each rank adds its own: (p-1) alpha + n (p-1)/p (beta + gamma).

    Pairwise exchange, where every rank sends its blocks directly to their owners, has the same counts.
    """
    return _reducing(allgather_ring(nbytes, ranks))


@algorithm("reduce_scatter", "recursive_halving")
def reduce_scatter_recursive_halving(nbytes: int, ranks: int) -> RoundSequence:
    """Pairs exchange halves, at distance …, 4, 2, 1: lg p alpha + n (p-1)/p (beta + gamma) for a power of two.

    Else two more messages: a folded rank's vector before and its reduced block after. The neighbours of the folded
    ranks keep two blocks in the rounds between, so that the bytes are somewhat more than n (p-1)/p.
    """
    core = [(gap, _added(CommunicationCounts(1, _doubled_bytes(nbytes, ranks, gap)))) for gap in _core_gaps(ranks)]
    return _folded(
        ranks, _added(CommunicationCounts(1, nbytes)), core, CommunicationCounts(1, block_size(nbytes, ranks, 0))
    )


@algorithm("reduce", "binomial")
def reduce_binomial(nbytes: int, ranks: int) -> RoundSequence:
    """The binomial broadcast backwards, with additions: ceil(lg p) (alpha + n beta + n gamma)."""
    return _reducing(broadcast_binomial(nbytes, ranks))


@algorithm("allreduce", "ring")
def allreduce_ring(nbytes: int, ranks: int) -> RoundSequence:
    """Ring reduce-scatter, then ring all-gather: 2 (p-1) alpha + 2 n (p-1)/p beta + n (p-1)/p gamma.

    Patarasuk and Yuan 2009.
    """
    return reduce_scatter_ring(nbytes, ranks) + allgather_ring(nbytes, ranks)


@algorithm("allreduce", "recursive_doubling")
def allreduce_recursive_doubling(nbytes: int, ranks: int) -> RoundSequence:
    """Pairs exchange whole vectors, at distance 1, 2, 4, …: lg p (alpha + n beta + n gamma) for a power of two.

    Else (floor(lg p) + 2) (alpha + n beta) + (floor(lg p) + 1) n gamma.
    """
    vector = CommunicationCounts(1, nbytes)
    return _folded(ranks, _added(vector), [(gap, _added(vector)) for gap in _core_gaps(ranks)], vector)


@algorithm("allreduce", "rabenseifner")
def allreduce_rabenseifner(nbytes: int, ranks: int) -> RoundSequence:
    """Rabenseifner 2004: reduce-scatter by recursive halving, then all-gather by recursive doubling.

    For a power of two and even blocks: 2 lg p alpha + 2 n (p-1)/p beta + n (p-1)/p gamma. Else, with the 2^floor(lg p)
    = q ranks that remain after folding, (2 lg q + 2) alpha + (2 + 2 (q-1)/q) n beta + (1 + (q-1)/q) n gamma. (The
    comment in MPICH's source prints p for q, which is approximate.) Neighbours exchange halves of the vector, and the
    farther apart ranks are, the less they exchange.
    """
    # The vector is cut into as many blocks as ranks remain, so none of them has two.
    power = 1 << (ranks.bit_length() - 1)
    sizes = {gap: _leading_bytes(nbytes, power, power // (2 * gap)) for gap in _core_gaps(ranks)}
    core = [(gap, _added(CommunicationCounts(1, size)) + CommunicationCounts(1, size)) for gap, size in sizes.items()]
    vector = CommunicationCounts(1, nbytes)
    return _folded(ranks, _added(vector), core, vector)


@algorithm("allreduce", "binomial")
def allreduce_binomial(nbytes: int, ranks: int) -> RoundSequence:
    """Binomial reduce, then binomial broadcast: ceil(lg p) (2 alpha + 2 n beta + n gamma)."""
    return reduce_binomial(nbytes, ranks) + broadcast_binomial(nbytes, ranks)


@algorithm("barrier", "dissemination")
def barrier_dissemination(nbytes: int, ranks: int) -> RoundSequence:
    """Empty messages at distance 1, 2, 4, …: ceil(lg p) alpha. Hensgen, Finkel and Manber 1988.

    `nbytes` has no effect; all functions have the same signature.
    """
    return tuple(Rounds(shift, gap, CommunicationCounts(1)) for gap in _gaps(ranks))


# -- counts ----------------------------------------------------------------------------------------------------------


@lru_cache(1 << 16)
def rounds_of(operation: str, algorithm: str, nbytes: int, ranks: int) -> RoundSequence:
    """Rounds of an operation by an algorithm, for the bytes of the full vector and the ranks of the group.

    Raises `SettingError` if a name is unknown, or a size or number of ranks is out of range.
    """
    require_choice("operation", operation, ALGORITHMS)
    require_choice(f"algorithm of {operation}", algorithm, ALGORITHMS[operation])
    require_whole("nbytes", nbytes, 0)
    require_whole("ranks", ranks, 1)
    return ALGORITHMS[operation][algorithm](nbytes, ranks)


def counts(operation: str, algorithm: str, nbytes: int, ranks: int) -> CommunicationCounts:
    """Counts of an operation by an algorithm: its rounds added up; parameters and errors as for `rounds_of`."""
    return sum((rounds.counts for rounds in rounds_of(operation, algorithm, nbytes, ranks)), CommunicationCounts())


def _gaps(ranks: int) -> list[int]:
    """Distances 1, 2, 4, … below p: ceil(lg p) of them."""
    return [1 << level for level in range((ranks - 1).bit_length())]


def _core_gaps(ranks: int) -> list[int]:
    """Distances of pairwise exchange among the ranks that remain after folding: floor(lg p) of them."""
    return [1 << level for level in range(ranks.bit_length() - 1)]


def _folded(
    ranks: int, before: CommunicationCounts, core: Iterable[tuple[int, CommunicationCounts]], after: CommunicationCounts
) -> RoundSequence:
    """Pairwise exchange among the ranks that remain after folding, with the messages that folding adds."""
    exchanges = tuple(Rounds(pairs, gap, exchanged) for gap, exchanged in core)
    if not ranks & (ranks - 1):
        return exchanges
    return (Rounds(fold, 1, before), *exchanges, Rounds(fold, 1, after))


def _added(messages: CommunicationCounts) -> CommunicationCounts:
    """The same messages, with all received bytes added to the receiver's own."""
    return CommunicationCounts(messages.messages, messages.nbytes, messages.nbytes)


def _reducing(rounds: RoundSequence) -> RoundSequence:
    return tuple(Rounds(item.pattern, item.distance, _added(item.counts)) for item in rounds)


def _leading_bytes(nbytes: int, blocks: int, count: int) -> int:
    """Bytes of the first `count` of `blocks` blocks, which are the largest."""
    return block_bounds(nbytes, blocks, count - 1)[1] if count else 0


def _doubled_bytes(nbytes: int, ranks: int, gap: int) -> int:
    """Largest message at a distance, in recursive doubling (or halving) with one block per rank.

    Of the ranks that remain after folding, the first ones have two blocks.
    """
    folded = ranks - (1 << (ranks.bit_length() - 1))
    return _leading_bytes(nbytes, ranks, gap + min(gap, folded))


Nodes = NDArray[np.int64]


class Crossings:
    """Groups that perform the same collective at the same time, by the nodes of their ranks, shape (groups, members).

    `ranks` are the members of a group; `spans` is whether any group spans nodes. A row counts as many times as
    `numbers` states, by default once.
    """

    def __init__(self, nodes: Nodes, numbers: Nodes | None = None) -> None:
        self._nodes = nodes
        self._numbers = np.ones(len(nodes)) if numbers is None else numbers.astype(np.float64)
        self.ranks = nodes.shape[1]
        self.spans = bool((nodes != nodes[:, :1]).any())
        self._flows: dict[tuple[Pattern, int], float] = {}

    def flows(self, pattern: Pattern, distance: int) -> float:
        """Messages of a round that leave or enter a node at the same time, on the node with most of them.

        Of `from_root`, whose rounds follow one another, a group counts once.
        """
        key = pattern, distance
        if key not in self._flows:
            self._flows[key] = self._count(pattern, distance) if self.spans else 0.0
        return self._flows[key]

    def _count(self, pattern: Pattern, distance: int) -> float:
        if pattern is from_root:
            spans = (self._nodes != self._nodes[:, :1]).any(axis=1)
            return float(np.bincount(self._nodes[spans, 0], self._numbers[spans]).max(initial=0))
        senders, receivers = pattern(self.ranks, distance)
        numbers = np.broadcast_to(self._numbers[:, None], (len(self._nodes), len(senders)))
        return concurrent_messages(self._nodes[:, senders], self._nodes[:, receivers], numbers)


def concurrent_messages(senders: Nodes, receivers: Nodes, weights: NDArray[np.float64]) -> float:
    """Messages that leave or enter a node, on the node with most of them; 0 if all stay inside their nodes.

    `senders` and `receivers` are the nodes of both ends of every message, `weights` numbers or fractions of messages.
    """
    crosses = senders != receivers
    ends = (np.bincount(side[crosses], weights[crosses]) for side in (senders, receivers))
    return max(float(counted.max(initial=0)) for counted in ends)


def crossings_of(nodes: Nodes, numbers: Nodes | None = None) -> Crossings:
    """Crossings of groups whose ranks are on `nodes`, shape (groups, members), numbered from anywhere.

    `numbers` are as for `Crossings`.
    """
    moved = np.ascontiguousarray(nodes - nodes.min())
    return _crossings_of_bytes(moved.shape[1], moved.tobytes(), None if numbers is None else numbers.tobytes())


@lru_cache(1 << 12)  # many layouts have stages of the same placement
def _crossings_of_bytes(members: int, nodes: bytes, numbers: bytes | None) -> Crossings:
    counted = None if numbers is None else np.frombuffer(numbers, np.int64)
    return Crossings(np.frombuffer(nodes, np.int64).reshape(-1, members), counted)
