"""Whether a calibration can be trusted: its errors on what was held out, its noise, and other work on the machine."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import mean

import numpy as np

from hybridnn.comm.grid import ProcessGrid
from hybridnn.cost.calibration.compute import ComputeError
from hybridnn.cost.calibration.fitted import LARGE_BYTES, FittedOperation
from hybridnn.cost.machine.compute import Compute
from hybridnn.cost.machine.quality import Quality

__all__ = ["judge", "other_load"]


def judge(
    fits: Iterable[FittedOperation], errors: Sequence[ComputeError], compute: Iterable[Compute], load: float, ranks: int
) -> Quality:
    """The quality of a calibration.

    Parameters
    ----------
    fits : iterable of FittedOperation
    errors : sequence of ComputeError
    compute : iterable of Compute
    load : float
        Load average of the busiest node before the measurement.
    ranks : int
        Ranks times threads of this job on that node.
    """
    judged = sorted([*_of_communication(fits), *_of_computing(errors)])
    error, what = judged[-1] if judged else (0.0, "nothing was held out")
    noise = max(entry.noise for entry in compute)
    return Quality(held_out_error=error, held_out_of=what, noise=noise, load_average=load, busy_ranks=ranks)


def other_load(grid: ProcessGrid, threads: int) -> tuple[float, int]:
    """Load average of the last minute, and ranks times threads, on the node with most load beside them; collective."""
    own = grid.node_group.size * threads
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    loads = np.zeros((grid.size, 2))
    loads[grid.rank] = load, own
    grid.world.allgather_rows(loads)
    most = max(loads.tolist(), key=lambda pair: pair[0] - pair[1])
    return float(most[0]), int(most[1])


def _of_communication(fits: Iterable[FittedOperation]) -> Iterator[tuple[float, str]]:
    """Mean error on the held-out sizes of 64 KiB and more, or on all where none is so large."""
    for fit in fits:
        error = fit.held_out_error(LARGE_BYTES) or fit.held_out_error()
        if error is not None:
            yield error.mean, f"{fit.operation} among {fit.cost.ranks} ranks"


def _of_computing(errors: Iterable[ComputeError]) -> Iterator[tuple[float, str]]:
    """Mean over the kinds of pass, each weighted by seconds, for every precision and number of busy ranks."""
    kinds: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for error in errors:
        if error.samples:
            kinds[error.dtype, error.busy_ranks].append(error.mean)
    for (dtype, busy), means in kinds.items():
        yield mean(means), f"passes in {dtype} with {busy} busy rank{'s' * (busy > 1)}"
