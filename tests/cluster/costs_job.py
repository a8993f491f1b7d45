"""Ranks of the tests of costs: what a calibration finds between nodes, and the clock of layouts beside predictions."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.comm.mpi import import_mpi
from hybridnn.cost.calibration.communication import measure_communication
from hybridnn.cost.calibration.fit import LARGE_BYTES, FittedOperation, fit_operations
from hybridnn.cost.machine import ActivationCost, Compute, ElementCost, Machine, NetworkLink, PassCost
from hybridnn.cost.prediction.predict import predict
from hybridnn.cost.prediction.workload import Workload
from hybridnn.training.config import Pipelining

FREE = ElementCost(number_seconds=0.0)
PRODUCTS = PassCost(multiply_add_seconds=1e-10)
FAST = Compute(
    dtype="float32",
    forward=PRODUCTS,
    input_gradient=PRODUCTS,
    weight_gradient=PRODUCTS,
    activations={"relu": ActivationCost(forward=FREE, gradient=FREE)},
    losses={"mse": FREE},
    load=FREE,
    packing=FREE,
    updates={"sgd": FREE},
)
"""Computing, which is a hundredth of the time of a step on the slow links of these tests."""

MODEL, BATCH_SIZE, STEPS, ROUNDS = MLP([64, 192, 192, 192, 10], "relu"), 48, 3, 3
LAYOUTS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "batch": ({"batch": 4}, {"shared_replicas": False, "overlap": False}),
    "batch, bfloat16": ({"batch": 4}, {"shared_replicas": False, "overlap": False, "wire_dtype": "bfloat16"}),
    "model by columns": ({"batch": 1, "model": 4}, {"overlap": False}),
    "model alternating": ({"batch": 1, "model": 4}, {"overlap": False, "model_split": "alternating"}),
    "grid": ({"batch": 2, "model": 2}, {"overlap": False}),
    "gpipe": ({"pipeline": 4, "batch": 1}, {"pipelining": Pipelining("gpipe", microbatches=4)}),
    "1f1b": ({"pipeline": 2, "batch": 2}, {"pipelining": Pipelining("1f1b", microbatches=4), "overlap": False}),
}


def link_found(seconds: float) -> dict[str, float]:
    """Beta of large messages between nodes, and the mean error on large sizes that were held out."""
    send = _send(fit_operations(measure_communication(ProcessGrid(), seconds, 0)))
    error = send.held_out_error(LARGE_BYTES)
    assert error is not None
    return {"beta": send.cost.segments[-1].beta_seconds_per_byte, "held_out_error": error.mean}


def _send(fits: Sequence[FittedOperation]) -> FittedOperation:
    return next(fit for fit in fits if fit.operation == "send" and fit.cost.spans_nodes)


def measured_and_predicted(seconds: float) -> dict[str, tuple[float, float]]:
    """Median seconds of a step of every layout, measured, and predicted after calibrating the links alone."""
    fits = fit_operations(measure_communication(ProcessGrid(), seconds, 0))
    link = NetworkLink(segments=_send(fits).cost.segments)
    machine = Machine(
        name="nodes of one rank",
        nodes=4,
        ranks_per_node=1,
        memory_bytes_per_rank=1e9,
        inside_node=link,
        between_nodes=link,
        collectives=tuple(fit.cost for fit in fits if fit.operation not in ("send", "iallreduce")),
        compute=(FAST,),
    )
    machine = Machine.model_validate_json(import_mpi().COMM_WORLD.bcast(machine.model_dump_json()))
    return {name: _one(machine, axes, settings) for name, (axes, settings) in LAYOUTS.items()}


def _one(machine: Machine, axes: dict[str, int], settings: dict[str, Any]) -> tuple[float, float]:
    grid = ProcessGrid(**axes)
    trainer = Trainer(MODEL, SGD(lr=1e-6), grid=grid, batch_size=BATCH_SIZE, **settings)
    samples = STEPS * BATCH_SIZE
    x, y = (np.zeros((samples, size), np.float32) for size in (MODEL.sizes[0], MODEL.sizes[-1]))
    # The first epoch opens connections.
    measured = [samples / trainer.fit(x, y, epochs=1).epochs[-1].samples_per_second for _ in range(ROUNDS + 1)][1:]
    workload = Workload(MODEL, samples, BATCH_SIZE, classification=False)
    predicted = predict(workload, trainer.layout, machine).seconds_per_epoch
    trainer.free()
    return median(measured) / STEPS, predicted / STEPS


if __name__ == "__main__":
    what, seconds = sys.argv[1:]
    action = {"link": link_found, "layouts": measured_and_predicted}[what]
    result = action(float(seconds))
    if import_mpi().COMM_WORLD.Get_rank() == 0:
        print(json.dumps(result))
