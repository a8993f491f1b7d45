"""Pipeline plan: stages, method, microbatches and partition of a model, resolved from its configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil

import numpy as np

from hybridnn.comm.agreement import agree
from hybridnn.errors import SettingError
from hybridnn.nn.mlp import MLP, DenseLayer
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.checks.lint import lint
from hybridnn.pipeline.partition.layer_profile import time_layers
from hybridnn.pipeline.partition.stage_partition import (
    PARTITIONS,
    TYPICAL_LINK,
    balanced_counts,
    check_partition,
    check_stages,
    uniform_partition,
)
from hybridnn.pipeline.schedules.methods import METHODS, Method, forward_only, make_schedule, too_few_stages
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.training.config import Pipelining, TrainConfig
from hybridnn.utils.checks import require_choice, require_whole


def overlaps(setting: bool | str, *, spans_nodes: bool, on_host: bool = True) -> bool:
    """Whether communication overlaps with the backward pass.

    Parameters
    ----------
    setting : bool or "auto"
        ``"auto"``: overlap if the messages do not need the cores that compute, that is with a network between nodes or
        a GPU. Within a node the computing cores copy the messages, so that overlap gains nothing, and non-blocking
        collectives use slower algorithms (``benchmarks/batch_parallel.py``).
    spans_nodes : bool
        Whether the ranks are on several nodes.
    on_host : bool
        Whether the CPU trains.
    """
    if isinstance(setting, bool):
        return setting
    return spans_nodes or not on_host


WEIGHT_GRADS = ("auto", "merged", "per-microbatch")

MICROBATCHES_PER_STAGE = 4
"""Default number of microbatches per stage: enough for a small bubble in a flushed pipeline."""


@dataclass(frozen=True)
class PipelinePlan:
    """The resolved settings of a pipeline.

    Attributes
    ----------
    merges : bool
        Whether weight gradients are one product over all microbatches.
    layers : tuple of int
        Number of layers of every virtual stage, in the order of the network.
    """

    method: Method
    stages: int
    chunks: int
    microbatches: int
    merges: bool
    vertical_sync: bool
    synchronous_sends: bool
    layers: tuple[int, ...]

    @property
    def exact(self) -> bool:
        """Whether every minibatch is complete before the next begins."""
        return self.method.exact or self.stages == 1

    @property
    def label(self) -> str:
        """The method with its options, for messages."""
        return self.method.name + " with vertical sync" * self.vertical_sync

    def training(self, minibatches: int) -> Schedule:
        """Training schedule of `minibatches` minibatches."""
        return make_schedule(
            self.method.name,
            stages=self.stages,
            minibatches=minibatches,
            microbatches=self.microbatches,
            chunks=self.chunks,
            weight_grad="merged" if self.merges else "per-microbatch",
            vertical_sync=self.vertical_sync,
        )

    def evaluation(self, minibatches: int) -> Schedule:
        """Schedule of forward passes only."""
        return forward_only(self.stages, minibatches, self.chunks)

    def largest_schedules(self) -> tuple[Schedule, Schedule]:
        """Linted schedules of training and of evaluation, long enough to need as much memory as any longer one."""
        full = 2 * self.stages
        pair = self.training(1 if self.exact else full), self.evaluation(full)
        for schedule in pair:
            lint(schedule)
        return pair

    def layers_of(self, model: MLP, stage: int) -> list[tuple[DenseLayer, ...]]:
        """The layers of each chunk of a stage."""
        ends = list(accumulate(self.layers, initial=0))
        virtual = range(stage, self.stages * self.chunks, self.stages)
        return [model.layers[ends[index] : ends[index + 1]] for index in virtual]


def plan_pipeline(config: TrainConfig, stages: int) -> PipelinePlan:
    """Resolve the defaults of a pipeline's configuration and check its settings.

    With a single stage, every exact method becomes ``sequential`` with one microbatch, and other methods are refused.
    A ``profile`` partition is uniform here, because it requires timing the layers.

    Raises
    ------
    SettingError
        A setting is not allowed, or conflicts with another.
    """
    pipelining, layers = config.pipelining, len(config.model.layers)
    require_choice("parallel.weight_grad", pipelining.weight_grad, WEIGHT_GRADS)
    if isinstance(pipelining.partition, str):
        require_choice("parallel.partition", pipelining.partition, PARTITIONS)
    chunks = _chunks(pipelining)
    microbatches = _microbatches(pipelining, stages, config.batch_size)
    merges = pipelining.weight_grad == "merged"
    schedule = make_schedule(  # checks the settings against the method
        pipelining.method,
        stages=stages,
        minibatches=1,
        microbatches=microbatches,
        chunks=chunks,
        weight_grad="merged" if merges else "per-microbatch",
        vertical_sync=pipelining.vertical_sync,
        messages=False,
    )
    method = METHODS[schedule.method]
    _require_compatible(method, stages, config)
    _require_layers(layers, stages, schedule.chunks)
    if stages == 1 and not method.exact:
        raise too_few_stages(method.name)
    if stages == 1:
        method, chunks, microbatches = METHODS["sequential"], 1, 1
    plan = PipelinePlan(
        method,
        stages,
        chunks,
        microbatches,
        merges=(merges or pipelining.weight_grad == "auto") and not method.placed_weight_gradients,
        vertical_sync=pipelining.vertical_sync and stages > 1,
        synchronous_sends=pipelining.synchronous_sends,
        layers=uniform_partition(layers, stages * chunks),
    )
    if isinstance(pipelining.partition, str):
        return plan
    counts = tuple(pipelining.partition)
    check_partition(counts, layers, stages * chunks)
    return replace(plan, layers=counts)


def _require_layers(layers: int, stages: int, chunks: int) -> None:
    check_stages(layers, stages)
    if stages * chunks > layers:
        raise SettingError(
            "parallel.chunks", chunks, f"{stages} stages of so many need {stages * chunks} layers or more"
        )


def _chunks(pipelining: Pipelining) -> int:
    if pipelining.chunks is not None:
        require_whole("parallel.chunks", pipelining.chunks, 1)
        return pipelining.chunks
    method = METHODS.get(pipelining.method)
    return 2 if method is not None and method.chunked else 1


def _microbatches(pipelining: Pipelining, stages: int, batch_size: int) -> int:
    if pipelining.microbatches is not None:
        require_whole("parallel.microbatches", pipelining.microbatches, 1)
        return pipelining.microbatches
    method = METHODS.get(pipelining.method)
    if method is None or not method.cuts_minibatches:
        return 1
    # Interleaved schedules need a multiple of the number of stages.
    return stages * max(1, min(MICROBATCHES_PER_STAGE, batch_size // stages))


def _require_compatible(method: Method, stages: int, config: TrainConfig) -> None:
    if method.predicts and not config.optimizer.slot_names:
        raise SettingError("optimizer.momentum", 0.0, f"above 0 with {method.name}, which predicts weights from it")
    if stages == 1:
        return
    if config.clip_norm is not None and not method.exact:
        exact = ", ".join(name for name, other in METHODS.items() if other.exact)
        why = "has a minibatch's global norm only after its last stage has updated; methods that clip"
        raise SettingError("training.clip_norm", config.clip_norm, f"{method.name} {why}: {exact}")
    if config.distribution != "local":
        raise SettingError(
            "data.distribution", config.distribution, "local with a pipeline: its first and last stage read"
        )


def resolve_pipeline(config: TrainConfig, grid: ProcessGrid) -> PipelinePlan:
    """Plan the pipeline, equally on all ranks, including a ``profile`` partition; collective.

    All message sizes follow from the plan, so messages need no headers.

    Raises
    ------
    SettingError
        On every rank: a setting is not allowed.
    """
    plan = agree(grid.world, lambda: plan_pipeline(config, grid.pipeline))
    return plan if config.pipelining.partition != "profile" else _with_profiled_layers(plan, config, grid)


def _with_profiled_layers(plan: PipelinePlan, config: TrainConfig, grid: ProcessGrid) -> PipelinePlan:
    """Partition the layers to minimize the time of the slowest stage or message, measured on rank 0; collective.

    The layers of a stage are timed with one rank's share of a microbatch, and the time is divided by the number of its
    model ranks. Messages are assigned the typical times inside a node.
    """
    model, dtype = config.model, np.dtype(config.dtype)
    samples = ceil(config.batch_size / plan.microbatches)

    def measure() -> tuple[int, ...]:
        profiles = {batch: time_layers(model, ceil(samples / batch), dtype) for batch in {b for b, _ in grid.stages}}

        def seconds(virtual_stage: int, first: int, end: int) -> float:
            batch, model_ranks = grid.stages[virtual_stage % plan.stages]
            layers = profiles[batch][first:end]
            return sum(layer.forward_seconds + layer.backward_seconds for layer in layers) / model_ranks

        sizes = [layer.outputs * samples * dtype.itemsize for layer in model.layers[:-1]]
        return balanced_counts(seconds, [2 * TYPICAL_LINK.message_seconds(size) for size in sizes], len(plan.layers))

    counts = agree(grid.world, lambda: measure() if grid.rank == 0 else plan.layers)
    partition = np.array(counts, np.int64)
    grid.world.broadcast(partition)
    return replace(plan, layers=tuple(partition.tolist()))
