"""Workloads and layouts: what is trained, and how the ranks share the work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from math import ceil, prod
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.blocks import block_size
from hybridnn.kernels.compressed_formats import CompressedFormat
from hybridnn.nn.mlp import MLP, DenseLayer
from hybridnn.parallel.placement import place_ranks
from hybridnn.parallel.replicas.fused_update import fused_update_pays
from hybridnn.pipeline.schedules.methods import METHODS, make_schedule
from hybridnn.pipeline.schedules.orders import features_replay
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.utils.text import counted

StageShapes = tuple[tuple[int, int], ...]
"""Batch and model ranks of every stage."""

Placement = tuple[int, ...]
"""Ranks of a batch group on each of its nodes."""

OPTIMIZER_SLOTS: Mapping[str, int] = MappingProxyType({"sgd": 0, "momentum": 1, "adam": 2})
"""Arrays of the parameters' size that each optimizer keeps."""


@dataclass(frozen=True)
class Workload:
    """A training run, independent of its layout.

    Attributes
    ----------
    samples : int
        Training samples of an epoch.
    batch_size : int
        Samples of a minibatch, over all ranks.
    dtype : {"float32", "float64"}
    optimizer : {"sgd", "momentum", "adam"}
        ``sgd`` is without momentum; ``adam`` includes ``adamw``.
    classification : bool
        Whether targets are labels.
    clips : bool
        Whether gradients are clipped to a norm.
    distribution : {"local", "scatter", "scatter-broadcast"}
        How minibatches are distributed to the ranks; the last two only without a pipeline.
    rereads_gradient : bool
        Whether SGD reads a gradient more than once: with weight decay, or with Nesterov momentum.
    """

    model: MLP
    samples: int
    batch_size: int
    dtype: str = "float32"
    optimizer: str = "momentum"
    classification: bool = True
    clips: bool = False
    distribution: str = "local"
    rereads_gradient: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return 4 if self.dtype == "float32" else 8

    @property
    def slots(self) -> int:
        """Arrays of the optimizer."""
        return OPTIMIZER_SLOTS[self.optimizer]

    @property
    def steps_per_epoch(self) -> int:
        """Minibatches of an epoch."""
        return ceil(self.samples / self.batch_size)


@dataclass(frozen=True)
class GradientRounding:
    """Rounding of gradients that are all-reduced between nodes.

    Attributes
    ----------
    words : CompressedFormat
        Format of the rounded elements.
    node_ranks : int
        Ranks of a node.
    """

    words: CompressedFormat
    node_ranks: int


