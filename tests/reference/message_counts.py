"""Collectives carried out message by message, to count what they send and to see that they do what they promise.

An algorithm is a list of rounds, a round a list of messages that travel at once. What a rank holds of a block is the
set of ranks whose data is in it, so that a sum that counts a rank twice, or lacks one, is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

Holdings = list[dict[int, frozenset[int]]]  # of every rank, by block


@dataclass(frozen=True)
class Message:
    sender: int
    receiver: int
    blocks: tuple[int, ...]
    added: bool = False  # to what the receiver holds of these blocks, instead of put in its place


Round = list[Message]


@dataclass(frozen=True)
class Algorithm:
    """One algorithm for one number of ranks; `blocks` is how many the vector is cut into."""

    operation: str
    ranks: int
    blocks: int
    rounds: list[Round]

    def count(self, nbytes: int) -> tuple[int, int, int]:
        """Messages, bytes and bytes reduced on the critical path: each round costs its largest message."""
        carried = 0 if self.operation == "barrier" else nbytes
        # Block b takes the bytes b, b + blocks, b + 2 blocks, …: the first ones get one more.
        sizes = [len(range(block, carried, self.blocks)) for block in range(self.blocks)]
        messages = sent = reduced = 0
        for messages_at_once in self.rounds:
            weights = [(sum(sizes[block] for block in one.blocks), one.added) for one in messages_at_once]
            messages += 1
            sent += max(weight for weight, _ in weights)
            reduced += max((weight for weight, added in weights if added), default=0)
        return messages, sent, reduced


def carry_out(algorithm: Algorithm) -> None:
    """Send all messages; fail unless every rank then holds what the operation promises it."""
    held = _start(algorithm)
    for messages in algorithm.rounds:
        assert messages, "a round without messages"
        assert len({one.sender for one in messages}) == len(messages), "a rank sends twice in a round"
        assert len({one.receiver for one in messages}) == len(messages), "a rank receives twice in a round"
        before = [dict(blocks) for blocks in held]
        for one in messages:
            assert one.sender != one.receiver
            for block in one.blocks:
                arriving = before[one.sender][block]  # a KeyError: it sends what it does not hold
                if one.added:
                    own = before[one.receiver][block]
                    assert not own & arriving, "a summand is added twice"
                    arriving |= own
                held[one.receiver][block] = arriving
    for rank, wanted in enumerate(_promise(algorithm)):
        for block, ranks in wanted.items():
            assert held[rank].get(block) == ranks, f"rank {rank}, block {block}"


def _start(algorithm: Algorithm) -> Holdings:
    ranks, blocks = range(algorithm.ranks), range(algorithm.blocks)
    match algorithm.operation:
        case "send" | "broadcast" | "scatter":
            return [{block: frozenset({0}) for block in blocks} if rank == 0 else {} for rank in ranks]
        case "gather" | "allgather" | "barrier":
            return [{rank: frozenset({rank})} for rank in ranks]
        case "reduce" | "reduce_scatter" | "allreduce":
            return [{block: frozenset({rank}) for block in blocks} for rank in ranks]
    raise AssertionError(algorithm.operation)


def _promise(algorithm: Algorithm) -> Holdings:
    ranks, blocks = range(algorithm.ranks), range(algorithm.blocks)
    everyone = frozenset(ranks)
    match algorithm.operation:
        case "send":
            return [{block: frozenset({0}) for block in blocks} if rank < 2 else {} for rank in ranks]
        case "broadcast":
            return [{block: frozenset({0}) for block in blocks} for _ in ranks]
        case "scatter":
            return [{rank: frozenset({0})} for rank in ranks]
        case "gather":
            return [{block: frozenset({block}) for block in blocks} if rank == 0 else {} for rank in ranks]
        case "allgather" | "barrier":
            return [{block: frozenset({block}) for block in blocks} for _ in ranks]
        case "reduce":
            return [{block: everyone for block in blocks} if rank == 0 else {} for rank in ranks]
        case "reduce_scatter":
            return [{rank: everyone} for rank in ranks]
        case "allreduce":
            return [{block: everyone for block in blocks} for _ in ranks]
    raise AssertionError(algorithm.operation)


def _backwards(rounds: list[Round], *, added: bool = False) -> list[Round]:
    return [
        [replace(one, sender=one.receiver, receiver=one.sender, added=added) for one in messages]
        for messages in reversed(rounds)
    ]


def _powers(below: int) -> list[int]:
    powers = [1]
    while powers[-1] < below:
        powers.append(2 * powers[-1])
    return powers[:-1]


def _tree(p: int) -> list[Round]:
    """Broadcast of one block: rank r hands it to r + 1, then 0 and 1 to 2 and 3, and so on."""
    return [[Message(r, r + gap, (0,)) for r in range(gap) if r + gap < p] for gap in _powers(p)]


def _scatter_tree(p: int) -> list[Round]:
    rounds = []
    for gap in reversed(_powers(p)):
        owners = [rank for rank in range(0, p, 2 * gap) if rank + gap < p]
        rounds.append([Message(r, r + gap, tuple(range(r + gap, min(r + 2 * gap, p)))) for r in owners])
    return rounds


def _scatter_flat(p: int) -> list[Round]:
    return [[Message(0, rank, (rank,))] for rank in range(1, p)]


def _ring(p: int, *, first: int, added: bool) -> list[Round]:
    """In the round k rank r passes on the block first + r - k."""
    return [[Message(r, (r + 1) % p, ((first + r - k) % p,), added) for r in range(p)] for k in range(p - 1)]


def _pairwise(p: int) -> list[Round]:
    return [[Message(r, (r + k) % p, ((r + k) % p,), True) for r in range(p)] for k in range(1, p)]


def _bruck(p: int) -> list[Round]:
    rounds = []
    held = 1
    while held < p:
        new = min(held, p - held)
        rounds.append([Message(r, (r - held) % p, tuple((r + t) % p for t in range(new))) for r in range(p)])
        held += new
    return rounds


def _dissemination(p: int) -> list[Round]:
    """Every rank tells the one `gap` further all it has heard of; who hears a thing twice takes no harm."""
    return [
        [Message(r, (r + gap) % p, tuple((r - t) % p for t in range(min(gap, p)))) for r in range(p)]
        for gap in _powers(p)
    ]


@dataclass(frozen=True)
class Fold:
    """The first ranks in pairs of which the even one waits, so that a power of two of ranks is left."""

    pairs: list[tuple[int, int]]  # (waiting, working)
    left: list[int]

    def into(self, blocks: Callable[[int], Iterable[int]], *, added: bool) -> list[Round]:
        return [[Message(even, odd, tuple(blocks(even)), added) for even, odd in self.pairs]] if self.pairs else []

    def back(self, blocks: Callable[[int], Iterable[int]]) -> list[Round]:
        return [[Message(odd, even, tuple(blocks(even))) for even, odd in self.pairs]] if self.pairs else []

    def owned(self) -> list[list[int]]:
        """Blocks that each of the ranks that are left stands for, one per rank of the group."""
        stands_for = {odd: [even, odd] for even, odd in self.pairs}
        return [stands_for.get(rank, [rank]) for rank in self.left]


def _fold(p: int) -> Fold:
    left = 1
    while 2 * left <= p:
        left *= 2
    pairs = [(2 * i, 2 * i + 1) for i in range(p - left)]
    waiting = {even for even, _ in pairs}
    return Fold(pairs, [rank for rank in range(p) if rank not in waiting])


def _doubling(left: list[int], owned: list[list[int]]) -> list[Round]:
    """Partners at distance 1, 2, 4, … exchange all blocks that they have by then."""
    rounds = []
    have = [list(blocks) for blocks in owned]
    for gap in _powers(len(left)):
        rounds.append([Message(left[i], left[i ^ gap], tuple(have[i])) for i in range(len(left))])
        have = [have[i] + have[i ^ gap] for i in range(len(left))]
    return rounds


def _halving(left: list[int], owned: list[list[int]]) -> list[Round]:
    """The other way round: partners give each other what the other is going to keep."""
    return _backwards(_doubling(left, owned), added=True)


def _halving_near_first(left: list[int]) -> tuple[list[Round], list[list[int]]]:
    """Halving that begins between neighbours, and the block that is left to each rank."""
    rounds = []
    keeps = [list(range(len(left))) for _ in left]
    for gap in _powers(len(left)):
        half = len(keeps[0]) // 2
        kept = [keeps[i][half:] if i & gap else keeps[i][:half] for i in range(len(left))]
        rounds.append([Message(left[i], left[i ^ gap], tuple(kept[i ^ gap]), True) for i in range(len(left))])
        keeps = kept
    return rounds, keeps


def _everything(blocks: int) -> Callable[[int], range]:
    return lambda rank: range(blocks)


def _own(rank: int) -> tuple[int]:
    return (rank,)


def _allgather_doubling(p: int) -> list[Round]:
    fold = _fold(p)
    return [*fold.into(_own, added=False), *_doubling(fold.left, fold.owned()), *fold.back(_everything(p))]


def _reduce_scatter_halving(p: int) -> list[Round]:
    fold = _fold(p)
    return [*fold.into(_everything(p), added=True), *_halving(fold.left, fold.owned()), *fold.back(_own)]


def _allreduce_doubling(p: int) -> list[Round]:
    fold = _fold(p)
    exchanges = [
        [Message(fold.left[i], fold.left[i ^ gap], (0,), True) for i in range(len(fold.left))]
        for gap in _powers(len(fold.left))
    ]
    return [*fold.into(_everything(1), added=True), *exchanges, *fold.back(_everything(1))]


def _rabenseifner(p: int) -> list[Round]:
    fold = _fold(p)
    whole = _everything(len(fold.left))
    scattered, keeps = _halving_near_first(fold.left)
    gathered = _backwards(scattered)
    assert sorted(block for blocks in keeps for block in blocks) == list(whole(0))
    return [*fold.into(whole, added=True), *scattered, *gathered, *fold.back(whole)]


def algorithms(p: int) -> dict[tuple[str, str], list[Algorithm]]:
    """All algorithms for `p` ranks, by operation and name; where there are several, they count alike."""
    tree, scatter, left = _tree(p), _scatter_tree(p), len(_fold(p).left)
    around, summing = _ring(p, first=0, added=False), _ring(p, first=-1, added=True)
    made: dict[tuple[str, str], list[tuple[int, list[Round]]]] = {
        ("send", "direct"): [(1, [[Message(0, 1, (0,))]] if p > 1 else [])],
        ("broadcast", "binomial"): [(1, tree)],
        ("broadcast", "scatter_recursive_doubling"): [(p, scatter + _allgather_doubling(p))],
        ("broadcast", "scatter_ring"): [(p, scatter + around)],
        ("scatter", "binomial"): [(p, scatter)],
        ("scatter", "linear"): [(p, _scatter_flat(p))],
        ("gather", "binomial"): [(p, _backwards(scatter))],
        ("gather", "linear"): [(p, _backwards(_scatter_flat(p)))],
        ("allgather", "ring"): [(p, around)],
        ("allgather", "recursive_doubling"): [(p, _allgather_doubling(p))],
        ("allgather", "bruck"): [(p, _bruck(p))],
        ("reduce_scatter", "ring"): [(p, summing), (p, _pairwise(p))],
        ("reduce_scatter", "recursive_halving"): [(p, _reduce_scatter_halving(p))],
        ("reduce", "binomial"): [(1, _backwards(tree, added=True))],
        ("allreduce", "ring"): [(p, summing + around)],
        ("allreduce", "recursive_doubling"): [(1, _allreduce_doubling(p))],
        ("allreduce", "rabenseifner"): [(left, _rabenseifner(p))],
        ("allreduce", "binomial"): [(1, _backwards(tree, added=True) + tree)],
        ("barrier", "dissemination"): [(p, _dissemination(p))],
    }
    return {
        (operation, name): [Algorithm(operation, p, blocks, rounds) for blocks, rounds in ways]
        for (operation, name), ways in made.items()
    }
