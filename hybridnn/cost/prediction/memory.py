"""What the arrays of a layout take, counted without allocating any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import ceil

from hybridnn.cost.prediction.workload import Layout, Workload
from hybridnn.kernels.numpy_updates import BLOCK
from hybridnn.nn.parameters import LayerShard, ParameterLayout
from hybridnn.parallel.compressed_allreduce import PIECE_ELEMENTS, compressed_workspace_bytes
from hybridnn.parallel.gradient_reduction import HOST_BUCKETS
from hybridnn.parallel.layer_split import split_layers
from hybridnn.parallel.replicas.shared_replica import SUM_BLOCK
from hybridnn.parallel.replicas.sharing import slice_bounds
from hybridnn.parallel.workspace import NARROW
from hybridnn.pipeline.execution.chunk import AHEAD
from hybridnn.pipeline.execution.program import MessageDepths, StageProgram, message_depths
from hybridnn.pipeline.schedules.instructions import ALL_MICROBATCHES, Backward, WeightGradient
from hybridnn.pipeline.schedules.memory_plan import plan_memory
from hybridnn.pipeline.schedules.methods import forward_only
from hybridnn.pipeline.schedules.schedule import Schedule

INTEGER = 8
"""Bytes of a label, and of a column's number."""


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of the fullest rank of a stage, the samples of the data set left out.

    Attributes
    ----------
    weights : int
        Current weights and their gradients; of arrays that ranks share, here and below, one rank's part.
    optimizer : int
        Optimizer state.
    weight_versions : int
        Copies of older weights and predicted ones.
    activations : int
        Inputs and activations that wait for their backward pass.
    buffers : int
        Messages, gradients on their way through the layers, microbatches joined for one product.
    """

    weights: int = 0
    optimizer: int = 0
    weight_versions: int = 0
    activations: int = 0
    buffers: int = 0

    def __add__(self, other: MemoryParts) -> MemoryParts:
        return MemoryParts(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))

    @property
    def total(self) -> int:
        """Bytes in all."""
        return sum(getattr(self, item.name) for item in fields(self))


def memory_bytes(workload: Workload, layout: Layout, stage: int) -> MemoryParts:
    """Bytes of the fullest rank of a stage: the first one, as the first parts of every block partition are largest.

    Counted as the trainer allocates, with all that is there after the first step. Asynchronous schedules are taken to
    be long enough to need all the memory that longer ones do.

    Parameters
    ----------
    workload : Workload
    layout : Layout
    stage : int

    Raises
    ------
    GridError
        If a layer has fewer outputs than there are ranks to split them.
    """
    parts = [_chunk_bytes(workload, layout, stage, chunk) for chunk in range(layout.chunks)]
    return sum(parts, MemoryParts())


def fullest_rank(workload: Workload, layout: Layout) -> MemoryParts:
    """Bytes of the rank that needs most of all."""
    return max((memory_bytes(workload, layout, stage) for stage in range(len(layout.stages))), key=lambda m: m.total)


def data_bytes(workload: Workload) -> int:
    """Bytes of the training samples, of which every node holds one copy with ``data.distribution = "local"``."""
    return workload.samples * (workload.model.sizes[0] * workload.itemsize + _target_bytes(workload))


def _target_bytes(workload: Workload) -> int:
    return INTEGER if workload.classification else workload.model.sizes[-1] * workload.itemsize


@dataclass(frozen=True)
class _Slots:
    """What a chunk of a stage keeps at a time, by its schedule."""

    inputs: int
    activations: int
    weight_versions: int
    predicts: bool
    keeps_dz: bool
    joins: bool
    accumulates: bool
    depths: MessageDepths
    loads_input: bool
    loads_target: bool


def _slots(layout: Layout, stage: int, chunk: int) -> _Slots:
    # Widths and layers do not matter to a schedule, so that layouts which differ in nothing else share the count.
    pipeline = Layout(
        ((1, 1),) * len(layout.stages),
        (),
        method=layout.method,
        microbatches=layout.microbatches,
        chunks=layout.chunks,
        vertical_sync=layout.vertical_sync,
        merges=layout.merges,
    )
    return _count_slots(pipeline, stage)[chunk]


@lru_cache(maxsize=4096)
def _count_slots(pipeline: Layout, stage: int) -> tuple[_Slots, ...]:
    training, evaluation = _schedules(pipeline)
    plan, program, order = plan_memory(training, stage), StageProgram(training, stage), training.orders[stage]
    reads = [training.weights_read(stage, item) for item in order]
    gradients = [item for item in order if isinstance(item, Backward | WeightGradient)]
    return tuple(
        _Slots(
            inputs=plan.inputs[chunk],
            activations=plan.activations[chunk],
            weight_versions=plan.peak_weight_versions,
            predicts=any(read is not None and read.ahead > 0 for read in reads),
            keeps_dz=program.splits_backward,
            joins=any(isinstance(item, WeightGradient) and item.microbatch == ALL_MICROBATCHES for item in gradients),
            accumulates=bool(program.accumulating),
            depths=MessageDepths(
                *map(max, message_depths(training, stage, chunk), message_depths(evaluation, stage, chunk))
            ),
            loads_input=training.is_first(stage, chunk),
            loads_target=training.is_last(stage, chunk),
        )
        for chunk in range(pipeline.chunks)
    )


@lru_cache(maxsize=16)
def _schedules(pipeline: Layout) -> tuple[Schedule, Schedule]:
    """Of training and of evaluation, long enough to need all that longer ones do."""
    stages = len(pipeline.stages)
    training = pipeline.schedule(1 if pipeline.exact else 2 * stages)
    return training, forward_only(stages, 2 * stages, pipeline.chunks)


def _chunk_bytes(workload: Workload, layout: Layout, stage: int, chunk: int) -> MemoryParts:
    """Bytes of a chunk, in the batch groups that lie on nodes in the way that takes most."""
    ways = (_bytes_of_group(workload, layout, stage, chunk, sharers) for sharers in layout.sharers(stage))
    return max(ways, key=lambda parts: parts.total)


def _bytes_of_group(
    workload: Workload, layout: Layout, stage: int, chunk: int, sharers: tuple[int, ...]
) -> MemoryParts:
    """Bytes of a chunk in a batch group with so many ranks on each of its nodes."""
    batch_ranks, model_ranks = layout.stages[stage]
    splits = split_layers(layout.layers_of(workload.model, stage, chunk), layout.split, model_ranks, 0)
    slots = _slots(layout, stage, chunk)
    parameters = ParameterLayout(splits)
    largest = max(stop - start for start, stop in map(parameters.bounds, range(len(splits))))
    samples = ceil(ceil(workload.batch_size / layout.microbatches) / batch_ranks)
    item, fewest = workload.itemsize, min(sharers)
    if layout.takes_products(workload):
        return _bytes_with_products(workload, splits, slots, samples, fewest, model_ranks)
    once = -(-item * parameters.size // fewest)  # this rank's part of an array that ranks share
    # What is updated at a time, and where shared gradients are added up, with the loss of all ranks.
    block, added, rounded = min(BLOCK, max(parameters.size, 1)), 0, 0
    words = layout.words(stage)
    if max(sharers) > 1:
        _, slice_end = slice_bounds(parameters.size, max(sharers), 0)
        block = min(SUM_BLOCK, slice_end)
        added = block + 1
        if words is not None and len(sharers) > 1:
            rounded = compressed_workspace_bytes(min(slice_end, PIECE_ELEMENTS), len(sharers), words, item)
    elif words is not None:
        piece = min(parameters.size, HOST_BUCKETS.piece_bytes // item)
        rounded = HOST_BUCKETS.in_flight * compressed_workspace_bytes(piece, batch_ranks, words, item)
    kept = item * _kept_numbers(splits, slots, model_ranks > 1)
    loaded = item * splits[0].layer.inputs + slots.loads_target * _target_bytes(workload)
    return MemoryParts(
        # Room for one more layer's gradient where those of microbatches are added up, and for words of 16 bits.
        weights=once + item * (parameters.size + 1 + added + largest * slots.accumulates) + rounded,
        optimizer=workload.slots * once + item * 2 * block,
        weight_versions=once * (slots.weight_versions - 1) + item * parameters.size * slots.predicts,
        activations=samples * (slots.inputs * loaded + slots.activations * kept),
        buffers=samples
        * (
            INTEGER
            + item * (1 + _passing_numbers(splits, slots, samples, model_ranks) + _message_numbers(splits, slots))
            + item * slots.joins * layout.microbatches * _joined_numbers(splits)
        ),
    )


def _bytes_with_products(
    workload: Workload, splits: Sequence[LayerShard], slots: _Slots, samples: int, sharers: int, model_ranks: int
) -> MemoryParts:
    """The same where weight gradients are products: training has arrays of its own, others are for forward passes."""
    item, numbers = workload.itemsize, ParameterLayout(splits).size
    once = -(-item * numbers // sharers)
    loaded = item * splits[0].layer.inputs + _target_bytes(workload)
    kept = sum(item * _kept_numbers(splits, replace(slots, keeps_dz=dz), model_ranks > 1) for dz in (False, True))
    passing = INTEGER + item * (1 + _passing_numbers(splits, slots, samples, model_ranks))
    return MemoryParts(
        # Two losses, and everybody's number of samples.
        weights=once + item * 2 + INTEGER,
        optimizer=workload.slots * once,
        activations=samples * (2 * loaded + kept),
        buffers=samples * 2 * passing,
    )


def _kept_numbers(splits: Sequence[LayerShard], slots: _Slots, shared: bool) -> int:
    """Per sample, what one forward pass keeps until its backward pass."""
    numbers = 0
    for split in splits:
        own = split.weight_shape[0]
        numbers += _output_height(split) + own * (split.layer.residual + slots.keeps_dz)
        if split.by_inputs and split.layer.residual and shared:
            numbers += split.layer.inputs  # gathered for the sum with the output
    return numbers


def _passing_numbers(splits: Sequence[LayerShard], slots: _Slots, samples: int, ranks: int) -> int:
    """Per sample, gradients that pass through the layers: two take turns, a third where products are transposed."""
    travels = ranks > 1 or not (slots.loads_input and slots.loads_target)
    entry = 0 if slots.loads_input else splits[0].layer.inputs
    widest = max(entry, *map(_output_height, splits))
    residual = max((split.weight_shape[0] for split in splits if split.layer.residual), default=0)
    return residual + widest * (3 if travels and samples <= NARROW else 2)


def _message_numbers(splits: Sequence[LayerShard], slots: _Slots) -> int:
    """Per sample, messages that are under way."""
    depths, numbers = slots.depths, 0
    if not slots.loads_input:
        numbers += splits[0].layer.inputs * (depths.inputs + depths.gradients_to_send + 2 * AHEAD)
    if not slots.loads_target:
        numbers += splits[-1].layer.outputs * (depths.gradients + depths.outputs_to_send + 2 * AHEAD)
    return numbers


def _joined_numbers(splits: Sequence[LayerShard]) -> int:
    """Per sample, what one product over all microbatches takes the weight gradients from."""
    return 1 + sum(sum(split.weight_shape) for split in splits)


def _output_height(split: LayerShard) -> int:
    """Outputs that the next layer gets of a rank."""
    return split.layer.outputs if split.gathers else split.weight_shape[0]
