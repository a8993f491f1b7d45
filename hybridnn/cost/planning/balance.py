"""Balanced partition: layers assigned to stages by their times on a machine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil

from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.prediction.groups import Groups
from hybridnn.cost.prediction.layer_costs import ChunkCosts
from hybridnn.cost.prediction.workload import Workload
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.partition.stage_partition import balanced_counts


def balanced_layers(
    workload: Workload,
    machine: Machine,
    stages: Sequence[tuple[int, int]],
    *,
    chunks: int = 1,
    microbatches: int = 1,
) -> tuple[int, ...]:
    """Layers of every virtual stage for which the slowest stage, or boundary between two, is as fast as possible.

    The cost of a layer is that of its passes with a microbatch, split by its outputs over the model ranks of its stage.

    Parameters
    ----------
    stages : sequence of (int, int)
        Batch and model ranks of every stage; the stages times the chunks are at most the layers.
    chunks : int
        Virtual stages of every stage.
    microbatches : int
        Microbatches of a minibatch: the smaller they are, the more calls count beside arithmetic.
    """
    layers = workload.model.layers
    groups = Groups(Layout.uniform(stages, len(layers)), machine)
    samples = ceil(workload.batch_size / microbatches)
    running_sums = {
        (batch, model): _running_sums(workload, machine, groups, stage, ceil(samples / batch))
        for stage, (batch, model) in enumerate(stages)
        if (batch, model) not in stages[:stage]
    }

    def seconds(virtual_stage: int, first: int, end: int) -> float:
        sums = running_sums[stages[virtual_stage % len(stages)]]
        return sums[end] - sums[first]

    # Which boundary lies between nodes is not known before the partition: all cost as much as the slowest.
    flows_of_boundaries = {groups.flows(stage, stage + 1) for stage in range(len(stages) - 1)}
    sizes = [layer.outputs * samples * workload.itemsize for layer in layers[:-1]]
    boundaries = [2 * max(groups.message_seconds(nbytes, flows) for flows in flows_of_boundaries) for nbytes in sizes]
    return balanced_counts(seconds, boundaries, len(stages) * chunks)


def _running_sums(workload: Workload, machine: Machine, groups: Groups, stage: int, samples: int) -> list[float]:
    """Seconds of the passes through the first 0, 1, … layers on a stage."""
    compute = machine.compute_for(workload.dtype, groups.busy_ranks)

    def passes(index: int) -> float:
        layer = workload.model.layers[index : index + 1]
        costs = ChunkCosts(layer, "columns", stage, compute, groups, workload.itemsize, machine.overlap)
        return (costs.forward(samples) + costs.backward(samples, accumulate=False)).total

    return list(accumulate(map(passes, range(len(workload.model.layers))), initial=0.0))
