"""Ranks of the tests of costs: what a calibration finds between nodes."""

from __future__ import annotations

import json
import sys

from hybridnn import ProcessGrid
from hybridnn.comm.mpi import import_mpi
from hybridnn.cost.calibration.communication import measure_communication
from hybridnn.cost.calibration.fit import LARGE_BYTES, fit_operations


def link_found(seconds: float) -> dict[str, float]:
    """Beta of large messages between nodes, and the mean error on large sizes that were held out."""
    fits = fit_operations(measure_communication(ProcessGrid(), seconds, 0))
    send = next(fit for fit in fits if fit.operation == "send" and fit.cost.spans_nodes)
    error = send.held_out_error(LARGE_BYTES)
    assert error is not None
    return {"beta": send.cost.segments[-1].beta_seconds_per_byte, "held_out_error": error.mean}


if __name__ == "__main__":
    result = link_found(float(sys.argv[1]))
    if import_mpi().COMM_WORLD.Get_rank() == 0:
        print(json.dumps(result))
