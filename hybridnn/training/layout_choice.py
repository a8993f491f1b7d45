"""Choice of the layout of a training on a grid: its pipeline and shared replicas, and whether it fits the memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import ceil, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridnn.comm.agreement import agree, hosts_where, name_hosts, value_of_first
from hybridnn.comm.mpi import is_in_process
from hybridnn.errors import SettingError
from hybridnn.nn.kernels import Kernels
from hybridnn.nn.optimizers import SGD
from hybridnn.nn.parameters import ParameterLayout
from hybridnn.parallel.dense import split_layers
from hybridnn.parallel.grid import ProcessGrid, StageShapes
from hybridnn.pipeline.layout import PARTITIONS, Layout
from hybridnn.pipeline.schedules.methods import METHODS, find_method, require_supported, too_few_stages
from hybridnn.pipeline.schedules.program import plan_memory
from hybridnn.pipeline.schedules.schedule import Method, ScheduleSize
from hybridnn.training.config import OPTIONS, PIPELINE_OPTIONS, TrainConfig
from hybridnn.utils.checks import require_choice
from hybridnn.utils.text import format_bytes

if TYPE_CHECKING:
    from hybridnn.parallel.shared_replica import Sharing


def choose_layout(config: TrainConfig, grid: ProcessGrid, *, on_host: bool) -> Layout:
    """The layout of a training on a grid, equal on all ranks, with the layers of a ``profile`` partition; collective.

    All message sizes follow from it, so messages need no headers. Whether replicas are shared is chosen by
    `choose_sharing`. Errors are those of `resolve_layout`, on every rank.
    """
    layout = agree(grid.world, lambda: resolve_layout(config, grid.stages, grid.node_ranks, on_host=on_host))
    if config.partition != "profile":
        return layout
    return replace(layout, layers=tuple(value_of_first(grid.world, lambda: profiled_layers(layout, config))))


def resolve_layout(config: TrainConfig, stages: StageShapes, node_ranks: int, *, on_host: bool = True) -> Layout:
    """Resolve the wishes of a configuration on stages of (batch, model) ranks, and check them.

    With a single stage, every exact method becomes ``sequential`` with one microbatch, and other methods are refused.
    By default the microbatches and the partition are those that are fastest by typical costs. A ``profile`` partition
    is uniform here, because it requires timing the layers. Replicas are shared unless the configuration excludes it, or
    a GPU trains. `node_ranks` are the ranks of a full node.

    Raises `SettingError` if a setting is not allowed, or conflicts with another.
    """
    pipeline: dict[str, Any] = {"layers": (len(config.model.layers),), "merges": True}
    if len(stages) > 1 or any(getattr(config, name) != OPTIONS[name].default for name in PIPELINE_OPTIONS):
        pipeline = resolve_pipeline(config, stages)
    overlap = config.overlap
    if not isinstance(overlap, bool):
        # Within a node the cores that compute also copy the messages, so that overlap gains nothing
        # (benchmarks/batch_parallel.py).
        overlap = node_ranks < sum(map(prod, stages)) or not on_host
    return Layout(
        stages,
        model_split=config.model_split,
        overlap=overlap,
        shared_replicas=on_host and config.shared_replicas is not False,
        node_ranks=node_ranks,
        **pipeline,
    )


# -- pipeline ----------------------------------------------------------------------------------------------------------


def resolve_pipeline(config: TrainConfig, stages: StageShapes) -> dict[str, Any]:
    """The fields of a `Layout` that concern its pipeline: see `resolve_layout`."""
    from hybridnn.pipeline.partition import check_partition, check_stages  # a single stage needs no partition

    count = len(stages)
    method, chunks = find_method(config.method), config.chunks
    if chunks is None:
        chunks = method.chunks[0]
    weight_grad = "per-microbatch" if config.weight_grad == "auto" else config.weight_grad
    order = config.order if isinstance(config.order, tuple) else ()
    if order and config.microbatches is None:
        config = replace(config, microbatches=max(1, order[0].count("F")))
    least = count * max(1, method.microbatches_per_stage) if method.cuts_minibatches else 1
    given = least if config.microbatches is None else config.microbatches
    require_supported(method, ScheduleSize(count, 1, given, chunks, config.barriers, order=order), weight_grad)
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
        check_stages(len(config.model.layers), count)
        if count * chunks > len(config.model.layers):
            allowed = f"{count} stages of so many need {count * chunks} layers or more"
            raise SettingError("parallel.chunks", chunks, allowed)
    if not isinstance(config.partition, str):
        check_partition(config.partition, len(config.model.layers), count * chunks)
    if count > 1:
        microbatches, layers = _divided(config, method, stages, chunks)
    merges = config.weight_grad != "per-microbatch" and not method.placed_weight_gradients
    if method.ordered and not order:
        from hybridnn.cost.order_search import searched, typical_times

        layout = Layout(stages, layers, microbatches=microbatches)
        times = partial(typical_times, config.model, config.batch_size, np.dtype(config.dtype).itemsize)
        layout = searched(layout, times, config.order, None if config.weight_grad == "auto" else merges)
        order, merges = layout.order, layout.merges
    return {
        "layers": layers,
        "method": method.name,
        "microbatches": microbatches,
        "chunks": chunks,
        "merges": merges and "W" not in "".join(order),
        "barriers": config.barriers,
        "order": order,
    }


def _divided(config: TrainConfig, method: Method, stages: StageShapes, chunks: int) -> tuple[int, tuple[int, ...]]:
    """Number of microbatches, and layers of every virtual stage: if not given, the fastest by typical costs."""
    from hybridnn.pipeline.partition import microbatch_counts, typical_partition, typical_step, uniform_partition

    model, batch_size, itemsize = config.model, config.batch_size, np.dtype(config.dtype).itemsize
    placed = method.placement.stages(len(stages), chunks)

    def layers(microbatches: int) -> tuple[int, ...]:
        if config.partition == "balanced":
            shapes = tuple(stages[stage] for stage in placed)
            return typical_partition(model, shapes, ceil(batch_size / microbatches), itemsize)
        if isinstance(config.partition, str):
            return uniform_partition(len(model.layers), len(stages) * chunks)
        return tuple(config.partition)

    def picoseconds(divided: tuple[int, tuple[int, ...]]) -> int:
        microbatches, counts = divided
        return typical_step(model, stages, placed, counts, microbatches, batch_size, itemsize, drains=method.drains)

    if config.microbatches is not None:
        numbers = [config.microbatches]
    else:  # of very few samples some ranks have none
        numbers = microbatch_counts(method, stages, batch_size) or [max(1, method.microbatches_per_stage) * len(stages)]
    return min(((number, layers(number)) for number in numbers), key=picoseconds)


def _require_compatible(method: Method, stages: int, config: TrainConfig) -> None:
    if method.predicts and not config.optimizer.predicts_weights:
        if isinstance(config.optimizer, SGD):
            raise SettingError("optimizer.momentum", 0.0, f"above 0 with {method.name}, which predicts weights from it")
        allowed = f"does not predict weights, as {method.name} needs"
        raise SettingError("optimizer.name", config.optimizer.name, allowed)
    if config.order is not None and not method.ordered:
        raise SettingError("parallel.order", config.order, f"none with {method.name}, whose order is fixed")
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
    from hybridnn.pipeline.partition import TYPICAL_LINK, balance, time_layers

    model, dtype = config.model, np.dtype(config.dtype)
    samples = min(ceil(config.batch_size / layout.microbatches), MOST_TIMED)
    profiles = {batch: time_layers(model, ceil(samples / batch), dtype) for batch in {b for b, _ in layout.stages}}

    def seconds(batch: int, model_ranks: int) -> list[float]:
        return [sum(layer) / model_ranks for layer in profiles[batch]]

    sizes = [layer.outputs * samples * dtype.itemsize for layer in model.layers[:-1]]
    boundaries = [2 * TYPICAL_LINK.message_seconds(size) for size in sizes]
    placed = layout.placement.stages(len(layout.stages), layout.chunks)
    return balance([layout.stages[stage] for stage in placed], seconds, boundaries)


# -- shared replicas ---------------------------------------------------------------------------------------------------

TOO_FEW = "no node holds several ranks of a batch group"


def choose_sharing(
    config: TrainConfig, grid: ProcessGrid, layout: Layout, *, on_host: bool
) -> tuple[Layout, Sharing | None]:
    """Choose whether the batch ranks of a node share a replica; None for a private one. Collective over the grid.

    ``shared_replicas = "auto"`` shares if a node has several ranks of a batch group and enough memory. Some ranks may
    have a private replica where others share. Raises `SettingError` on every rank: ``shared_replicas`` is true, and
    sharing is impossible.
    """
    setting, sharing = config.shared_replicas, None
    if setting is False:
        reason = "not wished"
    elif not on_host:
        reason = "not available on a GPU"
    elif grid.size == 1:
        reason = TOO_FEW
    else:
        from hybridnn.parallel.shared_replica import share_replicas  # a single rank shares nothing

        sharing = share_replicas(grid)
        reason = _sharing_problem(sharing, config, grid, layout)
    if reason and setting is True:
        raise SettingError("parallel.shared_replicas", setting, f"{reason}; 'auto' and false are allowed")
    return replace(layout, shared_replicas=not reason), None if reason else sharing


def _sharing_problem(sharing: Sharing | None, config: TrainConfig, grid: ProcessGrid, layout: Layout) -> str:
    """The reason why replicas cannot be shared, the same text on every rank; empty if they can."""
    from hybridnn.parallel.nodes import free_shared_memory

    def window_bytes() -> int:
        """Upper bound of the bytes of the windows that this rank allocates, including gradients."""
        if sharing is None or not sharing.memory.is_leader:
            return 0
        versions = plan_memory(layout.largest_schedules()[0], grid.pipeline_rank).peak_weight_versions
        arrays = versions + len(config.optimizer.slot_names) + sharing.memory.group.size
        splits = [
            split_layers(layers, layout.model_split, grid.model, grid.model_rank)
            for layers in layout.layers_of(config.model, grid.pipeline_rank)
        ]
        elements = sum(ParameterLayout(chunk).size for chunk in splits)
        return arrays * elements * np.dtype(config.dtype).itemsize

    needed = np.array([agree(grid.world, window_bytes)], np.int64)
    grid.node_group.allreduce(needed)
    too_large = needed[0] > free_shared_memory()
    maxima = np.array([sharing is not None, too_large, needed[0] * too_large], np.int64)
    grid.world.allreduce(maxima, "max")
    if not maxima[0]:
        return TOO_FEW
    if not maxima[1]:
        return ""
    hosts = name_hosts(hosts_where(grid.world, bool(too_large)))
    return f"the shared memory of {hosts} (/dev/shm) has no room for {maxima[2]:,} bytes"


# -- memory ------------------------------------------------------------------------------------------------------------

MOST_ARRAYS = 16  # upper bound of the arrays of a rank for each of its parameters, and for each activation
LEAST_CHECKED = 1 << 30  # bytes: what is surely less is not computed exactly
TOLERANCE = 1.1  # available memory is an estimate of the system


def require_memory(
    config: TrainConfig,
    grid: ProcessGrid,
    layout: Layout,
    kernels: Kernels,
    samples: int = 0,
    *,
    labels: bool = True,
    held: int = 0,
    more: int = 0,
    unwritten: int = 0,
) -> None:
    """Check that a training fits the memory that is free; collective.

    Systems give memory when it is written: a training that is too large would be ended in the middle. `samples` are
    those of the largest minibatch; 0: of parameters, gradients and optimizer state only. `held` are bytes that this
    rank has allocated, `unwritten` those among them that it has not written, and `more` those that it needs besides in
    host memory.

    Raises `SettingError` on every rank: it does not fit the memory of one, with the bytes that are needed and free.
    """
    model, itemsize = config.model, np.dtype(config.dtype).itemsize
    ranks = max(grid.node_ranks, 1)
    elements = ranks * model.parameters + samples * sum(model.sizes) * grid.model
    if MOST_ARRAYS * elements * itemsize + ranks * more < LEAST_CHECKED:
        return
    from hybridnn.cost.prediction import Workload
    from hybridnn.cost.prediction.memory import stage_memory
    from hybridnn.utils.memory import available_memory, free_address_space  # small trainings do not need them

    workload = Workload(
        model,
        max(samples, 1),
        config.batch_size,
        np.dtype(config.dtype).name,
        config.optimizer,
        classification=labels,
        distribution=config.distribution,
    )
    memory = stage_memory(workload, layout, grid.pipeline_rank)
    needed = memory.weight_bytes + memory.optimizer_bytes
    if samples:
        needed = memory.total - held + (more if kernels.on_host else 0)
    on_node = np.array([needed, unwritten], np.int64)
    grid.node_group.allreduce(on_node)

    def check() -> None:
        of_process = int(on_node[0]) if is_in_process() else needed
        bounds = [(needed, float(kernels.free_bytes()), "on its GPU")]
        if kernels.on_host:
            bounds = [(int(on_node.sum()), available_memory(), "on its node")]
            bounds.append((of_process, free_address_space(), "within the limits of its process (ulimit -v, -d)"))
        for nbytes, free, where in bounds:
            if nbytes > TOLERANCE * free:
                of_samples = samples > 0 and 2 * (memory.activation_bytes + memory.buffer_bytes) > memory.total
                amounts = f": {format_bytes(nbytes)} are needed and {format_bytes(free)} are free {where}"
                raise does_not_fit(config, amounts, of_samples=of_samples)

    agree(grid.world, check)


def does_not_fit(config: TrainConfig, amounts: str = "", *, of_samples: bool) -> SettingError:
    """The error that the arrays of the samples, or else of the parameters, do not fit."""
    problem = f"do not fit this rank's memory{amounts}"
    if of_samples:
        return SettingError("training.batch_size", config.batch_size, f"the activations of a minibatch {problem}")
    what = f"{config.model.parameters:,} parameters, their gradients and the optimizer's state"
    return SettingError("model.sizes", config.model.sizes, f"{what} {problem}")
