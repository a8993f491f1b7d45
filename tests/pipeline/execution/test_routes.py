"""Columns that travel between stages of any widths, against a count over all ranks."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hybridnn.pipeline.execution.point_to_point import StagePosition, pieces_received, pieces_sent

WIDTHS = st.tuples(st.integers(1, 5), st.integers(1, 4))


def block_of(samples: int, parts: int, part: int) -> list[int]:
    """The samples of a part, dealt one by one: the first parts get one more."""
    sizes = [len(range(other, samples, parts)) for other in range(parts)]
    first = sum(sizes[:part])
    return list(range(first, first + sizes[part]))


def ranks_of(stage: int, width: tuple[int, int]) -> list[StagePosition]:
    return [StagePosition(stage, batch, model) for batch in range(width[0]) for model in range(width[1])]


@given(WIDTHS, WIDTHS, st.integers(0, 23))
def test_every_receiver_gets_each_of_its_samples_once_from_a_rank_that_has_it(
    sending: tuple[int, int], receiving: tuple[int, int], samples: int
) -> None:
    widths = [sending, receiving]
    sent = Counter(
        (sender, piece.peer, block_of(samples, sending[0], sender.batch_rank)[column])
        for sender in ranks_of(0, sending)
        for piece in pieces_sent(widths, sender, 1, samples)
        for column in range(piece.start, piece.stop)
    )
    received = Counter(
        (piece.peer, receiver, block_of(samples, receiving[0], receiver.batch_rank)[column])
        for receiver in ranks_of(1, receiving)
        for piece in pieces_received(widths, receiver, 0, samples)
        for column in range(piece.start, piece.stop)
    )
    assert sent == received
    for receiver in ranks_of(1, receiving):
        got = sorted(sample for _, to, sample in received.elements() if to == receiver)
        assert got == block_of(samples, receiving[0], receiver.batch_rank)


@given(WIDTHS, st.integers(1, 23))
def test_stages_of_equal_width_send_whole_blocks_straight_on(width: tuple[int, int], samples: int) -> None:
    for place in ranks_of(0, width):
        pieces = pieces_sent([width, width], place, 1, samples)
        own = len(block_of(samples, width[0], place.batch_rank))
        assert [(piece.peer, piece.start, piece.stop) for piece in pieces] == (
            [(place._replace(stage=1), 0, own)] if own else []
        )
