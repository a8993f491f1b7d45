"""Calibration of steps of several ranks: how they differ from their parts, measured one by one.

In loops of their own, passes and messages find in the caches what they need, and the other rank of a message stands
ready. In a step they follow one another. So steps of random networks are timed in several layouts. The computing in
them corrects that of the parts; then two corrections are fitted to the whole steps: a rank that waits for a message of
another stage loses more than one that meets the others in a collective. Links between nodes keep what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log
from time import perf_counter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from hybridnn.cost.calibration.communication import before
from hybridnn.cost.calibration.computation import LEAST_ROWS, StepCase, StepSample, StepTimer, draw_shape, in_steps
from hybridnn.cost.machine import CollectiveCost, Machine, NetworkLink
from hybridnn.cost.prediction import UPDATE_RULES
from hybridnn.cost.prediction.predict import epoch_seconds
from hybridnn.nn.mlp import MLP
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.layout import Layout

DTYPE = "float32"
MOST_MULTIPLY_ADDS = 8e8  # of a timed step
MICROBATCHES = 4
MOST_RANKS_WITH_SHARES = 64  # of every layer and minibatch; of more ranks, some have empty shares
LEAST_STEPS = 12
OUTLIER = 0.1  # relative error from which on a step counts less: it may have been disturbed
FACTORS = (0.5, 5.0)  # bounds of the corrections

Costs = TypeVar("Costs", NetworkLink, CollectiveCost)


def layouts(ranks: int, layers: int, node_ranks: int) -> Iterator[Layout]:
    """Layouts of all ranks whose steps are timed; pipelines of so many stages need as many layers."""
    batch = Layout(((ranks, 1),), (layers,), overlap=False, merges=True, node_ranks=node_ranks)
    yield batch
    yield replace(batch, stages=((1, ranks),))
    yield replace(batch, shared_replicas=True)
    if layers >= ranks:
        stages = replace(Layout.uniform(((1, 1),) * ranks, layers), overlap=False, merges=True, node_ranks=node_ranks)
        yield replace(stages, method="gpipe", microbatches=MICROBATCHES)
        yield replace(stages, method="pipedream")
        yield replace(stages, method="1f1b", microbatches=MICROBATCHES)


def measure_whole_steps(grid: ProcessGrid, seconds: float, seed: int, time_step: StepTimer) -> list[StepSample]:
    """Time steps of random networks on all ranks in so many seconds; collective, with the same result on every rank."""
    generator = np.random.default_rng([seed, grid.size])
    found: list[StepSample] = []
    least = min(grid.size, MOST_RANKS_WITH_SHARES)
    end = perf_counter() + seconds
    while len(found) < LEAST_STEPS or before(end, grid.world):
        sizes, batch_size = draw_shape(generator, MOST_MULTIPLY_ADDS, least, max(LEAST_ROWS * MICROBATCHES, least))
        number = len(found)
        choices = tuple(layouts(grid.size, len(sizes) - 1, grid.node_ranks))
        layout, optimizer = choices[number % len(choices)], tuple(UPDATE_RULES)[number % len(UPDATE_RULES)]
        case = StepCase(MLP(sizes, "relu"), batch_size, layout, DTYPE, optimizer, number % 2 == 0)
        found.append((case, time_step(case)))
    return found


def correct(machine: Machine, samples: Sequence[StepSample]) -> Machine:
    """The machine with the costs that its parts have in the measured steps, and a note on what differs.

    Computing in float32 while several ranks are busy is corrected by `in_steps`. Then the steps determine factors on
    alpha and beta of all messages, and of all collectives, inside a node.
    """
    compute = [
        in_steps(entry, samples, machine) if entry.busy_ranks > 1 and entry.dtype == DTYPE else entry
        for entry in machine.compute
    ]
    machine = machine.model_copy(update={"compute": tuple(compute)})

    def errors(values: NDArray[np.float64]) -> list[float]:
        changed, found = slower(machine, *values), []
        for case, time in samples:
            workload = replace(case.workload, samples=time.steps * case.batch_size)
            found.append(log(epoch_seconds(workload, case.layout, changed) / (time.steps * time.seconds)))
        return found

    fitted = least_squares(errors, (1.0, 1.0), bounds=FACTORS, loss="soft_l1", f_scale=OUTLIER, diff_step=1e-2)
    messages, collectives = fitted.x.tolist()
    note = f"messages x {messages:.2f}, collectives x {collectives:.2f}, from {len(samples)} steps"
    return slower(machine, messages, collectives).model_copy(update={"about": {**machine.about, "in_steps": note}})


def slower(machine: Machine, messages: float, collectives: float) -> Machine:
    """The machine with alpha and beta of messages and of collectives inside a node times these factors."""

    def costs(known: Costs, factor: float) -> Costs:
        segments = []
        for segment in known.segments:
            alpha, beta = segment.alpha_seconds * factor, segment.beta_seconds_per_byte * factor
            segments.append(segment.model_copy(update={"alpha_seconds": alpha, "beta_seconds_per_byte": beta}))
        return known.model_copy(update={"segments": tuple(segments)})

    changed = {
        "inside_node": costs(machine.inside_node, messages),
        "collectives": tuple(costs(known, 1.0 if known.spans_nodes else collectives) for known in machine.collectives),
    }
    return machine.model_copy(update=changed)
