"""What a user hears of lost ranks, and how a process ends after a loss."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from hybridnn.runs.recovery import RankLoss, RunOutcome


def announce_loss(loss: RankLoss) -> None:
    """Say, on the first rank that is left, that the run goes on; from now on it is this rank that speaks."""
    from hybridnn.utils.text import name_ranks

    if loss.is_first:
        sys.stdout = sys.__stdout__
        gone = f"{name_ranks(loss.lost)} {'was' if len(loss.lost) == 1 else 'were'} lost"
        print(
            f"{gone}; {loss.remaining} go on" if loss.remaining > 1 else f"{gone}; one goes on",
            file=sys.stderr,
            flush=True,
        )


def leave_after_loss(ended: RunOutcome) -> NoReturn:
    """End this process; its last line is the error that ended the run, if one did."""
    from hybridnn.diagnostics.lost_ranks import exit_without_mpi

    if ended.error is not None and ended.loss is not None and ended.loss.is_first:
        print(f"Error: {ended.error}", file=sys.stderr)
    exit_without_mpi(ended.exit_code)
