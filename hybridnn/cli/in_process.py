"""`--in-process`: all ranks of a command in this process, without an MPI library."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from hybridnn.cli.ranks import launch_rank
from hybridnn.errors import SettingError

Result = TypeVar("Result")

InProcess = Annotated[
    int | None,
    typer.Option(
        "--in-process",
        help="All ranks in this process, one at a time, without MPI: repeatable to the bit, for learning and "
        "debugging. What would deadlock ends with the reason.",
        metavar="N",
        show_default=False,
    ),
]


def require_one_way(ranks: int | None, in_process: int | None) -> None:
    """Refuse ranks that are to be started in two ways, or under a launcher that has started some.

    Parameters
    ----------
    ranks, in_process : int or None
        Values of ``-n`` and ``--in-process``.

    Raises
    ------
    SettingError
    """
    if in_process is None:
        return
    if ranks is not None:
        raise SettingError("--in-process", in_process, f"not together with -n {ranks}: both start the ranks")
    if launch_rank() is not None:
        from hybridnn.comm.launcher import detect_launch

        launch = detect_launch(os.environ)
        if launch is None or launch.ranks > 1:
            by = "a launcher" if launch is None else launch.launcher
            raise SettingError("--in-process", in_process, f"not under {by}, which has started the ranks")


def on_ranks(in_process: int | None, action: Callable[[], Result]) -> Result:
    """Carry out `action` on every rank: on this one where the ranks are processes, else on all, in this process.

    Parameters
    ----------
    in_process : int or None
        Ranks of this process; None where each rank is a process.
    action : callable
        The same for all ranks; collective.

    Returns
    -------
    object
        Of this rank, or of the first one of this process.

    Raises
    ------
    SettingError
        If there can be no such number of ranks.
    CommunicationError
        When no rank can go on, or their calls do not fit.
    Exception
        What `action` raises on a rank.
    """
    if in_process is None:
        return action()
    from hybridnn.in_process.run import MOST_RANKS, run_ranks

    if not 1 <= in_process <= MOST_RANKS:
        raise SettingError("--in-process", in_process, f"a whole number from 1 to {MOST_RANKS:,}")
    result: Result = run_ranks(in_process, lambda comm: action()).results[0]
    return result
