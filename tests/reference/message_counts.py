"""Collective algorithms executed message by message, which counts their messages and checks their results.

An algorithm is a list of rounds, and a round is a list of simultaneous messages. The content of a block is represented
by the set of ranks whose data it contains, so that a sum with a missing or repeated contribution is detected.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

Holdings = list[dict[int, frozenset[int]]]  # of every rank, by block


@dataclass(frozen=True)
class Message:
    sender: int
    receiver: int
    blocks: tuple[int, ...]
    added: bool = False  # the receiver adds the blocks instead of replacing its own


Round = list[Message]


@dataclass(frozen=True)
class Algorithm:
    """An algorithm for a number of ranks; the vector is divided into `blocks` blocks."""

    operation: str
    ranks: int
    blocks: int
    rounds: list[Round]

    def count(self, nbytes: int) -> tuple[int, int, int]:
        """Messages, bytes and bytes reduced on the critical path: each round costs its largest message."""
        carried = 0 if self.operation == "barrier" else nbytes
        # The first blocks have one more byte if the number is not divisible.
        sizes = [len(range(block, carried, self.blocks)) for block in range(self.blocks)]
        messages = sent = reduced = 0
        for current in self.rounds:
            lengths = [(sum(sizes[b % self.blocks] for b in message.blocks), message.added) for message in current]
            messages += 1
            sent += max(length for length, _ in lengths)
            reduced += max((length for length, added in lengths if added), default=0)
        return messages, sent, reduced


def carry_out(algorithm: Algorithm) -> None:
    """Send all messages, and check that the data of every rank are the result of the operation."""
    held = _start(algorithm)
    for messages in algorithm.rounds:
        assert messages, "a round without messages"
        assert len({message.sender for message in messages}) == len(messages), "a rank sends twice in a round"
        assert len({message.receiver for message in messages}) == len(messages), "a rank receives twice in a round"
        before = [dict(blocks) for blocks in held]
        for message in messages:
            assert message.sender != message.receiver
            for block in message.blocks:
                arriving = before[message.sender][block]  # a KeyError if the sender does not hold the block
                if message.added:
                    own = before[message.receiver][block]
                    assert not own & arriving, "a summand is added twice"
                    arriving |= own
                held[message.receiver][block] = arriving
    for rank, expected in enumerate(_expected(algorithm)):
        for block, ranks in expected.items():
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


def _expected(algorithm: Algorithm) -> Holdings:
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
        [replace(m, sender=m.receiver, receiver=m.sender, added=added) for m in messages]
        for messages in reversed(rounds)
    ]


def _powers(below: int) -> list[int]:
    powers = [1]
    while powers[-1] < below:
        powers.append(2 * powers[-1])
    return powers[:-1]


def _tree(p: int) -> list[Round]:
    """Broadcast of one block: rank 0 sends it to 1, then 0 and 1 send it to 2 and 3, and so on."""
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
    """In round k, rank r sends block first + r - k to the next rank."""
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
    """Every rank sends the rank at distance `gap` all blocks that it has received; repeated blocks are harmless."""
    return [
        [Message(r, (r + gap) % p, tuple((r - t) % p for t in range(min(gap, p)))) for r in range(p)]
        for gap in _powers(p)
    ]


@dataclass(frozen=True)
class Fold:
    """Pairs of the first ranks, of which the even ones wait, so that the other ranks are a power of two."""

    pairs: list[tuple[int, int]]  # (waiting, working)
    working: list[int]

    def into(self, blocks: Callable[[int], Iterable[int]], *, added: bool) -> list[Round]:
        return [[Message(even, odd, tuple(blocks(even)), added) for even, odd in self.pairs]] if self.pairs else []

    def back(self, blocks: Callable[[int], Iterable[int]]) -> list[Round]:
        return [[Message(odd, even, tuple(blocks(even))) for even, odd in self.pairs]] if self.pairs else []

    def owned(self) -> list[list[int]]:
        """Blocks that each working rank represents, one per rank of the group."""
        represented = {odd: [even, odd] for even, odd in self.pairs}
        return [represented.get(rank, [rank]) for rank in self.working]


def _fold(p: int) -> Fold:
    left = 1
    while 2 * left <= p:
        left *= 2
    pairs = [(2 * i, 2 * i + 1) for i in range(p - left)]
    waiting = {even for even, _ in pairs}
    return Fold(pairs, [rank for rank in range(p) if rank not in waiting])


def _doubling(ranks: list[int], owned: list[list[int]]) -> list[Round]:
    """Partners at distance 1, 2, 4, … exchange all blocks that they hold."""
    rounds = []
    have = [list(blocks) for blocks in owned]
    for gap in _powers(len(ranks)):
        rounds.append([Message(ranks[i], ranks[i ^ gap], tuple(have[i])) for i in range(len(ranks))])
        have = [have[i] + have[i ^ gap] for i in range(len(ranks))]
    return rounds


def _halving(ranks: list[int], owned: list[list[int]]) -> list[Round]:
    """Recursive doubling in reverse: partners send the blocks that the other keeps."""
    return _backwards(_doubling(ranks, owned), added=True)


def _halving_near_first(ranks: list[int]) -> tuple[list[Round], list[list[int]]]:
    """Recursive halving that begins between neighbours, and the block that each rank keeps."""
    rounds = []
    keeps = [list(range(len(ranks))) for _ in ranks]
    for gap in _powers(len(ranks)):
        half = len(keeps[0]) // 2
        kept = [keeps[i][half:] if i & gap else keeps[i][:half] for i in range(len(ranks))]
        rounds.append([Message(ranks[i], ranks[i ^ gap], tuple(kept[i ^ gap]), True) for i in range(len(ranks))])
        keeps = kept
    return rounds, keeps


def _everything(blocks: int) -> Callable[[int], range]:
    return lambda rank: range(blocks)


def _own(rank: int) -> tuple[int]:
    return (rank,)


def _allgather_doubling(p: int) -> list[Round]:
    fold = _fold(p)
    return [*fold.into(_own, added=False), *_doubling(fold.working, fold.owned()), *fold.back(_everything(p))]


def _reduce_scatter_halving(p: int) -> list[Round]:
    fold = _fold(p)
    return [*fold.into(_everything(p), added=True), *_halving(fold.working, fold.owned()), *fold.back(_own)]


def _allreduce_doubling(p: int) -> list[Round]:
    fold = _fold(p)
    exchanges = [
        [Message(fold.working[i], fold.working[i ^ gap], (0,), True) for i in range(len(fold.working))]
        for gap in _powers(len(fold.working))
    ]
    return [*fold.into(_everything(1), added=True), *exchanges, *fold.back(_everything(1))]


def _rabenseifner(p: int) -> list[Round]:
    fold = _fold(p)
    whole = _everything(len(fold.working))
    scattered, keeps = _halving_near_first(fold.working)
    gathered = _backwards(scattered)
    assert sorted(block for blocks in keeps for block in blocks) == list(whole(0))
    return [*fold.into(whole, added=True), *scattered, *gathered, *fold.back(whole)]


def algorithms(p: int) -> dict[tuple[str, str], list[Algorithm]]:
    """All algorithms for `p` ranks, by operation and name; several with one name have equal counts."""
    tree, scatter, left = _tree(p), _scatter_tree(p), len(_fold(p).working)
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
