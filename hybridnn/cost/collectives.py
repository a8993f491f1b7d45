"""Messages, bytes and reductions of the collectives: one function per operation and algorithm.

Every function takes the bytes of the full vector, as `hybridnn.comm.recorder` counts them (the array that all ranks
end up with, or start with; for scatter and gather all parts together), and the ranks of the group, 1 or more. It gives
the `Rounds` of the algorithm, whose sum (`counts`) is the critical path; the closed forms are those of the sum. The
root is rank 0. In the closed forms n stands for the bytes, p for the ranks and lg for the logarithm to base 2.

The model: an algorithm runs in rounds; in each, a rank sends at most one message and receives at most one, and the
round takes as long as its largest message. Nothing has to be divisible: the vector is cut by the one block rule
(`hybridnn.comm.partition`, here in bytes, so a block of whole numbers differs by less than one number), and empty
blocks still are messages. The counts are exact for every size and take at most O(log p) operations.

Where an algorithm needs a power of two and p is none, r = p - 2^floor(lg p) ranks are folded away, as MPICH does: of
the first 2 r ranks every even one hands its data to its neighbour, waits, and is handed the result in the end.

Sources: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH"; Chan,
Heimlich, Purkayastha and van de Geijn 2007, "Collective communication: theory, practice, and experience". What differs
is said where it is.

The currency of the cost models: messages, bytes and reductions that have to follow one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from hybridnn.comm.partition import block_bounds, block_size
from hybridnn.utils.checks import require_choice, require_whole


@dataclass(frozen=True, slots=True)
class CommunicationCounts:
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

    def __add__(self, other: CommunicationCounts) -> CommunicationCounts:
        return CommunicationCounts(
            self.messages + other.messages, self.nbytes + other.nbytes, self.reduced + other.reduced
        )

    def __mul__(self, times: float) -> CommunicationCounts:
        return CommunicationCounts(self.messages * times, self.nbytes * times, self.reduced * times)


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds of a collective in which the same ranks send, one round after another.

    Attributes
    ----------
    pattern : str
        Which ranks send to which, a key of `hybridnn.cost.crossings.PATTERNS`.
    distance : int
        Between sender and receiver, as far as the pattern has one.
    counts : CommunicationCounts
        Of these rounds together.
    """

    pattern: str
    distance: int
    counts: CommunicationCounts


Schedule = tuple[Rounds, ...]


def point_to_point(nbytes: int, ranks: int) -> Schedule:
    """One message from a rank to another: alpha + n beta; nothing where there is no other rank. Hockney 1994."""
    return (Rounds("tree", 1, CommunicationCounts(1, nbytes)),) if ranks > 1 else ()


def broadcast_binomial(nbytes: int, ranks: int) -> Schedule:
    """In every round all ranks that have the vector pass it on: ceil(lg p) (alpha + n beta)."""
    return tuple(Rounds("tree", gap, CommunicationCounts(1, nbytes)) for gap in _gaps(ranks))


def broadcast_scatter_recursive_doubling(nbytes: int, ranks: int) -> Schedule:
    """Binomial scatter, then all-gather by recursive doubling (van de Geijn's broadcast).

    For a power of two and even blocks: 2 lg p alpha + 2 n (p-1)/p beta.
    """
    return scatter_binomial(nbytes, ranks) + allgather_recursive_doubling(nbytes, ranks)


def broadcast_scatter_ring(nbytes: int, ranks: int) -> Schedule:
    """Binomial scatter, then all-gather round a ring (van de Geijn's broadcast for long vectors).

    For even blocks: (ceil(lg p) + p - 1) alpha + 2 n (p-1)/p beta.
    """
    return scatter_binomial(nbytes, ranks) + allgather_ring(nbytes, ranks)


def scatter_binomial(nbytes: int, ranks: int) -> Schedule:
    """The root sends half of what it still has, as does every rank that got some: ceil(lg p) alpha + n (p-1)/p beta.

    The root's message is the largest of every round, and together they are all blocks but its own.
    """
    ends = [_leading_bytes(nbytes, ranks, min(2 * gap, ranks)) for gap in _gaps(ranks)]
    starts = [_leading_bytes(nbytes, ranks, gap) for gap in _gaps(ranks)]
    messages = zip(_gaps(ranks), starts, ends, strict=True)
    return tuple(Rounds("scatter tree", gap, CommunicationCounts(1, end - start)) for gap, start, end in messages)


def scatter_linear(nbytes: int, ranks: int) -> Schedule:
    """The root sends every other rank its block: (p-1) alpha + n (p-1)/p beta."""
    return (Rounds("root", 0, CommunicationCounts(ranks - 1, nbytes - _largest_block(nbytes, ranks))),)


def gather_binomial(nbytes: int, ranks: int) -> Schedule:
    """The binomial scatter backwards: ceil(lg p) alpha + n (p-1)/p beta."""
    return scatter_binomial(nbytes, ranks)


def gather_linear(nbytes: int, ranks: int) -> Schedule:
    """The root receives every other rank's block: (p-1) alpha + n (p-1)/p beta."""
    return scatter_linear(nbytes, ranks)