@dataclass(frozen=True)
class Layout:
    """How a run is laid out over ranks: process grid, splits, pipeline method and partition.

    Attributes
    ----------
    stages : tuple of (int, int)
        Batch and model ranks of every pipeline stage; one entry without a pipeline.
    layers : tuple of int
        Number of layers of every virtual stage, in the order of the network: chunk 0 of all stages, then chunk 1, ...
    split : {"columns", "alternating"}
        How model ranks split the layers.
    overlap : bool
        Whether gradients are all-reduced during the backward pass.
    method : str
        Pipeline method, a key of ``METHODS``; ``sequential`` with one stage.
    microbatches : int
        Microbatches of a minibatch.
    chunks : int
        Virtual stages of every stage.
    vertical_sync : bool
        Whether all stages use the same weight version for a minibatch.
    merges : bool
        Whether the weight gradient is one product over all microbatches.
    sharing_ranks : int or None
        Ranks of a node, if the batch ranks of a node share a replica; None if every rank has its own.
    wire : GradientRounding or None
        Rounding of gradients between nodes; None to send them in the precision of the training.
    """

    stages: StageShapes
    layers: tuple[int, ...]
    split: str = "columns"
    overlap: bool = True
    method: str = "sequential"
    microbatches: int = 1
    chunks: int = 1
    vertical_sync: bool = False
    merges: bool = False
    sharing_ranks: int | None = None
    wire: GradientRounding | None = None

    # -- description -------------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """For example ``pipeline 2 x batch 4 x model 2 (columns), 1f1b with 8 microbatches``."""
        stages = len(self.stages)
        shapes = set(self.stages)
        if len(shapes) > 1:
            text = "stages " + " + ".join(f"{batch} x {model}" for batch, model in self.stages)
        else:
            batch, model = self.stages[0]
            axes = (("pipeline", stages), ("batch", batch), ("model", model))
            text = " x ".join(f"{name} {size}" for name, size in axes if size > 1) or "one rank"
        if any(model > 1 for _, model in shapes):
            text += f" ({self.split})"
        if stages > 1:
            text += f", {self.method}"
            text += f" with {self.microbatches} microbatches" if self.microbatches > 1 else ""
        return text + ("" if self.overlap else ", without overlap")

    def describe_staleness(self) -> str:
        """Age of the weights that gradients are computed with: ``exact``, ``stale by up to 3 updates``, ..."""
        if self.exact:
            return "exact"
        method, count = METHODS[self.method], len(self.stages)
        policy = method.synchronized if self.vertical_sync and method.synchronized else method.policy
        full = 2 * count  # a minibatch with which the pipeline is full
        reads = [(policy.forward(stage, count, full), policy.backward(stage, count, full)) for stage in range(count)]
        if any(forward.ahead or backward.ahead for forward, backward in reads):
            return "weights predicted"
        if any(forward != backward for forward, backward in reads):
            return "inconsistent"
        ages = {full - forward.version for forward, _ in reads}
        return f"stale by {'up to ' * (len(ages) > 1)}{counted(max(ages), 'update')}"

    def parallel_settings(self) -> dict[str, Any]:
        """Keys and values of the settings section ``[parallel]``, for a layout whose stages have one shape."""
        batch, model = self.stages[0]
        keys: dict[str, Any] = {
            "pipeline": len(self.stages),
            "batch": batch,
            "model": model,
            "model_split": self.split,
        }
        if model > 1 or (batch > 1 and self.sharing_ranks is None):
            keys["overlap"] = self.overlap  # without effect elsewhere
        if self.wire is not None:
            keys["wire_dtype"] = self.wire.words.name
        if len(self.stages) == 1:
            return keys
        return keys | {
            "method": self.method,
            "microbatches": self.microbatches,
            "chunks": self.chunks,
            "partition": list(self.layers),
            "vertical_sync": self.vertical_sync,
            "weight_grad": "auto" if self.merges or METHODS[self.method].placed_weight_gradients else "per-microbatch",
        }

    # -- pipeline ----------------------------------------------------------------------------------------------------

    @property
    def exact(self) -> bool:
        """Whether the training equals that of one rank: a minibatch is completed before the next one begins."""
        return METHODS[self.method].exact or len(self.stages) == 1

    def recomputes(self, stage: int) -> bool:
        """Whether a stage computes forward passes twice, as every stage but the last does in features replay."""
        return METHODS[self.method].order is features_replay and stage < len(self.stages) - 1

    def schedule(self, minibatches: int, *, messages: bool = True) -> Schedule:
        """Schedule of a number of minibatches, with or without its loads and messages."""
        return make_schedule(
            self.method,
            stages=len(self.stages),
            minibatches=minibatches,
            microbatches=self.microbatches,
            chunks=self.chunks,
            weight_grad="merged" if self.merges else "per-microbatch",
            vertical_sync=self.vertical_sync,
            messages=messages,
        )

    @property
    def pipeline_only(self) -> Layout:
        """The pipeline with one rank in every stage and no layers; layouts with equal ones have equal schedules."""
        return Layout(
            ((1, 1),) * len(self.stages),
            (),
            method=self.method,
            microbatches=self.microbatches,
            chunks=self.chunks,
            vertical_sync=self.vertical_sync,
            merges=self.merges,
        )

    def layers_of(self, model: MLP, stage: int, chunk: int) -> tuple[DenseLayer, ...]:
        """Layers of a chunk of a stage."""
        ends = list(accumulate(self.layers, initial=0))
        virtual_stage = chunk * len(self.stages) + stage
        return model.layers[ends[virtual_stage] : ends[virtual_stage + 1]]

    def microbatch_samples(self, stage: int, microbatch: int, batch_size: int) -> int:
        """Samples of a microbatch on the rank of a stage that has most."""
        return block_size(block_size(batch_size, self.microbatches, microbatch), self.stages[stage][0], 0)

    def minibatch_samples(self, stage: int, batch_size: int) -> int:
        """Samples of a minibatch on the rank of a stage that has most."""
        return sum(self.microbatch_samples(stage, number, batch_size) for number in range(self.microbatches))

    # -- ranks and replicas ------------------------------------------------------------------------------------------

    @property
    def ranks(self) -> int:
        """Ranks of all stages."""
        return sum(map(prod, self.stages))

    def first_rank(self, stage: int) -> int:
        """Position in the process grid of a stage's first rank."""
        return self._first_ranks[stage]

    @cached_property
    def _first_ranks(self) -> tuple[int, ...]:
        return tuple(accumulate(map(prod, self.stages), initial=0))

    def replica_groups(self, stage: int) -> dict[Placement, int]:
        """Ranks that share a replica, on each node of a batch group; (1, 1, …) if every rank has its own.

        Returns
        -------
        dict
            From every placement that occurs in the stage to its number of batch groups.
        """
        batch, model = self.stages[stage]
        if self.sharing_ranks is None:
            return {(1,) * batch: model}
        return _batch_group_placements(self.stages, self.sharing_ranks, stage)

    def shares_replicas(self, stage: int) -> bool:
        """Whether any ranks of the stage share a replica."""
        return max(map(max, self.replica_groups(stage))) > 1

    def has_own_replicas(self, stage: int) -> bool:
        """Whether there is a batch group in the stage whose ranks all have replicas of their own."""
        return min(map(max, self.replica_groups(stage))) == 1

    def rounding(self, stage: int) -> CompressedFormat | None:
        """Format that a stage's gradients are rounded to; None if they are not, or no batch group spans nodes."""
        if self.wire is None:
            return None
        spans = max(map(len, _batch_group_placements(self.stages, self.wire.node_ranks, stage))) > 1
        return self.wire.words if spans else None

    def fuses_update(self, workload: Workload) -> bool:
        """Whether the update is fused with the weight-gradient products, so that no gradients are kept."""
        batch, split = self.stages[0]
        return (
            len(self.stages) == self.microbatches == 1
            and max(map(len, self.replica_groups(0))) == 1
            and not workload.clips
            and not workload.rereads_gradient
            and workload.optimizer != "adam"
            and fused_update_pays(workload.model, workload.batch_size, batch, split)
        )


