"""Choice of the pipeline of a layout: its method, microbatches, chunks and partition."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from hybridnn.errors import SettingError
from hybridnn.nn.optimizers import SGD
from hybridnn.parallel.grid import StageShapes
from hybridnn.pipeline.layout import PARTITIONS, Layout
from hybridnn.pipeline.partition import (
    TYPICAL_LINK,
    balance,
    check_partition,
    check_stages,
    microbatch_counts,
    time_layers,
    typical_partition,
    typical_step,
    uniform_partition,
)
from hybridnn.pipeline.schedules.methods import METHODS, find_method, require_supported, too_few_stages
from hybridnn.pipeline.schedules.schedule import Method, ScheduleSize
from hybridnn.training.config import TrainConfig
from hybridnn.utils.checks import require_choice


def resolve_pipeline(config: TrainConfig, stages: StageShapes) -> dict[str, Any]:
    """The fields of a `Layout` that concern its pipeline: see `hybridnn.training.layout_choice.resolve_layout`."""
    count = len(stages)
    method, chunks = find_method(config.method), config.chunks
    if chunks is None:
        chunks = 2 if method.chunked else 1
    weight_grad = "per-microbatch" if config.weight_grad == "auto" else config.weight_grad
    least = count if method.cuts_minibatches else 1
    given = least if config.microbatches is None else config.microbatches
    require_supported(method, ScheduleSize(count, 1, given, chunks, config.barriers), weight_grad)
    _require_compatible(method, count, config)
    if isinstance(config.partition, str):
        require_choice("parallel.partition", config.partition, PARTITIONS)
    if count == 1:
        if not method.exact:
            raise too_few_stages(method.name)
        method, chunks = METHODS["sequential"], 1
    microbatches = 1
    layers: tuple[int, ...] = (len(config.model.layers),)
    if count > 1 or not isinstance(config.partition, str):
        _require_partition(config, count, chunks)
    if count > 1:
        microbatches, layers = _divided(config, method, stages, chunks)
    return {
        "layers": layers,
        "method": method.name,
        "microbatches": microbatches,
        "chunks": chunks,
        "merges": config.weight_grad != "per-microbatch" and not method.placed_weight_gradients,
        "barriers": config.barriers,
    }


def _require_partition(config: TrainConfig, stages: int, chunks: int) -> None:
    """Raise a `SettingError` for more chunks than layers, or layers of the chunks that do not fit them."""
    partition, layers = config.partition, len(config.model.layers)
    check_stages(layers, stages)
    if stages * chunks > layers:
        allowed = f"{stages} stages of so many need {stages * chunks} layers or more"
        raise SettingError("parallel.chunks", chunks, allowed)
    if not isinstance(partition, str):
        check_partition(partition, layers, stages * chunks)


def _divided(config: TrainConfig, method: Method, stages: StageShapes, chunks: int) -> tuple[int, tuple[int, ...]]:
    """Number of microbatches, and layers of every virtual stage: if not given, the fastest by typical costs."""
    model, batch_size, itemsize = config.model, config.batch_size, np.dtype(config.dtype).itemsize

    def layers(microbatches: int) -> tuple[int, ...]:
        if config.partition == "balanced":
            return typical_partition(model, stages, chunks, ceil(batch_size / microbatches), itemsize)
        if isinstance(config.partition, str):
            return uniform_partition(len(model.layers), len(stages) * chunks)
        return tuple(config.partition)

    def picoseconds(divided: tuple[int, tuple[int, ...]]) -> int:
        microbatches, counts = divided
        return typical_step(model, stages, counts, microbatches, batch_size, itemsize, drains=method.exact)

    if config.microbatches is not None:
        numbers = [config.microbatches]
    else:  # of very few samples some ranks have none
        numbers = microbatch_counts(method, stages, batch_size) or [len(stages)]
    return min(((number, layers(number)) for number in numbers), key=picoseconds)


def _require_compatible(method: Method, stages: int, config: TrainConfig) -> None:
    if method.predicts and not config.optimizer.predicts_weights:
        if isinstance(config.optimizer, SGD):
            raise SettingError("optimizer.momentum", 0.0, f"above 0 with {method.name}, which predicts weights from it")
        allowed = f"does not predict weights, as {method.name} needs"
        raise SettingError("optimizer.name", config.optimizer.name, allowed)
    if stages == 1:
        return
    if config.distribution != "local":
        raise SettingError(
            "data.distribution", config.distribution, "local with a pipeline: its first and last stage read"
        )


MOST_TIMED = 1 << 12  # samples with which layers are timed: the times of more are in the same proportions


def profiled_layers(layout: Layout, config: TrainConfig) -> tuple[int, ...]:
    """Partition for which the slowest stage or message is fastest, by times that are measured here.

    The layers of a stage are timed with one rank's share of a microbatch, and the time is divided by the number of its
    model ranks. Messages are assigned the typical times inside a node.
    """
    model, dtype = config.model, np.dtype(config.dtype)
    samples = min(ceil(config.batch_size / layout.microbatches), MOST_TIMED)
    profiles = {batch: time_layers(model, ceil(samples / batch), dtype) for batch in {b for b, _ in layout.stages}}

    def seconds(batch: int, model_ranks: int) -> list[float]:
        return [sum(layer) / model_ranks for layer in profiles[batch]]

    sizes = [layer.outputs * samples * dtype.itemsize for layer in model.layers[:-1]]
    boundaries = [2 * TYPICAL_LINK.message_seconds(size) for size in sizes]
    return balance(layout.stages, layout.chunks, seconds, boundaries)