def allgather_ring(nbytes: int, ranks: int) -> Schedule:
    """Every block goes once round the ring: (p-1) alpha + n (p-1)/p beta.

    All blocks travel in every round, so that each round costs the largest.
    """
    return (Rounds("shift", 1, CommunicationCounts(ranks - 1, (ranks - 1) * _largest_block(nbytes, ranks))),)


def allgather_recursive_doubling(nbytes: int, ranks: int) -> Schedule:
    """Pairs exchange all they have, at distance 1, 2, 4, …: lg p alpha + n (p-1)/p beta for a power of two.

    Else two more messages: a folded rank's block before and the whole vector after. (MPICH instead passes what is
    missing through the subtrees.)
    """
    core = [(gap, CommunicationCounts(1, _doubled_bytes(nbytes, ranks, gap))) for gap in _core_gaps(ranks)]
    return _folded(ranks, CommunicationCounts(1, _largest_block(nbytes, ranks)), core, CommunicationCounts(1, nbytes))


def allgather_bruck(nbytes: int, ranks: int) -> Schedule:
    """Bruck et al. 1997: rounds of recursive doubling round a ring, the last one shorter.

    For even blocks and every p: ceil(lg p) alpha + n (p-1)/p beta.
    """
    # The largest of all runs of blocks, which may go round the end, is the one at the start.
    sent = {gap: _leading_bytes(nbytes, ranks, min(gap, ranks - gap)) for gap in _gaps(ranks)}
    return tuple(Rounds("shift", gap, CommunicationCounts(1, size)) for gap, size in sent.items())


def reduce_scatter_ring(nbytes: int, ranks: int) -> Schedule:
    """Every block goes round the ring and grows by one summand a round: (p-1) alpha + n (p-1)/p (beta + gamma).

    Pairwise exchange, where every rank sends its summands straight to the block's owner, has the same counts.
    """
    return _reducing(allgather_ring(nbytes, ranks))


def reduce_scatter_recursive_halving(nbytes: int, ranks: int) -> Schedule:
    """Pairs exchange the half the other keeps: lg p alpha + n (p-1)/p (beta + gamma) for a power of two.

    Else two more messages: a folded rank's vector before and its reduced block after. The neighbours of the folded
    ranks keep two blocks through the rounds between, so the bytes are somewhat more than n (p-1)/p there.
    """
    core = [(gap, _added(CommunicationCounts(1, _doubled_bytes(nbytes, ranks, gap)))) for gap in _core_gaps(ranks)]
    return _folded(
        ranks, _added(CommunicationCounts(1, nbytes)), core, CommunicationCounts(1, _largest_block(nbytes, ranks))
    )


def reduce_binomial(nbytes: int, ranks: int) -> Schedule:
    """The binomial broadcast backwards, adding up: ceil(lg p) (alpha + n beta + n gamma)."""
    return _reducing(broadcast_binomial(nbytes, ranks))


def allreduce_binomial(nbytes: int, ranks: int) -> Schedule:
    """Binomial reduce, then binomial broadcast: ceil(lg p) (2 alpha + 2 n beta + n gamma)."""
    return reduce_binomial(nbytes, ranks) + broadcast_binomial(nbytes, ranks)


def allreduce_recursive_doubling(nbytes: int, ranks: int) -> Schedule:
    """Pairs exchange whole vectors, at distance 1, 2, 4, …: lg p (alpha + n beta + n gamma) for a power of two.

    Else (floor(lg p) + 2) (alpha + n beta) + (floor(lg p) + 1) n gamma.
    """
    whole = CommunicationCounts(1, nbytes)
    return _folded(ranks, _added(whole), [(gap, _added(whole)) for gap in _core_gaps(ranks)], whole)


