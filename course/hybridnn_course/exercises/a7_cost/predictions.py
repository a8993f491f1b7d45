"""Predictions of the library with the functions of a student, and without them: the whole runs of A7."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import count, pairwise
from random import Random
from typing import Any

import numpy as np

from hybridnn.cost.calibration.communication import TimedCase
from hybridnn.cost.collectives import ALGORITHMS, CommunicationCounts, Rounds, RoundSequence, counts, rounds_of, shift
from hybridnn.cost.machine import CollectiveCost, Machine, NetworkLink, Segment
from hybridnn.cost.machine_file import read_machine
from hybridnn.cost.plan import plan
from hybridnn.cost.prediction import Workload
from hybridnn.cost.prediction.predict import predict
from hybridnn.nn.mlp import MLP
from hybridnn.pipeline.layout import Layout
from hybridnn_course.answers import Values
from hybridnn_course.assignment import Function, Variant
from hybridnn_course.exercises.a7_cost.calls import slowest_part
from hybridnn_course.injection import injected

# -- fit ---------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _timed_cases() -> tuple[TimedCase, ...]:
    """Messages and all-reduces on 2, 4 and 8 ranks of a made-up machine; every third size is held out of the fit."""
    random = Random(7)
    alpha, beta = 4e-6, 3e-10
    samples = []
    for operation, groups in (("send", (2,)), ("allreduce", (2, 4, 8))):
        for ranks in groups:
            for index in range(12):
                nbytes = round(8 * 4 ** (index * 0.8))
                needed = counts(operation, "direct" if operation == "send" else "ring", nbytes, ranks)
                taken = needed.seconds(alpha, beta) * math.exp(random.gauss(0, 0.05))
                samples.append(TimedCase(operation, ranks, False, nbytes, taken, index % 3 == 1))
    return tuple(samples)


def calibrated() -> Values:
    """The fitted costs of `_timed_cases`, and their errors on the sizes that were held out."""
    from hybridnn.cost.calibration.fit import fit_operations

    found: dict[str, Any] = {}
    for fit in fit_operations(_timed_cases()):
        error = fit.held_out_error()
        assert error is not None
        found[f"{fit.operation} on {fit.cost.ranks} ranks"] = [
            fit.cost.algorithm,
            [[segment.alpha_seconds * 1e6, segment.beta_seconds_per_byte * 1e9] for segment in fit.cost.segments],
            {"mean error on held-out sizes": error.mean, "at most 10 %": error.mean <= 0.1},
        ]
    return found


def calibrated_with(function: Function, variant: Variant) -> Values:
    """The same, fitted with the student's function."""
    from hybridnn.cost.calibration.fit import LinearFit

    def adapted(features: Any, seconds: Any) -> LinearFit:
        rows, measured = np.asarray(features, np.float64), np.asarray(seconds, np.float64)
        found = np.asarray(function(rows.copy(), measured.copy()), np.float64)
        error = float(np.abs(rows @ found / measured - 1).mean())
        return LinearFit(tuple(found.tolist()), error)

    with injected("hybridnn.cost.calibration.fit:fit_linear", adapted, "hybridnn.cost.calibration.computation"):
        return calibrated()


# -- collectives -------------------------------------------------------------------------------------------------------


NUMBERS = count()  # of clusters


def _ring_machine() -> Machine:
    """A cluster whose all-reduce is a ring; another one in every call, as the library keeps the costs of each."""
    segments = (Segment(alpha_seconds=2e-6, beta_seconds_per_byte=1e-10),)
    ring = CollectiveCost(operation="allreduce", ranks=4, algorithm="ring", segments=segments)
    between = ring.model_copy(update={"spans_nodes": True})
    return read_machine("cluster-1024").model_copy(
        update={"name": f"cluster {next(NUMBERS)}", "nodes": 8, "ranks_per_node": 4, "collectives": (ring, between)}
    )


def planned() -> Values:
    """The fastest layouts of 6 and 12 ranks for a network."""
    workload, machine = Workload(MLP([64, 300, 200, 10]), 1438, 100), _ring_machine()
    found: dict[str, Any] = {}
    for ranks in (6, 12):
        options = plan(workload, machine, ranks, 5, {"pipeline": 1}).options
        found[f"{ranks} ranks"] = [option.layout.describe() for option in options]
        found[f"milliseconds on {ranks} ranks"] = [option.seconds_per_step * 1e3 for option in options]
    return found


