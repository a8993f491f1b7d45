"""Errors and output of a command on several ranks: rank 0 prints, and all ranks exit together."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

import typer

from hybridnn.comm.launcher import INTERACTIVE_STEP, RANK_VARIABLES, STEP_RANK, STEP_SIZE
from hybridnn.diagnostics.failsafe import all_ranks_arrive, lower_rank_reports, notify_higher_ranks, running_world
from hybridnn.errors import EnvironmentProblem, HybridnnError

LEAD_SECONDS = 0.5
"""Delay of the other processes before they exit: a launcher may end the job before rank 0 has printed."""

DEADLINE = 5.0
"""Seconds that a rank waits for the others to reach the same error."""


def launch_rank() -> int | None:
    """Rank of this process as its launcher numbered it; None without a launcher. Loads nothing."""
    # Slurm numbers the batch script itself too, and the shell of `srun --pty`; only a step has several tasks.
    by_srun = os.environ.get(STEP_SIZE, "1") != "1" and os.environ.get("SLURM_STEP_ID") != INTERACTIVE_STEP
    names = (*RANK_VARIABLES, STEP_RANK) if by_srun else RANK_VARIABLES
    for name in names:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return None


class FirstRankError(HybridnnError):
    """An error of a command that runs on rank 0 alone."""

    def __init__(self, error: HybridnnError) -> None:
        super().__init__(str(error))
        self.exit_code = error.exit_code


@contextlib.contextmanager
def first_rank_alone() -> Iterator[None]:
    """Run the block on rank 0 alone: the other ranks exit, so that an error of rank 0 does not wait for them."""
    if launch_rank() not in (None, 0):
        raise typer.Exit()
    try:
        yield
    except HybridnnError as error:
        raise FirstRankError(error) from error


def leave(message: str, exit_code: int, *, together: bool = True) -> NoReturn:
    """Print one error line on rank 0 and exit on every rank.

    The ranks exit together, because mpirun ends a job at the first rank that fails, perhaps before rank 0 has printed.
    An error that not all ranks have ends the job after `DEADLINE`, with the line of the lowest rank that has it.

    Parameters
    ----------
    together : bool
        False where the other ranks have exited: rank 0 prints and exits at once.
    """
    if not together:
        print(f"Error: {message}", file=sys.stderr, flush=True)
        sys.exit(exit_code)
    _start_mpi_under_a_launcher()
    world = running_world()
    if world is None and launch_rank() not in (None, 0):
        time.sleep(LEAD_SECONDS)  # without MPI the process with number 0 prints for all
        sys.exit(exit_code)
    if world is None or world.Get_rank() == 0:
        print(f"Error: {message}", file=sys.stderr, flush=True)
        notify_higher_ranks()
    if not all_ranks_arrive(DEADLINE):
        if world.Get_rank() != 0:
            notify_higher_ranks()
            if lower_rank_reports(LEAD_SECONDS):
                time.sleep(DEADLINE)  # that rank prints, and ends the job
            else:
                print(f"Error on rank {world.Get_rank()}: {message}", file=sys.stderr, flush=True)
        time.sleep(LEAD_SECONDS)  # for the launcher to forward the line
        world.Abort(exit_code)
    sys.exit(exit_code)


def _start_mpi_under_a_launcher() -> None:
    """Load MPI where several ranks may have met the same error before any of them needed it."""
    if launch_rank() is not None:
        from hybridnn.comm.mpi import import_mpi

        # Without an MPI library every process exits by itself.
        with contextlib.suppress(EnvironmentProblem):
            import_mpi()
