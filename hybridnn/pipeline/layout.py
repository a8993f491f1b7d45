"""Layout: how a run is laid out over ranks, for the trainer, checkpoints, cost models and planning alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from math import prod

from hybridnn.comm.blocks import block_size, block_sizes
from hybridnn.nn.mlp import MLP, DenseLayer
from hybridnn.parallel.grid import StageShapes
from hybridnn.pipeline.schedules.methods import METHODS, Method, forward_only, make_schedule
from hybridnn.pipeline.schedules.placements import Placement
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.utils.text import counted

# automatic partitions: by predicted times of the layers, equal counts, or by measured times
PARTITIONS = ("balanced", "uniform", "profile")


@dataclass(frozen=True)
class Layout:
    """How a run is laid out over ranks: process grid, splits, pipeline method and partition, replicas."""

    stages: StageShapes  # batch and model ranks of every pipeline stage; one entry without a pipeline
    # number of layers of every virtual stage, in the order of the network: chunk 0 of all stages, then chunk 1, ..
    layers: tuple[int, ...]
    model_split: str = "columns"  # how model ranks split the layers
    overlap: bool = True  # whether communication overlaps with the backward pass
    method: str = "sequential"  # pipeline method, a key of ``METHODS``; ``sequential`` with one stage
    microbatches: int = 1  # microbatches of a minibatch
    chunks: int = 1  # virtual stages of every stage
    merges: bool = False  # whether the weight gradient is one product over all microbatches
    barriers: bool = False  # whether ddg and fr have barriers
    order: tuple[str, ...] = ()  # a word per stage, for a method whose order is searched
    shared_replicas: bool = False  # whether the batch ranks of a node share a replica
    node_ranks: int | None = None  # ranks of a full node; None if all ranks are on one

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"{self.method!r} is no pipeline method")
        counts = [self.chunks, self.microbatches, *self.layers, *chain.from_iterable(self.stages)]
        if not self.stages or min(counts) < 1 or len(self.layers) != self.chunks * len(self.stages):
            raise ValueError("stages, layers, chunks and microbatches do not fit together")

    @classmethod
    def uniform(cls, stages: Sequence[tuple[int, int]], layers: int) -> Layout:
        """A layout on these stages with one chunk each and numbers of layers that differ by at most one."""
        return cls(tuple(stages), tuple(block_sizes(layers, len(stages))))

    # -- description -------------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """For example ``pipeline 2 x batch 4 x model 2 (columns), 1f1b with 8 microbatches``."""
        shapes = set(self.stages)
        if len(shapes) > 1:
            text = "stages " + " + ".join(f"{batch} x {model}" for batch, model in self.stages)
        else:
            batch, model = self.stages[0]
            axes = (("pipeline", len(self.stages)), ("batch", batch), ("model", model))
            text = " x ".join(f"{name} {size}" for name, size in axes if size > 1) or "one rank"
        if any(model > 1 for _, model in shapes):
            text += f" ({self.model_split})"
        if len(self.stages) > 1:
            text += f", {self.method}"
            text += f" with {self.microbatches} microbatches" if self.microbatches > 1 else ""
        return text + ("" if self.overlap else ", without overlap")

    def describe_staleness(self) -> str:
        """Age of the weights that gradients are computed with: ``exact``, ``stale by up to 3 updates``, ..."""
        if self.exact:
            return "exact"
        policy, count = METHODS[self.method].policy, len(self.stages)
        full = 2 * count  # a minibatch with which the pipeline is full
        reads = [(policy.forward(stage, count, full), policy.backward(stage, count, full)) for stage in range(count)]
        if any(forward.ahead or backward.ahead for forward, backward in reads):
            return "weights predicted"
        if any(forward != backward for forward, backward in reads):
            return "replayed" if METHODS[self.method].recomputes else "inconsistent"
        ages = {full - forward.version for forward, _ in reads}
        return f"stale by {'up to ' * (len(ages) > 1)}{counted(max(ages), 'update')}"

    def mean_staleness(self, minibatches: int) -> tuple[float, ...]:
        """Mean staleness of every stage over so many minibatches, from the filling of the pipeline to its drain.

        The staleness of a minibatch is the number of updates between the version that its forward pass reads and the
        version that its gradient is applied to.
        """
        policy, stages = METHODS[self.method].policy, len(self.stages)
        if self.exact:
            return (0.0,) * stages
        return tuple(policy.mean_staleness(stage, stages, minibatches) for stage in range(stages))

    # -- pipeline ----------------------------------------------------------------------------------------------------

    @property
    def exact(self) -> bool:
        """Whether the training equals that of one rank: a minibatch is completed before the next one begins."""
        return METHODS[self.method].exact or len(self.stages) == 1

    @property
    def drains(self) -> bool:
        """Whether the pipeline is empty between minibatches."""
        return METHODS[self.method].drains or len(self.stages) == 1

    @property
    def placement(self) -> Placement:
        """The stage on which each chunk lives."""
        return METHODS[self.method].placement

    @property
    def last_stage(self) -> int:
        """The stage of the network's last layer."""
        return self.placement.at(len(self.layers) - 1, len(self.stages))[0]

    def recomputes(self, stage: int) -> bool:
        """Whether a stage computes forward passes twice, as every stage but the last does in features replay."""
        return METHODS[self.method].recomputes and stage < len(self.stages) - 1

    def schedule(self, minibatches: int, *, messages: bool = True) -> Schedule:
        """Training schedule of a number of minibatches, with or without its loads and messages."""
        return make_schedule(
            self.method,
            stages=len(self.stages),
            minibatches=minibatches,
            microbatches=self.microbatches,
            chunks=self.chunks,
            weight_grad="merged" if self.merges else "per-microbatch",
            messages=messages,
            barriers=self.barriers,
            order=self.order,
        )

    def forward_schedule(self, minibatches: int) -> Schedule:
        """Schedule of forward passes only."""
        return _forward_schedule(len(self.stages), minibatches, self.chunks, self.placement)

    def largest_schedules(self) -> tuple[Schedule, Schedule]:
        """Schedules of training and of forward passes, long enough to need as much memory as any longer one."""
        return _largest_schedules(self, METHODS[self.method])

    def layers_of(self, model: MLP, stage: int) -> list[tuple[DenseLayer, ...]]:
        """Layers of every chunk of a stage."""
        return [model.layers[indices.start : indices.stop] for indices in self.layer_indices(stage)]

    def layer_indices(self, stage: int) -> list[range]:
        """Indices of the layers of every chunk of a stage."""
        count = len(self.stages)
        virtual_stages = [self.placement.virtual(stage, chunk, count) for chunk in range(self.chunks)]
        return [range(self._layer_ends[index], self._layer_ends[index + 1]) for index in virtual_stages]

    @cached_property
    def _layer_ends(self) -> tuple[int, ...]:
        """0, and the number of layers up to the end of every virtual stage."""
        return tuple(accumulate(self.layers, initial=0))

    def microbatch_samples(self, stage: int, microbatch: int, batch_size: int) -> int:
        """Samples of a microbatch on the rank of a stage that has most."""
        return block_size(block_size(batch_size, self.microbatches, microbatch), self.stages[stage][0], 0)

    def minibatch_samples(self, stage: int, batch_size: int) -> int:
        """Samples of a minibatch on the rank of a stage that has most."""
        return sum(self.microbatch_samples(stage, number, batch_size) for number in range(self.microbatches))

    def equal_microbatches(self, batch_size: int) -> tuple[int, ...]:
        """For every microbatch the first one with the same samples, apart from microbatch 0, which equals no other."""
        larger = batch_size % self.microbatches
        others = (1 if number < larger else max(1, larger) for number in range(1, self.microbatches))
        return (0, *others)

    # -- ranks and replicas ------------------------------------------------------------------------------------------

    @cached_property
    def ranks(self) -> int:
        """Ranks of all stages."""
        return sum(map(prod, self.stages))


_forward_schedule = lru_cache(4)(forward_only)  # many layouts of a plan have it in common


@lru_cache(1)
def _largest_schedules(layout: Layout, method: Method) -> tuple[Schedule, Schedule]:
    """Those of a layout, which the ranks of a process share; a plug-in may replace the method of a name."""
    full = 2 * len(layout.stages)
    return layout.schedule(1 if layout.exact else full), layout.forward_schedule(full)
