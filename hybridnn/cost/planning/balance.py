"""Layers dealt out to stages by the times that a machine takes for them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil

from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.prediction.groups import Groups
from hybridnn.cost.prediction.layer_costs import ChunkCosts
from hybridnn.cost.prediction.workload import Workload, uniform_layout
from hybridnn.pipeline.partition.stage_partition import balanced_counts


def balanced_layers(
    workload: Workload,
    machine: Machine,
    stages: Sequence[tuple[int, int]],
    *,
    chunks: int = 1,
    microbatches: int = 1,
) -> tuple[int, ...]:
    """Layers of every virtual stage that make the slowest stage, or boundary between two, as fast as possible.

    A layer costs its passes with a microbatch, split by its outputs over the model ranks of its stage.

    Parameters
    ----------
    workload : Workload
    machine : Machine
    stages : sequence of (int, int)
        Batch and model ranks of every stage.
    chunks : int
        Parts of the layers on every rank.
    microbatches : int
        Parts of a minibatch: the smaller they are, the more do calls count beside arithmetic.

    Returns
    -------
    tuple of int
        At most as many parts as there are layers, which is for the caller to see to.
    """
    layers = workload.model.layers
    groups = Groups(uniform_layout(stages, len(layers)), machine)
    samples = ceil(workload.batch_size / microbatches)
    sums = {
        (batch, model): _running_sums(workload, machine, groups, stage, model, ceil(samples / batch))
        for stage, (batch, model) in enumerate(stages)
        if (batch, model) not in stages[:stage]
    }

    def seconds(place: int, first: int, end: int) -> float:
        sum_to = sums[stages[place % len(stages)]]
        return sum_to[end] - sum_to[first]

    # Where some borders lie between nodes, every one is taken for the slowest: layers are not yet dealt out to them.
    ways = {groups.flows(stage, stage + 1) for stage in range(len(stages) - 1)}
    sizes = [layer.outputs * samples * workload.itemsize for layer in layers[:-1]]
    boundaries = [2 * max(groups.message_by(nbytes, flows) for flows in ways) for nbytes in sizes]
    return balanced_counts(seconds, boundaries, len(stages) * chunks)


def _running_sums(
    workload: Workload, machine: Machine, groups: Groups, stage: int, model: int, samples: int
) -> list[float]:
    """Seconds of the passes through the first 0, 1, … layers on a stage."""
    compute = machine.compute_for(workload.dtype, groups.busy_ranks)

    def passes(index: int) -> float:
        layer = workload.model.layers[index : index + 1]
        costs = ChunkCosts.of(layer, "columns", stage, model, compute, groups, workload.itemsize, machine.overlap)
        return (costs.forward(samples) + costs.backward(samples, accumulate=False)).total

    return list(accumulate(map(passes, range(len(workload.model.layers))), initial=0.0))
