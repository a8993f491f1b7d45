"""The byte-counting rule against messages counted one by one."""

from __future__ import annotations

import pytest

from hybridnn.comm.recorder import bytes_sent_by_rank


def ring_allgather_bytes(nbytes: int, ranks: int) -> int:
    """Bytes a rank sends when blocks go round a ring: each of p - 1 rounds passes one block on."""
    sent = 0
    for _ in range(ranks - 1):
        sent += nbytes // ranks
    return sent


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 16])
def test_ring_collectives_match_a_round_by_round_count(ranks: int) -> None:
    nbytes = 96 * ranks
    gathered = ring_allgather_bytes(nbytes, ranks)
    assert bytes_sent_by_rank("allgather", nbytes, ranks) == gathered
    # An all-to-all sends each of the others its part at once.
    assert bytes_sent_by_rank("alltoall", nbytes, ranks) == sum(nbytes // ranks for _ in range(ranks - 1))
    # A ring all-reduce is a reduce-scatter and then an all-gather.
    assert bytes_sent_by_rank("allreduce", nbytes, ranks) == 2 * gathered


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_rooted_collectives(ranks: int) -> None:
    part = 40
    assert bytes_sent_by_rank("scatter", part * ranks, ranks, is_root=True) == part * (ranks - 1)
    assert bytes_sent_by_rank("scatter", part * ranks, ranks) == 0
    assert bytes_sent_by_rank("gather", part * ranks, ranks) == part
    assert bytes_sent_by_rank("gather", part * ranks, ranks, is_root=True) == 0
    assert bytes_sent_by_rank("broadcast", part, ranks, is_root=True) == part * (ranks - 1)
    assert bytes_sent_by_rank("broadcast", part, ranks) == 0


def test_a_lonely_rank_sends_nothing() -> None:
    assert bytes_sent_by_rank("allreduce", 10, 1) == 0


def test_unknown_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown operation 'gossip'"):
        bytes_sent_by_rank("gossip", 1, 2)
