"""Traffic of a layout: the collectives and messages of a step, with their bytes and times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hybridnn.comm.recorder import bytes_sent_by_rank
from hybridnn.cost.prediction.stage_costs import LOSS_BYTES, StageCosts
from hybridnn.parallel.replicas.sharing import slice_bounds
from hybridnn.pipeline.schedules.schedule import Channel


@dataclass(frozen=True)
class Traffic:
    """One kind of communication of a stage.

    Attributes
    ----------
    operation : str
        As in ``hybridnn.comm.recorder``; ``"send"`` for messages between stages, and ``"barrier"``.
    axis : {"batch", "model", "pipeline", "world"}
    nbytes : int
        Bytes of one operation.
    times : int
        Operations in a step.
    seconds : float
        Seconds of all operations of a step, without overlap.
    bytes_sent : int
        Bytes that all ranks together send in a step.
    """

    operation: str
    axis: str
    nbytes: int
    times: int
    seconds: float
    bytes_sent: int


def traffic_of(costs: StageCosts) -> tuple[Traffic, ...]:
    """All communication of a step; the collectives of a layer's model groups count as one item for all microbatches."""
    layout = costs.layout
    found = [item for stage in range(len(layout.stages)) for item in _stage_traffic(costs, stage)]
    if costs.workload.distribution != "local":
        found += _distribution(costs)
    if layout.exact and len(layout.stages) > 1:
        sent = bytes_sent_by_rank("broadcast", LOSS_BYTES, layout.ranks, is_root=True)
        found.append(Traffic("broadcast", "world", LOSS_BYTES, 1, costs.groups.world("broadcast", LOSS_BYTES), sent))
    return tuple(found)


def _distribution(costs: StageCosts) -> Iterator[Traffic]:
    """Samples and targets that rank 0 distributes."""
    workload, layout = costs.workload, costs.layout
    (batch, model), sizes = layout.stages[0], workload.model.sizes
    sample_bytes = sizes[0] * workload.itemsize
    sample_bytes += 8 if workload.classification else sizes[-1] * workload.itemsize
    nbytes = sample_bytes * workload.batch_size
    if workload.distribution == "scatter":
        sent = bytes_sent_by_rank("scatter", nbytes * model, layout.ranks, is_root=True)
        yield Traffic("scatter", "world", nbytes * model, 1, costs.groups.world("scatter", nbytes * model), sent)
        return
    sent = bytes_sent_by_rank("scatter", nbytes, batch, is_root=True)
    yield Traffic("scatter", "batch", nbytes, 1, costs.groups.batch("scatter", nbytes, 0), sent)
    block = nbytes // batch
    sent = bytes_sent_by_rank("broadcast", block, model, is_root=True) * batch
    yield Traffic("broadcast", "model", block, 1, costs.groups.model("broadcast", block, 0), sent)


def _stage_traffic(costs: StageCosts, stage: int) -> Iterator[Traffic]:
    layout = costs.layout
    batch, model = layout.stages[stage]
    for chunk in range(layout.chunks):
        if layout.shares_replicas(stage):
            yield from _shared_replicas(costs, stage, chunk)
        if batch > 1 and layout.has_own_replicas(stage):
            nbytes = costs.gradient_bytes(stage, chunk)
            seconds = costs.groups.batch("allreduce", nbytes, stage)
            groups = layout.replica_groups(stage)[(1,) * batch]
            sent = bytes_sent_by_rank("allreduce", nbytes, batch) * batch * groups
            yield Traffic("allreduce", "batch", nbytes, 1, seconds, sent)
            if layout.rounding(stage) is not None:
                yield _loss(costs, stage)
        if model > 1:
            yield from _model_groups(costs, stage, chunk)
        yield from _between_stages(costs, stage, chunk)


def _loss(costs: StageCosts, stage: int) -> Traffic:
    """The all-reduce of the loss where it is not part of the gradients."""
    (batch, model), nbytes = costs.layout.stages[stage], costs.workload.itemsize
    sent = bytes_sent_by_rank("allreduce", nbytes, batch) * batch * model
    return Traffic("allreduce", "batch", nbytes, 1, costs.groups.batch("allreduce", nbytes, stage), sent)


def _shared_replicas(costs: StageCosts, stage: int, chunk: int) -> Iterator[Traffic]:
    """The loss, the barrier after the update, and between nodes the slices of the gradient."""
    yield _loss(costs, stage)
    yield Traffic("barrier", "batch", 0, 1, costs.groups.sharers("barrier", 0, stage), 0)
    for placement, groups in costs.layout.replica_groups(stage).items():
        nodes, slices = len(placement), max(placement)
        if nodes == 1 or slices == 1:
            continue
        bounds = [slice_bounds(costs.chunks[stage][chunk].parameters, slices, number) for number in range(slices)]
        sizes = [costs.slice_bytes(stage, stop - start, nodes) for start, stop in bounds]
        sent = sum(bytes_sent_by_rank("allreduce", size, nodes) for size in sizes) * nodes * groups
        times = -(-slices // min(placement))
        seconds = costs.groups.owners("allreduce", sizes[0], stage, placement) * times
        yield Traffic("allreduce", "batch", sizes[0], times, seconds, sent)


def _model_groups(costs: StageCosts, stage: int, chunk: int) -> Iterator[Traffic]:
    forward_passes = 1 + costs.layout.recomputes(stage)
    for split in costs.chunks[stage][chunk].splits:
        forward = "allreduce" if split.by_inputs else "allgather" if split.gathers else None
        if forward is not None:
            yield _activations(costs, stage, forward, split.layer.outputs, forward_passes)
        if not split.by_inputs and split.layer.index > 0:
            yield _activations(costs, stage, "allreduce", split.layer.inputs, 1)


def _activations(costs: StageCosts, stage: int, operation: str, features: int, passes: int) -> Traffic:
    """One collective per microbatch and pass, on activations or their gradients."""
    layout, batch_size = costs.layout, costs.workload.batch_size
    _, model = layout.stages[stage]
    sample_bytes = features * costs.workload.itemsize
    sizes = [layout.microbatch_samples(stage, number, batch_size) for number in range(layout.microbatches)]
    seconds = sum(costs.groups.model(operation, sample_bytes * size, stage) for size in sizes) * passes
    sent = bytes_sent_by_rank(operation, sample_bytes * batch_size, model) * model * passes
    return Traffic(operation, "model", sample_bytes * sizes[0], layout.microbatches * passes, seconds, sent)


def _between_stages(costs: StageCosts, stage: int, chunk: int) -> Iterator[Traffic]:
    """Messages with the activations that a chunk receives and the gradients that it returns: whole for every rank."""
    workload, layout = costs.workload, costs.layout
    if stage == 0 and chunk == 0:
        return
    before = (stage - 1) % len(layout.stages)
    for gradients, receiver, sender in ((False, stage, before), (True, before, stage)):
        receiving_chunk = chunk if not gradients else chunk - (stage == 0)
        channel = Channel(sender, receiver, gradients, receiving_chunk)
        messages = [(channel, 0, number) for number in range(layout.microbatches)]
        features = costs.chunks[stage][chunk].splits[0].layer.inputs
        sent = features * workload.itemsize * workload.batch_size * layout.stages[receiver][1]
        seconds = sum(costs.message(message) for message in messages)
        yield Traffic("send", "pipeline", costs.message_bytes(messages[0]), len(messages), seconds, sent)
