"""Routes of messages between two stages of any widths: sender, receiver and columns of every piece.

A stage distributes the samples of a microbatch over its batch ranks by the block partition. Two stages with different
numbers of batch ranks distribute them differently, so a block may be sent in several pieces. All ranks of a model group
hold the same columns of a stage's output and of its input gradient; every model rank of the receiving stage receives
from one model rank of the sending stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hybridnn.comm.blocks import block_bounds


class StagePosition(NamedTuple):
    """Coordinates of a rank: its stage, and its batch and model rank within the stage."""

    stage: int
    batch_rank: int
    model_rank: int


class ColumnRoute(NamedTuple):
    """Columns ``start`` to ``stop - 1`` of this rank's block of a microbatch, and the rank at the other end."""

    peer: StagePosition
    start: int
    stop: int


def pieces_sent(
    widths: Sequence[tuple[int, int]], sender: StagePosition, stage: int, samples: int
) -> list[ColumnRoute]:
    """Pieces that `sender` sends to `stage`.

    Parameters
    ----------
    widths : sequence of (int, int)
        Number of batch ranks and of model ranks of every stage.
    samples : int
        Samples of the microbatch, over all ranks.
    """
    receivers = range(sender.model_rank, widths[stage][1], widths[sender.stage][1])
    return [piece for model_rank in receivers for piece in _pieces(widths, sender, stage, model_rank, samples)]


def pieces_received(
    widths: Sequence[tuple[int, int]], receiver: StagePosition, stage: int, samples: int
) -> list[ColumnRoute]:
    """Pieces that `receiver` receives from `stage`; parameters as for `pieces_sent`."""
    return _pieces(widths, receiver, stage, receiver.model_rank % widths[stage][1], samples)


def _pieces(
    widths: Sequence[tuple[int, int]], own: StagePosition, stage: int, model_rank: int, samples: int
) -> list[ColumnRoute]:
    """Intersections of this rank's block with the blocks of the batch ranks of the other stage."""
    first, end = block_bounds(samples, widths[own.stage][0], own.batch_rank)
    pieces = []
    for batch_rank in range(widths[stage][0]):
        other_first, other_end = block_bounds(samples, widths[stage][0], batch_rank)
        start, stop = max(first, other_first), min(end, other_end)
        if start < stop:
            pieces.append(ColumnRoute(StagePosition(stage, batch_rank, model_rank), start - first, stop - first))
    return pieces