@contextmanager
def _installed_ring(rounds: Function) -> Iterator[None]:
    """Put a function in the place of the library's ring, in its table of algorithms too."""
    table = ALGORITHMS["allreduce"]
    original = table["ring"]
    table["ring"] = rounds
    rounds_of.cache_clear()
    try:
        with injected("hybridnn.cost.collectives:allreduce_ring", rounds):
            yield
    finally:
        table["ring"] = original
        rounds_of.cache_clear()


def planned_with(function: Function, variant: Variant) -> Values:
    """The same, with the student's counts of the ring."""

    def rounds(nbytes: int, ranks: int) -> RoundSequence:
        messages, sent, reduced = function(nbytes, ranks)
        return (Rounds(shift, 1, CommunicationCounts(float(messages), float(sent), float(reduced))),)

    with _installed_ring(rounds):
        return planned()


OPERATION = {"neighbour exchange": "allgather", "4-nomial tree": "broadcast", "two levels": "allreduce"}


def compared(function: Function, variant: Variant) -> Values:
    """The collective beside the library's algorithms: the fastest one by size and ranks, and its time."""
    operation = OPERATION[variant["collective"]]
    found: dict[str, Any] = {}
    for ranks in (5, 8, 16, 30):
        winners = []
        for power in range(3, 25, 3):
            nbytes = 1 << power
            own = CommunicationCounts(*map(float, function(nbytes, ranks)))
            all_counts = {name: counts(operation, name, nbytes, ranks) for name in ALGORITHMS[operation]} | {"own": own}
            micros = {name: needed.seconds(2e-6, 1e-10, 5e-11) * 1e6 for name, needed in all_counts.items()}
            winners.append([min(micros, key=lambda name: micros[name]), micros["own"]])
        found[f"fastest on {ranks} ranks"] = winners
    return found


# -- cuts --------------------------------------------------------------------------------------------------------------


WIDTHS = (64, 900, 700, 350, 820, 410, 560, 230, 10)


def partitioned(function: Function, variant: Variant) -> Values:
    """Pipelines whose layers the function divides, on nodes with one rank each and a network of 1 Gbit/s."""
    slow = NetworkLink(segments=(Segment(alpha_seconds=3e-5, beta_seconds_per_byte=8e-9),))
    machine = read_machine("cluster-1024").model_copy(update={"nodes": 8, "ranks_per_node": 1, "between_nodes": slow})
    workload, layers = Workload(MLP(list(WIDTHS)), 1438, 128), len(WIDTHS) - 1
    single = predict(workload, Layout.uniform([(1, 1)], layers), machine).seconds_per_step
    weights = [inputs * outputs for inputs, outputs in pairwise(WIDTHS)]
    seconds = [single * weight / sum(weights) for weight in weights]
    sizes = [128 / 8 * width * workload.itemsize for width in WIDTHS[1:-1]]
    boundaries = [2 * 8 * machine.message_seconds(nbytes, spans_nodes=True) for nbytes in sizes]
    found: dict[str, Any] = {}
    for stages in range(2, 6):
        counts = [int(layers) for layers in function(list(seconds), list(boundaries), stages)]
        layout = Layout(((1, 1),) * stages, tuple(counts), method="1f1b", microbatches=8)
        slowest = slowest_part(variant, seconds, boundaries, counts)
        found[f"milliseconds of the slowest part of {stages} stages"] = slowest * 1e3
        found[f"{stages} stages can be predicted"] = predict(workload, layout, machine).seconds_per_step > 0
    return found


# -- grid --------------------------------------------------------------------------------------------------------------


MAP = (
    2,
    (64, 256, 1024, 4096),
    (16, 64, 256, 1024),
    16,
    5e-6,
    4e-10,
)  # layers, widths, minibatches, ranks, alpha, beta


def mapped_with(function: Function, variant: Variant) -> Values:
    """The map of the best grids, with the student's choice."""
    return map_of(function)


def map_of(best: Function) -> Values:
    """``batch``, ``model``, or batch x model ranks, for every width and minibatch of `MAP`."""

    def name(width: int, batch: int) -> str:
        (batch_ranks, model_ranks), _ = best([width] * (layers + 1), batch, ranks, alpha, beta)
        batch_ranks, model_ranks = int(batch_ranks), int(model_ranks)
        return "batch" if model_ranks == 1 else "model" if batch_ranks == 1 else f"{batch_ranks} x {model_ranks}"

    layers, widths, batches, ranks, alpha, beta = MAP
    return {"map": [[name(width, batch) for batch in batches] for width in widths]}