def uniform_layout(stages: Sequence[tuple[int, int]], layers: int) -> Layout:
    """The default layout on these stages: one chunk each, numbers of layers that differ by at most one."""
    return Layout(tuple(stages), tuple(block_size(layers, len(stages), stage) for stage in range(len(stages))))


def nodes_of_stage(stages: StageShapes, ranks_per_node: int, stage: int) -> NDArray[np.int64]:
    """Node of every rank of a stage, shape (batch, model), if ranks fill nodes one after another."""
    ranks, widest = sum(map(prod, stages)), max(model for _, model in stages)
    first = sum(map(prod, stages[:stage]))
    return _nodes_of_grid(ranks, ranks_per_node, widest)[first : first + prod(stages[stage])].reshape(stages[stage])


@lru_cache(16)
def _nodes_of_grid(ranks: int, ranks_per_node: int, model: int) -> NDArray[np.int64]:
    """Node of every position in the grid; depends on the widest model group alone."""
    nodes = np.arange(ranks) // ranks_per_node
    if ranks <= ranks_per_node:
        return nodes
    return nodes[place_ranks(nodes.tolist(), model)]


@lru_cache(1 << 12)
def _batch_group_placements(stages: StageShapes, ranks_per_node: int, stage: int) -> dict[Placement, int]:
    """Number of batch groups of a stage by placement."""
    nodes = nodes_of_stage(stages, ranks_per_node, stage)
    if (nodes == nodes[:, :1]).all():  # model groups inside nodes: all batch groups have one placement
        nodes, groups = nodes[:, :1], nodes.shape[1]
    else:
        groups = 1
    found: Counter[Placement] = Counter()
    for group in nodes.T:
        found[tuple(np.unique(group, return_counts=True)[1].tolist())] += groups
    return dict(found)
