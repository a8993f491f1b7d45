"""Ranks of the tests of costs: what a calibration finds between nodes, without the time that it spends on computing.

They print what ``hybridnn calibrate --format json`` prints of communication.
"""

from __future__ import annotations

import json
import sys

from hybridnn import ProcessGrid
from hybridnn.comm.mpi import import_mpi
from hybridnn.cost.calibration.communication import measure_communication
from hybridnn.cost.calibration.fit import LARGE_BYTES, FittedOperation, fit_operations


def facts(fit: FittedOperation) -> dict[str, object]:
    """Coefficients of an operation, and its mean error on large sizes that were held out."""
    error = fit.held_out_error(LARGE_BYTES)
    return {
        "operation": fit.operation,
        "spans_nodes": fit.cost.spans_nodes,
        "segments": [segment.model_dump() for segment in fit.cost.segments],
        "held_out_error_from_64_kib": error and {"mean": error.mean},
    }


if __name__ == "__main__":
    fits = fit_operations(measure_communication(ProcessGrid(), float(sys.argv[1]), 0))
    if import_mpi().COMM_WORLD.Get_rank() == 0:
        print(json.dumps({"communication": [facts(fit) for fit in fits]}))