def allreduce_rabenseifner(nbytes: int, ranks: int) -> Schedule:
    """Rabenseifner 2004: reduce-scatter by recursive halving, then all-gather by recursive doubling.

    For a power of two and even blocks: 2 lg p alpha + 2 n (p-1)/p beta + n (p-1)/p gamma. Else, with the 2^floor(lg p)
    = q ranks that are left after folding, (2 lg q + 2) alpha + (2 + 2 (q-1)/q) n beta + (1 + (q-1)/q) n gamma. (The
    comment in MPICH's source prints p for q, which is approximate.) Neighbours exchange halves of the vector, and the
    farther apart ranks are, the less they exchange.
    """
    # The vector is cut anew for the ranks that are left, so none of them keeps two blocks.
    left = 1 << (ranks.bit_length() - 1)
    sizes = {gap: _leading_bytes(nbytes, left, left // (2 * gap)) for gap in _core_gaps(ranks)}
    core = [(gap, _added(CommunicationCounts(1, size)) + CommunicationCounts(1, size)) for gap, size in sizes.items()]
    whole = CommunicationCounts(1, nbytes)
    return _folded(ranks, _added(whole), core, whole)


def allreduce_ring(nbytes: int, ranks: int) -> Schedule:
    """Ring reduce-scatter, then ring all-gather: 2 (p-1) alpha + 2 n (p-1)/p beta + n (p-1)/p gamma.

    Patarasuk and Yuan 2009.
    """
    return reduce_scatter_ring(nbytes, ranks) + allgather_ring(nbytes, ranks)


def barrier_dissemination(nbytes: int, ranks: int) -> Schedule:
    """Empty messages at distance 1, 2, 4, …: ceil(lg p) alpha. Hensgen, Finkel and Manber 1988.

    `nbytes` is there so that all functions are called alike, and has no effect.
    """
    return tuple(Rounds("shift", gap, CommunicationCounts(1)) for gap in _gaps(ranks))


ALGORITHMS: Mapping[str, Mapping[str, Callable[[int, int], Schedule]]] = MappingProxyType(
    {
        operation: MappingProxyType(algorithms)
        for operation, algorithms in {
            "send": {"direct": point_to_point},
            "broadcast": {
                "binomial": broadcast_binomial,
                "scatter_recursive_doubling": broadcast_scatter_recursive_doubling,
                "scatter_ring": broadcast_scatter_ring,
            },
            "scatter": {"binomial": scatter_binomial, "linear": scatter_linear},
            "gather": {"binomial": gather_binomial, "linear": gather_linear},
            "allgather": {
                "ring": allgather_ring,
                "recursive_doubling": allgather_recursive_doubling,
                "bruck": allgather_bruck,
            },
            "reduce_scatter": {
                "ring": reduce_scatter_ring,
                "recursive_halving": reduce_scatter_recursive_halving,
            },
            "reduce": {"binomial": reduce_binomial},
            "allreduce": {
                "ring": allreduce_ring,
                "recursive_doubling": allreduce_recursive_doubling,
                "rabenseifner": allreduce_rabenseifner,
                "binomial": allreduce_binomial,
            },
            "barrier": {"dissemination": barrier_dissemination},
        }.items()
    }
)
"""From operation, named as in `hybridnn.comm.recorder`, and algorithm to its function of (nbytes, ranks)."""


KEPT_ROUNDS = 1 << 16
"""Results that are kept: a plan asks for the same ones over and over."""


@lru_cache(KEPT_ROUNDS)
def rounds_of(operation: str, algorithm: str, nbytes: int, ranks: int) -> Schedule:
    """Rounds of an operation by an algorithm.

    Parameters
    ----------
    operation, algorithm : str
        Keys of `ALGORITHMS`.
    nbytes : int
        Bytes of the full vector.
    ranks : int
        Ranks of the group.

    Raises
    ------
    SettingError
        For a name that is unknown, listing those there are, and for a size or a count that cannot be.
    """
    require_choice("operation", operation, ALGORITHMS)
    require_choice(f"algorithm of {operation}", algorithm, ALGORITHMS[operation])
    require_whole("nbytes", nbytes, 0)
    require_whole("ranks", ranks, 1)
    return ALGORITHMS[operation][algorithm](nbytes, ranks)


def counts(operation: str, algorithm: str, nbytes: int, ranks: int) -> CommunicationCounts:
    """Counts of an operation by an algorithm: its rounds added up; parameters and errors as for `rounds_of`."""
    return sum((one.counts for one in rounds_of(operation, algorithm, nbytes, ranks)), CommunicationCounts())


def _gaps(ranks: int) -> list[int]:
    """Distances 1, 2, 4, … until all ranks are reached when their number doubles each round: ceil(lg p) of them."""
    return [1 << level for level in range((ranks - 1).bit_length())]


def _core_gaps(ranks: int) -> list[int]:
    """Distances of pairwise exchange among the ranks that are left after folding: floor(lg p) of them."""
    return [1 << level for level in range(ranks.bit_length() - 1)]


def _folded(
    ranks: int, before: CommunicationCounts, core: Iterable[tuple[int, CommunicationCounts]], after: CommunicationCounts
) -> Schedule:
    """An exchange among the power of two of ranks that is left, and what folding adds where some are left out."""
    exchanges = tuple(Rounds("pairs", gap, moved) for gap, moved in core)
    if not ranks & (ranks - 1):
        return exchanges
    return (Rounds("fold", 1, before), *exchanges, Rounds("fold", 1, after))


def _added(moved: CommunicationCounts) -> CommunicationCounts:
    """The same messages, where all that is received is added to the receiver's own."""
    return CommunicationCounts(moved.messages, moved.nbytes, moved.nbytes)


def _reducing(rounds: Schedule) -> Schedule:
    return tuple(Rounds(one.pattern, one.distance, _added(one.counts)) for one in rounds)


def _leading_bytes(nbytes: int, blocks: int, count: int) -> int:
    """Bytes of the first `count` of `blocks` blocks, which are the largest."""
    return block_bounds(nbytes, blocks, count)[0]


def _largest_block(nbytes: int, blocks: int) -> int:
    return block_size(nbytes, blocks, 0)


def _doubled_bytes(nbytes: int, ranks: int, gap: int) -> int:
    """Largest message between ranks at a distance, in recursive doubling (or halving) by one block per rank.

    The ranks that folding leaves over stand for one rank each, but the first ones stand for two.
    """
    extra = ranks - (1 << (ranks.bit_length() - 1))
    return _leading_bytes(nbytes, ranks, gap + min(gap, extra))
