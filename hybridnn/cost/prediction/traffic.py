"""What a layout sends in a step: every kind of collective and message, with its bytes and its time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hybridnn.comm.recorder import bytes_sent_by_rank
from hybridnn.cost.prediction.stage_costs import StageCosts, bytes_of_slice
from hybridnn.cost.prediction.workload import Layout, Workload
from hybridnn.parallel.replicas.sharing import slice_bounds
from hybridnn.pipeline.schedules.message_flow import Channel


@dataclass(frozen=True)
class Traffic:
    """One kind of communication of a stage.

    Attributes
    ----------
    operation : str
        As in ``hybridnn.comm.recorder``; ``"send"`` for messages between stages, and ``"barrier"``.
    axis : {"batch", "model", "pipeline", "world"}
    nbytes : int
        Of one operation.
    times : int
        Operations in a step.
    seconds : float
        Of all of them, if every one is waited for.
    bytes_sent : int
        By all ranks together in a step.
    """

    operation: str
    axis: str
    nbytes: int
    times: int
    seconds: float
    bytes_sent: int


def traffic_of(workload: Workload, layout: Layout, costs: StageCosts) -> tuple[Traffic, ...]:
    """All communication of a step; collectives of the model group with those of all microbatches of a layer as one."""
    found = [item for stage in range(len(layout.stages)) for item in _of_stage(workload, layout, costs, stage)]
    if workload.distribution != "local":
        found += _of_distribution(workload, layout, costs)
    if layout.exact and len(layout.stages) > 1:
        sent = bytes_sent_by_rank("broadcast", 8, layout.ranks, is_root=True)
        found.append(Traffic("broadcast", "world", 8, 1, costs.groups.world("broadcast", 8), sent))
    return tuple(found)


def _of_distribution(workload: Workload, layout: Layout, costs: StageCosts) -> Iterator[Traffic]:
    """Samples and targets on their way from rank 0."""
    (batch, model), sizes = layout.stages[0], workload.model.sizes
    features = sizes[0] * workload.itemsize
    features += 8 if workload.classification else sizes[-1] * workload.itemsize
    nbytes = features * workload.batch_size
    if workload.distribution == "scatter":
        sent = bytes_sent_by_rank("scatter", nbytes * model, layout.ranks, is_root=True)
        yield Traffic("scatter", "world", nbytes * model, 1, costs.groups.world("scatter", nbytes * model), sent)
        return
    sent = bytes_sent_by_rank("scatter", nbytes, batch, is_root=True)
    yield Traffic("scatter", "batch", nbytes, 1, costs.groups.batch("scatter", nbytes, 0), sent)
    part = nbytes // batch
    sent = bytes_sent_by_rank("broadcast", part, model, is_root=True) * batch
    yield Traffic("broadcast", "model", part, 1, costs.groups.model("broadcast", part, 0), sent)


def _of_stage(workload: Workload, layout: Layout, costs: StageCosts, stage: int) -> Iterator[Traffic]:
    batch, model = layout.stages[stage]
    for chunk, _ in enumerate(costs.chunks[stage]):
        if layout.shares(stage):
            yield from _of_sharers(workload, layout, costs, stage, chunk)
        if batch > 1 and layout.keeps_replicas(stage):
            nbytes = costs.gradient_bytes(stage, chunk)
            seconds = costs.groups.batch("allreduce", nbytes, stage)
            groups = layout.sharers(stage)[(1,) * batch]
            sent = bytes_sent_by_rank("allreduce", nbytes, batch) * batch * groups
            yield Traffic("allreduce", "batch", nbytes, 1, seconds, sent)
            if layout.words(stage) is not None:
                yield _of_loss(workload, layout, costs, stage)
        if model > 1:
            yield from _of_model_group(workload, layout, costs, stage, chunk)
        yield from _between_stages(workload, layout, costs, stage, chunk)


def _of_loss(workload: Workload, layout: Layout, costs: StageCosts, stage: int) -> Traffic:
    """The loss, where it does not travel with the gradients."""
    (batch, model), item = layout.stages[stage], workload.itemsize
    sent = bytes_sent_by_rank("allreduce", item, batch) * batch * model
    return Traffic("allreduce", "batch", item, 1, costs.groups.batch("allreduce", item, stage), sent)


def _of_sharers(workload: Workload, layout: Layout, costs: StageCosts, stage: int, chunk: int) -> Iterator[Traffic]:
    """The loss, the barrier behind the update, and where there are several nodes the slices of the gradient."""
    yield _of_loss(workload, layout, costs, stage)
    yield Traffic("barrier", "batch", 0, 1, costs.groups.sharers("barrier", 0, stage), 0)
    for sharers, groups in layout.sharers(stage).items():
        nodes, slices = len(sharers), max(sharers)
        if nodes == 1 or slices == 1:
            continue
        bounds = [slice_bounds(costs.chunks[stage][chunk].parameters, slices, number) for number in range(slices)]
        sizes = [bytes_of_slice(layout, stage, stop - start, workload.itemsize, nodes) for start, stop in bounds]
        sent = sum(bytes_sent_by_rank("allreduce", size, nodes) for size in sizes) * nodes * groups
        times = -(-slices // min(sharers))
        seconds = costs.groups.owners("allreduce", sizes[0], stage, sharers) * times
        yield Traffic("allreduce", "batch", sizes[0], times, seconds, sent)


def _of_model_group(workload: Workload, layout: Layout, costs: StageCosts, stage: int, chunk: int) -> Iterator[Traffic]:
    passes = 1 + layout.recomputes(stage)
    for place, split in enumerate(costs.chunks[stage][chunk].splits):
        forward = "allreduce" if split.by_inputs else "allgather" if split.gathers else None
        if forward is not None:
            yield _repeated(workload, layout, costs, stage, forward, split.layer.outputs, passes)
        if not split.by_inputs and not (place == 0 and costs.chunks[stage][chunk].loads_input):
            yield _repeated(workload, layout, costs, stage, "allreduce", split.layer.inputs, 1)


def _repeated(
    workload: Workload, layout: Layout, costs: StageCosts, stage: int, operation: str, features: int, passes: int
) -> Traffic:
    """One collective per microbatch and pass on the activations of so many features."""
    _, model = layout.stages[stage]
    column = features * workload.itemsize
    sizes = [layout.samples_of(stage, number, workload.batch_size) for number in range(layout.microbatches)]
    seconds = sum(costs.groups.model(operation, column * size, stage) for size in sizes) * passes
    sent = bytes_sent_by_rank(operation, column * workload.batch_size, model) * model * passes
    return Traffic(operation, "model", column * sizes[0], layout.microbatches * passes, seconds, sent)


def _between_stages(workload: Workload, layout: Layout, costs: StageCosts, stage: int, chunk: int) -> Iterator[Traffic]:
    """Activations that come to a chunk, and the gradients that go back: to every model rank, whole."""
    stages = len(layout.stages)
    if stage == 0 and chunk == 0:
        return
    before = (stage - 1) % stages
    for gradients, receiver, sender in ((False, stage, before), (True, before, stage)):
        arrives = chunk if not gradients else chunk - (stage == 0)
        channel = Channel(sender, receiver, gradients, arrives)
        messages = [(channel, 0, number) for number in range(layout.microbatches)]
        features = costs.chunks[stage][chunk].splits[0].layer.inputs
        sent = features * workload.itemsize * workload.batch_size * layout.stages[receiver][1]
        seconds = sum(costs.message(message) for message in messages)
        yield Traffic("send", "pipeline", costs.message_bytes(messages[0]), len(messages), seconds, sent)
