"""Communication counts against single messages and the published closed forms."""

from collections.abc import Callable
from math import ceil, floor, log2

import numpy as np
import pytest

from hybridnn.cost import collectives
from hybridnn.cost.collectives import ALGORITHMS, CommunicationCounts, Rounds, counts, crossings_of
from hybridnn.cost.machine import CollectiveCost
from hybridnn.errors import SettingError
from reference.machines import make_machine
from reference.message_counts import algorithms, carry_out

RANKS = range(1, 18)
ALL = [(operation, name) for operation, names in ALGORITHMS.items() for name in names]

Closed = Callable[[int, int], tuple[int, int, int]]


def as_tuple(cost: CommunicationCounts) -> tuple[float, float, float]:
    return cost.messages, cost.nbytes, cost.reduced


@pytest.mark.parametrize("ranks", RANKS)
def test_counts_equal_those_of_the_single_messages(ranks: int) -> None:
    reference = algorithms(ranks)
    assert set(reference) == set(ALL)
    for (operation, name), ways in reference.items():
        for way in ways:
            carry_out(way)
            for nbytes in (0, 1, ranks - 1, ranks, ranks + 1, 1000, 4097):
                cost = as_tuple(counts(operation, name, nbytes, ranks))
                assert cost == way.count(nbytes), f"{operation} by {name}, {nbytes} bytes, {ranks} ranks"


def lg(ranks: int) -> int:
    return round(log2(ranks))


EVERY_COUNT: dict[tuple[str, str], Closed] = {
    ("send", "direct"): lambda n, p: (1, n, 0),
    ("broadcast", "binomial"): lambda n, p: (ceil(log2(p)), ceil(log2(p)) * n, 0),
    ("broadcast", "scatter_ring"): lambda n, p: (ceil(log2(p)) + p - 1, 2 * n * (p - 1) // p, 0),
    ("scatter", "binomial"): lambda n, p: (ceil(log2(p)), n * (p - 1) // p, 0),
    ("scatter", "linear"): lambda n, p: (p - 1, n * (p - 1) // p, 0),
    ("gather", "binomial"): lambda n, p: (ceil(log2(p)), n * (p - 1) // p, 0),
    ("gather", "linear"): lambda n, p: (p - 1, n * (p - 1) // p, 0),
    ("allgather", "ring"): lambda n, p: (p - 1, n * (p - 1) // p, 0),
    ("allgather", "bruck"): lambda n, p: (ceil(log2(p)), n * (p - 1) // p, 0),
    ("reduce_scatter", "ring"): lambda n, p: (p - 1, n * (p - 1) // p, n * (p - 1) // p),
    ("reduce", "binomial"): lambda n, p: (ceil(log2(p)), ceil(log2(p)) * n, ceil(log2(p)) * n),
    ("allreduce", "ring"): lambda n, p: (2 * (p - 1), 2 * n * (p - 1) // p, n * (p - 1) // p),
    ("allreduce", "binomial"): lambda n, p: (2 * ceil(log2(p)), 2 * ceil(log2(p)) * n, ceil(log2(p)) * n),
    ("barrier", "dissemination"): lambda n, p: (ceil(log2(p)), 0, 0),
}
POWERS_OF_TWO: dict[tuple[str, str], Closed] = {
    ("broadcast", "scatter_recursive_doubling"): lambda n, p: (2 * lg(p), 2 * n * (p - 1) // p, 0),
    ("allgather", "recursive_doubling"): lambda n, p: (lg(p), n * (p - 1) // p, 0),
    ("reduce_scatter", "recursive_halving"): lambda n, p: (lg(p), n * (p - 1) // p, n * (p - 1) // p),
    ("allreduce", "recursive_doubling"): lambda n, p: (lg(p), lg(p) * n, lg(p) * n),
    ("allreduce", "rabenseifner"): lambda n, p: (2 * lg(p), 2 * n * (p - 1) // p, n * (p - 1) // p),
}


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 16, 100, 1024, 100_000])
def test_published_closed_forms(ranks: int) -> None:
    """Thakur, Rabenseifner and Gropp 2005, for blocks of one size; 10^5 ranks and gigabytes too."""
    forms = EVERY_COUNT | (POWERS_OF_TWO if log2(ranks).is_integer() else {})
    for nbytes in (0, 24 * ranks, 8 * ranks * 10**6):
        for (operation, name), closed in forms.items():
            assert as_tuple(counts(operation, name, nbytes, ranks)) == closed(nbytes, ranks), (operation, name)


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 12, 17, 1000])
def test_published_closed_forms_with_folded_ranks(ranks: int) -> None:
    """The same paper; what it calls p in the shares of Rabenseifner's algorithm is the power of two that is left."""
    rounds, left = floor(log2(ranks)), 2 ** floor(log2(ranks))
    n = 24 * left
    share = n * (left - 1) // left
    cost = counts("allreduce", "rabenseifner", n, ranks)
    assert as_tuple(cost) == (2 * rounds + 2, 2 * n + 2 * share, n + share)
    cost = counts("allreduce", "recursive_doubling", n, ranks)
    assert as_tuple(cost) == (rounds + 2, (rounds + 2) * n, (rounds + 1) * n)


def test_seconds_and_sums() -> None:
    cost = CommunicationCounts(3, 100, 50) + CommunicationCounts(1, 20) * 2
    assert cost == CommunicationCounts(5, 140, 50)
    assert cost.seconds(alpha=2.0, beta=0.5) == 10 + 70
    assert cost.seconds(alpha=2.0, beta=0.5, gamma=0.1) == pytest.approx(85)


def test_a_new_algorithm_is_counted_priced_and_allowed_in_machine_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing but its function, which here sends a broadcast to all other nodes in one round."""
    monkeypatch.setattr(collectives, "ALGORITHMS", {operation: dict(names) for operation, names in ALGORITHMS.items()})
    monkeypatch.setattr("hybridnn.cost.machine.ALGORITHMS", collectives.ALGORITHMS)

    @collectives.algorithm("broadcast", "multicast")
    def broadcast_multicast(nbytes: int, ranks: int) -> tuple[Rounds, ...]:
        return (Rounds(collectives.from_root, 0, CommunicationCounts(1, nbytes)),)

    assert counts("broadcast", "multicast", 10, 8) == CommunicationCounts(1, 10)
    machine = make_machine(alpha=1.0, beta=0.1, nodes=4, ranks_per_node=2)
    crossings = crossings_of(np.arange(8)[None] // 2)
    assert machine.collective_seconds("broadcast", 10, 8, crossings=crossings) == pytest.approx(1 + 10 * 0.1)
    link = {"segments": [{"alpha_seconds": 1.0, "beta_seconds_per_byte": 0.1}]}
    measured = CollectiveCost.model_validate({"operation": "broadcast", "ranks": 4, "algorithm": "multicast", **link})
    assert measured.seconds(10, 8) == pytest.approx(1 + 10 * 0.1)


@pytest.mark.parametrize(
    ("wrong", "setting"),
    [
        (("gossip", "ring", 1, 1), "operation"),
        (("allgather", "binomial", 1, 1), "algorithm of allgather"),
        (("allgather", "ring", -1, 1), "nbytes"),
        (("allgather", "ring", 1, 0), "ranks"),
    ],
)
def test_unknown_names_are_refused(wrong: tuple[str, str, int, int], setting: str) -> None:
    with pytest.raises(SettingError) as error:
        counts(*wrong)
    assert error.value.setting == setting
