"""Memory of a layout: the bytes of a rank's arrays, counted as the trainer allocates them, without allocating any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from hybridnn.cost.breakdowns import MemoryBreakdown
from hybridnn.cost.prediction.workload import Layout, Placement, Workload
from hybridnn.kernels.numpy_updates import BLOCK
from hybridnn.nn.parameters import LayerShard, ParameterLayout
from hybridnn.parallel.compressed_allreduce import PIECE_ELEMENTS, compressed_workspace_bytes
from hybridnn.parallel.gradient_reduction import HOST_BUCKETS
from hybridnn.parallel.layer_split import split_layers
from hybridnn.parallel.replicas.shared_replica import SUM_BLOCK
from hybridnn.parallel.replicas.sharing import slice_bounds
from hybridnn.parallel.workspace import NARROW
from hybridnn.pipeline.execution.chunk_runtime import EXTRA_BUFFERS
from hybridnn.pipeline.execution.program import MessageDepths, StageProgram, message_depths
from hybridnn.pipeline.schedules.instructions import ALL_MICROBATCHES, Backward, WeightGradient
from hybridnn.pipeline.schedules.memory_plan import plan_memory
from hybridnn.pipeline.schedules.methods import forward_only

INTEGER = 8
"""Bytes of a label, and of a column index."""


def stage_memory(workload: Workload, layout: Layout, stage: int) -> MemoryBreakdown:
    """Bytes of the first rank of a stage, whose blocks are the largest, after its first step.

    Asynchronous schedules are counted as long enough to reach their largest memory.

    Raises
    ------
    GridError
        If a layer has fewer outputs than there are ranks to split them.
    """
    chunks = (_chunk_memory(workload, layout, stage, chunk) for chunk in range(layout.chunks))
    return sum(chunks, MemoryBreakdown())


def largest_memory(workload: Workload, layout: Layout) -> MemoryBreakdown:
    """Bytes of the rank that needs most."""
    stages = (stage_memory(workload, layout, stage) for stage in range(len(layout.stages)))
    return max(stages, key=lambda memory: memory.total)


def data_bytes(workload: Workload) -> int:
    """Bytes of the training samples, of which every node holds one copy with ``data.distribution = "local"``."""
    return workload.samples * (workload.model.sizes[0] * workload.itemsize + _target_bytes(workload))


def _target_bytes(workload: Workload) -> int:
    return INTEGER if workload.classification else workload.model.sizes[-1] * workload.itemsize


# -- arrays that the schedule requires -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Slots:
    """Numbers of arrays of a chunk, from the schedule.

    Attributes
    ----------
    inputs, activations, weight_versions : int
        Arrays kept at the same time.
    predicts : bool
        Whether passes read predicted weights.
    keeps_dz : bool
        Whether weight gradients are computed apart from input gradients.
    joins, accumulates : bool
        Whether microbatches are concatenated for one weight-gradient product, or their gradients added.
    loads_input, loads_target : bool
        Whether the chunk is the network's first, or last.
    """

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


@lru_cache(maxsize=4096)
def _count_slots(pipeline: Layout, stage: int) -> tuple[_Slots, ...]:
    """Slots of every chunk of a stage, for a `Layout.pipeline_only`."""
    stages = len(pipeline.stages)
    # Long enough to need all the memory that longer ones do.
    training = pipeline.schedule(1 if pipeline.exact else 2 * stages)
    evaluation = forward_only(stages, 2 * stages, pipeline.chunks)
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


# -- bytes of a chunk ------------------------------------------------------------------------------------------------


def _chunk_memory(workload: Workload, layout: Layout, stage: int, chunk: int) -> MemoryBreakdown:
    """Bytes of a chunk, in the batch groups whose placement needs most."""
    batch, model = layout.stages[stage]
    splits = split_layers(layout.layers_of(workload.model, stage, chunk), layout.split, model, 0)
    slots = _count_slots(layout.pipeline_only, stage)[chunk]
    samples = ceil(ceil(workload.batch_size / layout.microbatches) / batch)
    activations = _Activations(workload, splits, slots, model, samples)
    groups = layout.replica_groups(stage)
    if layout.fuses_update(workload):
        memories = [_memory_with_fused_update(workload, activations, min(placement)) for placement in groups]
    else:
        memories = [_group_memory(workload, layout, stage, activations, placement) for placement in groups]
    return max(memories, key=lambda memory: memory.total)


def _group_memory(
    workload: Workload, layout: Layout, stage: int, activations: _Activations, placement: Placement
) -> MemoryBreakdown:
    """Bytes of a chunk in a batch group with that placement."""
    slots, item = activations.slots, workload.itemsize
    parameters = ParameterLayout(activations.splits)
    largest_layer = max(stop - start for start, stop in map(parameters.bounds, range(len(activations.splits))))
    own_part = -(-item * parameters.size // min(placement))  # a rank's part of an array that ranks share
    # Elements that are updated at a time; where shared gradients are added, with the loss of all ranks; rounded pieces.
    block, added, rounded = min(BLOCK, max(parameters.size, 1)), 0, 0
    words = layout.rounding(stage)
    if max(placement) > 1:
        _, slice_end = slice_bounds(parameters.size, max(placement), 0)
        block = min(SUM_BLOCK, slice_end)
        added = block + 1
        if words is not None and len(placement) > 1:
            rounded = compressed_workspace_bytes(min(slice_end, PIECE_ELEMENTS), len(placement), words, item)
    elif words is not None:
        piece = min(parameters.size, HOST_BUCKETS.piece_bytes // item)
        rounded = HOST_BUCKETS.in_flight * compressed_workspace_bytes(piece, layout.stages[stage][0], words, item)
    accumulated = largest_layer * slots.accumulates
    return MemoryBreakdown(
        weights=own_part + item * (parameters.size + 1 + added + accumulated) + rounded,
        optimizer=workload.slots * own_part + item * 2 * block,
        weight_versions=own_part * (slots.weight_versions - 1) + item * parameters.size * slots.predicts,
        activations=activations.kept_bytes(),
        buffers=activations.buffer_bytes(layout.microbatches),
    )


def _memory_with_fused_update(workload: Workload, activations: _Activations, sharers: int) -> MemoryBreakdown:
    """Bytes with a fused update: no gradients, and arrays of their own for forward passes without training."""
    item, elements = workload.itemsize, ParameterLayout(activations.splits).size
    own_part = -(-item * elements // sharers)
    passes = [replace(activations, slots=replace(activations.slots, keeps_dz=keeps)) for keeps in (False, True)]
    return MemoryBreakdown(
        weights=own_part + item * 2 + INTEGER,  # two losses, and the numbers of samples
        optimizer=workload.slots * own_part,
        activations=sum(each.kept_bytes() for each in passes),
        buffers=2 * activations.buffer_bytes(),
    )


@dataclass(frozen=True)
class _Activations:
    """Activations, gradients and messages of a chunk for the samples of a microbatch."""

    workload: Workload
    splits: Sequence[LayerShard]
    slots: _Slots
    model_ranks: int
    samples: int

    def kept_bytes(self) -> int:
        """Inputs, targets and activations kept for backward passes."""
        item, slots = self.workload.itemsize, self.slots
        loaded = item * self.splits[0].layer.inputs + slots.loads_target * _target_bytes(self.workload)
        return self.samples * (slots.inputs * loaded + slots.activations * item * self._kept())

    def buffer_bytes(self, microbatches: int = 1) -> int:
        """Gradients between layers, messages, and all microbatches where they are concatenated for one product."""
        item = self.workload.itemsize
        elements = 1 + self._gradients() + self._messages() + self.slots.joins * microbatches * self._joined()
        return self.samples * (INTEGER + item * elements)

    def _kept(self) -> int:
        """Elements per sample that a forward pass keeps until its backward pass."""
        elements = 0
        for split in self.splits:
            rows = split.weight_shape[0]
            elements += _output_rows(split) + rows * (split.layer.residual + self.slots.keeps_dz)
            if split.by_inputs and split.layer.residual and self.model_ranks > 1:
                elements += split.layer.inputs  # gathered for the sum with the output
        return elements

    def _gradients(self) -> int:
        """Elements per sample of gradients between layers: two take turns, a third for transposed products."""
        slots, splits = self.slots, self.splits
        is_sent = self.model_ranks > 1 or not (slots.loads_input and slots.loads_target)
        widest = max(0 if slots.loads_input else splits[0].layer.inputs, *map(_output_rows, splits))
        residual = max((split.weight_shape[0] for split in splits if split.layer.residual), default=0)
        return residual + widest * (3 if is_sent and self.samples <= NARROW else 2)

    def _messages(self) -> int:
        """Elements per sample of the messages in flight."""
        depths, elements = self.slots.depths, 0
        if not self.slots.loads_input:
            buffers = depths.input_receiver + depths.gradient_sender + 2 * EXTRA_BUFFERS
            elements += self.splits[0].layer.inputs * buffers
        if not self.slots.loads_target:
            buffers = depths.gradient_receiver + depths.output_sender + 2 * EXTRA_BUFFERS
            elements += self.splits[-1].layer.outputs * buffers
        return elements

    def _joined(self) -> int:
        """Elements per sample that a weight-gradient product over all microbatches reads."""
        return 1 + sum(sum(split.weight_shape) for split in self.splits)


def _output_rows(split: LayerShard) -> int:
    """Outputs of a layer that the rank has for the next one."""
    return split.layer.outputs if split.gathers else split.weight_shape[0]
