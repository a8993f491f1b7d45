"""Who sends which columns of a microbatch to whom, between two stages of any widths.

A stage deals the samples of a microbatch to its batch ranks by the block partition; two stages of different batch
widths deal them differently, so a block may travel in several pieces. All ranks of a model group hold the same columns
of a stage's output and of its input gradient; each one of the receiving stage is served by one of the sending stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hybridnn.comm.partition import block_bounds


class StagePosition(NamedTuple):
    """Where a rank stands."""

    stage: int
    batch_rank: int
    model_rank: int


class ColumnRoute(NamedTuple):
    """Columns of this rank's block of a microbatch, and the other end of their way.

    Attributes
    ----------
    peer : Place
    start, stop : int
        Columns within this rank's block.
    """

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
        Batch and model ranks of every stage.
    sender : Place
    stage : int
        The receiving stage.
    samples : int
        Samples of the microbatch, over all ranks.
    """
    served = range(sender.model_rank, widths[stage][1], widths[sender.stage][1])
    return [piece for model_rank in served for piece in _pieces(widths, sender, stage, model_rank, samples)]


def pieces_received(
    widths: Sequence[tuple[int, int]], receiver: StagePosition, stage: int, samples: int
) -> list[ColumnRoute]:
    """Pieces that `receiver` gets from `stage`; parameters as for `pieces_sent`."""
    return _pieces(widths, receiver, stage, receiver.model_rank % widths[stage][1], samples)


def _pieces(
    widths: Sequence[tuple[int, int]], mine: StagePosition, stage: int, model_rank: int, samples: int
) -> list[ColumnRoute]:
    """The columns of this rank's block that each batch rank of the other stage has too."""
    first, end = block_bounds(samples, widths[mine.stage][0], mine.batch_rank)
    pieces = []
    for batch_rank in range(widths[stage][0]):
        other_first, other_end = block_bounds(samples, widths[stage][0], batch_rank)
        start, stop = max(first, other_first), min(end, other_end)
        if start < stop:
            pieces.append(ColumnRoute(StagePosition(stage, batch_rank, model_rank), start - first, stop - first))
    return pieces
