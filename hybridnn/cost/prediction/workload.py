"""What is trained, and in which layout: all that a prediction needs to know beside the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.partition import block_size
from hybridnn.kernels.sixteen_bits import CompressedFormat
from hybridnn.nn.mlp import MLP, DenseLayer
from hybridnn.parallel.placement import place_ranks
from hybridnn.parallel.replicas.fused_update import fused_update_pays
from hybridnn.pipeline.schedules.methods import METHODS, make_schedule
from hybridnn.pipeline.schedules.orders import features_replay
from hybridnn.pipeline.schedules.schedule import Schedule


@dataclass(frozen=True)
class Workload:
    """A training run, whatever the layout.

    Attributes
    ----------
    model : MLP
    samples : int
        Training samples of an epoch.
    batch_size : int
        Samples of a minibatch, over all ranks.
    dtype : {"float32", "float64"}
    optimizer : {"sgd", "momentum", "adam"}
        ``sgd`` without momentum; ``adam`` stands for ``adamw`` too.
    classification : bool
        Whether targets are labels.
    clips : bool
        Whether gradients are clipped to a norm.
    distribution : {"local", "scatter", "scatter-broadcast"}
        How minibatches reach the ranks; the last two only without a pipeline.
    rereads_gradient : bool
        Whether SGD reads a gradient more than once: with weight decay, and with Nesterov's step.
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
        """Bytes of a number."""
        return 4 if self.dtype == "float32" else 8

    @property
    def slots(self) -> int:
        """Arrays of the parameters' size that the optimizer keeps."""
        return {"sgd": 0, "momentum": 1, "adam": 2}[self.optimizer]

    @property
    def steps_per_epoch(self) -> int:
        """Minibatches of an epoch."""
        return ceil(self.samples / self.batch_size)


@dataclass(frozen=True)
class GradientRounding:
    """How gradients are rounded between nodes.

    Attributes
    ----------
    words : CompressedFormat
    node_ranks : int
        Ranks of a node.
    """

    words: CompressedFormat
    node_ranks: int


@dataclass(frozen=True)
class Layout:
    """How the ranks share the work.

    Attributes
    ----------
    stages : tuple of (int, int)
        Batch and model ranks of every stage of the pipeline; one stage without a pipeline.
    split : {"columns", "alternating"}
    overlap : bool
    method : str
        One of ``METHODS``; ``sequential`` with one stage.
    microbatches, chunks : int
    layers : tuple of int
        Layers of every virtual stage, in the order of the network.
    vertical_sync : bool
    merges : bool
        Whether weight gradients are one product over all microbatches.
    sharing_ranks : int or None
        Ranks of a node, where the batch ranks of a node share a replica; None where every rank keeps its own.
    wire : GradientRounding or None
        What gradients are rounded to on their way between nodes; None where they travel as computed.
    """

    stages: tuple[tuple[int, int], ...]
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

    @property
    def ranks(self) -> int:
        """Ranks of all stages."""
        return sum(map(prod, self.stages))

    @property
    def exact(self) -> bool:
        """Whether every minibatch is complete before the next begins."""
        return METHODS[self.method].exact or len(self.stages) == 1

    def recomputes(self, stage: int) -> bool:
        """Whether a stage computes forward passes twice; the last one has no delay to do it for."""
        return METHODS[self.method].order is features_replay and stage < len(self.stages) - 1

    def first_rank(self, stage: int) -> int:
        """Position in the grid of a stage's first rank."""
        return self._first_ranks[stage]

    @cached_property
    def _first_ranks(self) -> tuple[int, ...]:
        return tuple(accumulate(map(prod, self.stages), initial=0))

    def sharers(self, stage: int) -> dict[tuple[int, ...], int]:
        """How many ranks of a batch group share a replica, on each of its nodes; (1, …) where none do.

        Returns
        -------
        dict
            For every way in which batch groups of the stage lie on nodes, the number of groups.
        """
        batch, model = self.stages[stage]
        if self.sharing_ranks is None:
            return {(1,) * batch: model}
        return _ranks_by_node(self.stages, self.sharing_ranks, stage)

    def words(self, stage: int) -> CompressedFormat | None:
        """What a stage's gradients are rounded to on their way; None where its batch groups do not span nodes."""
        if self.wire is None:
            return None
        spans = max(map(len, _ranks_by_node(self.stages, self.wire.node_ranks, stage))) > 1
        return self.wire.words if spans else None

    def shares(self, stage: int) -> bool:
        """Whether some rank of the stage shares its replica."""
        return max(map(max, self.sharers(stage))) > 1

    def keeps_replicas(self, stage: int) -> bool:
        """Whether some batch group of the stage has no two ranks on a node, so that all of them keep replicas."""
        return min(map(max, self.sharers(stage))) == 1

    def takes_products(self, workload: Workload) -> bool:
        """Whether the update takes weight gradients as products, so that nobody keeps them; see `ProductReplica`."""
        batch, split = self.stages[0]
        return (
            len(self.stages) == self.microbatches == 1
            and max(map(len, self.sharers(0))) == 1
            and not workload.clips
            and not workload.rereads_gradient
            and workload.optimizer != "adam"
            and fused_update_pays(workload.model, workload.batch_size, batch, split)
        )

    def layers_of(self, model: MLP, stage: int, chunk: int) -> tuple[DenseLayer, ...]:
        """The layers of a chunk of a stage."""
        ends = list(accumulate(self.layers, initial=0))
        place = chunk * len(self.stages) + stage
        return model.layers[ends[place] : ends[place + 1]]

    def schedule(self, minibatches: int, *, messages: bool = True) -> Schedule:
        """Schedule of so many minibatches, with or without its loads and messages."""
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

    def samples_of(self, stage: int, microbatch: int, batch_size: int) -> int:
        """Samples of a microbatch on the rank of a stage that has most."""
        return block_size(block_size(batch_size, self.microbatches, microbatch), self.stages[stage][0], 0)

    def samples_of_all(self, stage: int, batch_size: int) -> int:
        """Samples of a whole minibatch on the rank of a stage that has most."""
        return sum(self.samples_of(stage, number, batch_size) for number in range(self.microbatches))


