"""Traffic of a layout: the messages and collectives of a step, with their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hybridnn.cost.prediction.groups import Collective
from hybridnn.cost.prediction.places import replica_groups
from hybridnn.cost.prediction.stage_costs import StageCosts
from hybridnn.parallel.replica_sharing import slice_bounds
from hybridnn.pipeline.schedules.schedule import Channel


class Traffic(NamedTuple):
    """One kind of communication of a stage, named as in ``hybridnn.comm.recorder``: collectives, or ``"send"``."""

    operation: str
    axis: str
    nbytes: int  # bytes of one operation
    seconds: float  # seconds of all operations of a step, without overlap
    bytes_sent: int  # bytes that all ranks together send in a step


def traffic_of(costs: StageCosts) -> tuple[Traffic, ...]:
    """All communication of a step; a layer's collectives in its model groups are one item for all microbatches."""
    found = [
        item
        for stage in range(len(costs.layout.stages))
        for chunk in range(costs.layout.chunks)
        for part in (_batch_groups, _model_groups, _between_stages)
        for item in part(costs, stage, chunk)
    ]
    return (*found, *_loads(costs), *(_traffic(item, 1, item.bytes_sent) for item in costs.loss_broadcast()))


def _traffic(collective: Collective, times: int, bytes_sent: int) -> Traffic:
    return Traffic(*collective[:3], collective.seconds * times, bytes_sent)


def _loads(costs: StageCosts) -> Iterator[Traffic]:
    """Samples and targets that rank 0 distributes."""
    workload = costs.workload
    for nbytes in (workload.model.sizes[0] * workload.itemsize, workload.target_bytes):
        of_rank = costs.loads(nbytes, costs.layout.minibatch_samples(0, workload.batch_size))
        # The model groups together send as much as one with all samples would.
        of_all = costs.loads(nbytes, workload.batch_size)
        yield from (_traffic(item, 1, every.bytes_sent) for item, every in zip(of_rank, of_all, strict=True))


def _batch_groups(costs: StageCosts, stage: int, chunk: int) -> Iterator[Traffic]:
    """Reduction of the gradients and the loss, and the update of shared replicas."""
    layout = costs.layout
    if layout.stages[stage][0] == 1:
        return
    for placement, groups in replica_groups(layout, stage).items():
        reduction = costs.reduction(stage, chunk, placement)
        yield _traffic(reduction, 1, reduction.bytes_sent * groups)
        if max(placement) > 1:
            yield _traffic(costs.update_barrier(stage), 1, 0)
        if max(placement) > 1 and len(placement) > 1:
            slices, elements = max(placement), costs.chunks[stage][chunk].parameters
            bounds = [slice_bounds(elements, slices, number) for number in range(slices)]
            sums = [costs.slice_reduction(stage, stop - start, placement) for start, stop in bounds]
            yield _traffic(sums[0], -(-slices // min(placement)), sum(item.bytes_sent for item in sums) * groups)


def _model_groups(costs: StageCosts, stage: int, chunk: int) -> Iterator[Traffic]:
    """Collectives of the layers in both passes of all microbatches."""
    layout, batch_size, layers = costs.layout, costs.workload.batch_size, costs.chunks[stage][chunk]
    sizes = [layout.microbatch_samples(stage, number, batch_size) for number in range(layout.microbatches)]
    for split in layers.splits:
        for backward, passes in ((False, 1 + layout.recomputes(stage)), (True, 1)):
            by_size = {n: layers.collectives(split, n, backward=backward) for n in {*sizes, batch_size}}
            for number, largest in enumerate(by_size[sizes[0]]):
                seconds = passes * sum(by_size[size][number].seconds for size in sizes)
                # The groups together send as much as one with all samples would.
                sent = passes * by_size[batch_size][number].bytes_sent
                yield Traffic(*largest[:3], seconds, sent)


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
        seconds = sum(costs.message_times(message).whole for message in messages)
        yield Traffic("send", "pipeline", costs.message_bytes(messages[0]), seconds, sent)