def uniform_layout(stages: Sequence[tuple[int, int]], layers: int) -> Layout:
    """One chunk for each stage, with as equal numbers of layers as can be, and all else as by default."""
    return Layout(tuple(stages), tuple(block_size(layers, len(stages), stage) for stage in range(len(stages))))


def nodes_of_stage(stages: tuple[tuple[int, int], ...], ranks_per_node: int, stage: int) -> NDArray[np.int64]:
    """Node of every rank of a stage, shape (batch, model), where ranks fill nodes one after another.

    Parameters
    ----------
    stages : tuple of (int, int)
        Batch and model ranks of every stage.
    ranks_per_node : int
    stage : int
    """
    ranks, widest = sum(map(prod, stages)), max(model for _, model in stages)
    first = sum(map(prod, stages[:stage]))
    return _nodes_of_grid(ranks, ranks_per_node, widest)[first : first + prod(stages[stage])].reshape(stages[stage])


KEPT_GRIDS = 16
"""Placements of all ranks that are kept; they depend on the widest model group alone."""

KEPT_STAGES = 1 << 12


@lru_cache(KEPT_GRIDS)
def _nodes_of_grid(ranks: int, ranks_per_node: int, model: int) -> NDArray[np.int64]:
    """Node of every position in the grid."""
    nodes = np.arange(ranks) // ranks_per_node
    if ranks <= ranks_per_node:
        return nodes
    return nodes[place_ranks(nodes.tolist(), model)]


@lru_cache(KEPT_STAGES)
def _ranks_by_node(stages: tuple[tuple[int, int], ...], ranks_per_node: int, stage: int) -> dict[tuple[int, ...], int]:
    """Ranks of a batch group on each of its nodes, with the number of batch groups that lie so."""
    nodes = nodes_of_stage(stages, ranks_per_node, stage)
    if (nodes == nodes[:, :1]).all():  # model groups inside nodes: all batch groups lie alike
        nodes, times = nodes[:, :1], nodes.shape[1]
    else:
        times = 1
    found: Counter[tuple[int, ...]] = Counter()
    for group in nodes.T:
        found[tuple(np.unique(group, return_counts=True)[1].tolist())] += times
    return dict(found)
