"""Feasible layouts: all process grids, splits, methods and microbatches in which a number of ranks can train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import ceil
from types import MappingProxyType
from typing import Any

from hybridnn.cost.machine import Machine
from hybridnn.cost.prediction.groups import Groups
from hybridnn.cost.prediction.layer_costs import chunk_costs, of_shapes
from hybridnn.cost.prediction.workload import Workload
from hybridnn.errors import SettingError
from hybridnn.nn.mlp import DenseLayer
from hybridnn.parallel.dense import MODEL_SPLITS
from hybridnn.parallel.grid import StageShapes
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.partition import balance, microbatch_counts
from hybridnn.pipeline.schedules.methods import METHODS, Method
from hybridnn.utils.checks import require_whole

Wanted = Mapping[str, Any]
"""Values that a layout must have, by key of the settings section ``[parallel]``; any where there is none."""

ANY: Wanted = MappingProxyType({})


def feasible_layouts(
    workload: Workload, machine: Machine, ranks: int, wanted: Wanted = ANY, *, exact: bool = False
) -> Iterator[Layout]:
    """All layouts of exactly `ranks` ranks in which every rank has samples, layers and outputs.

    All stages have the same shape; layers are assigned to them by their times on the machine. Numbers of microbatches
    are powers of two and the stages times powers of two, up to eight per stage and 256 in all. Vertical synchronization
    is left out: it needs more memory and is not faster. With `exact`, methods are left out that do not train as one
    rank does.

    Raises
    ------
    SettingError
        If there are more ranks than the model can use, or no layout has the wanted values.
    """
    require_whole("ranks", ranks, 1)
    grids = list(_grids(workload, ranks))
    if not grids:
        fewer = f"{most_ranks(workload, ranks)} is the largest number up to {ranks} that this model can use"
        limits = f"{len(workload.model.layers)} layers, {workload.batch_size} samples in a minibatch"
        widest = _most_model_ranks(workload)
        raise SettingError("ranks", ranks, f"{fewer}: it has {limits}, and {widest} outputs to split")
    found = False
    for grid in grids:
        for layout in _layouts_of_grid(workload, machine, grid, wanted, exact=exact):
            found = True
            yield layout
    if not found:
        required = ", ".join(f"{key} = {value}" for key, value in (*wanted.items(), *[("exact", True)] * exact))
        raise SettingError("parallel", required, f"no layout of {ranks} ranks that this model can use has all of these")


def most_ranks(workload: Workload, limit: int) -> int:
    """The largest number of ranks up to `limit` for which there is a layout."""
    ranks = min(limit, len(workload.model.layers) * workload.batch_size * _most_model_ranks(workload))
    while not any(_grids(workload, ranks)):
        ranks -= 1
    return ranks


def _most_model_ranks(workload: Workload) -> int:
    """Outputs of the widest layer: more model ranks would have none of any layer."""
    return max(layer.outputs for layer in workload.model.layers)


def _grids(workload: Workload, ranks: int) -> Iterator[tuple[int, int, int]]:
    """Pipeline, batch and model ranks."""
    for pipeline in range(1, len(workload.model.layers) + 1):
        replicas, rest = divmod(ranks, pipeline)
        for batch in range(min(replicas, workload.batch_size), 0, -1) if rest == 0 else ():
            if replicas % batch == 0 and replicas // batch <= _most_model_ranks(workload):
                yield pipeline, batch, replicas // batch


def _layouts_of_grid(
    workload: Workload, machine: Machine, grid: tuple[int, int, int], wanted: Wanted, *, exact: bool
) -> Iterator[Layout]:
    pipeline, batch, model = grid
    if not all(_allowed(wanted, key, size) for key, size in zip(("pipeline", "batch", "model"), grid, strict=True)):
        return
    node_ranks = machine.node_ranks(pipeline * batch * model)
    shared = batch > 1 and node_ranks > model and wanted.get("shared_replicas") is not False
    # Without gradients to send there is nothing to overlap.
    is_sent = model > 1 or (batch > 1 and not shared)
    overlaps = [it for it in (True, False) if _allowed(wanted, "overlap", it)]
    splits = [it for it in (MODEL_SPLITS if model > 1 else MODEL_SPLITS[:1]) if _allowed(wanted, "model_split", it)]
    for bare in _pipelines(workload, machine, grid, wanted, exact=exact):
        for split in splits:
            for overlap in overlaps if is_sent else overlaps[:1]:
                layout = replace(
                    bare,
                    model_split=split,
                    overlap=overlap,
                    shared_replicas=shared,
                    node_ranks=node_ranks,
                )
                # The alternating split is that by columns, unless some stage has two layers.
                if model == 1 or split != "alternating" or max(layout.layers) > 1:
                    yield layout


def _allowed(wanted: Wanted, key: str, value: object) -> bool:
    return bool(wanted.get(key, value) == value)


def _pipelines(
    workload: Workload, machine: Machine, grid: tuple[int, int, int], wanted: Wanted, *, exact: bool
) -> Iterator[Layout]:
    """Layouts with all methods, microbatches and chunks, and all else at its default."""
    pipeline, batch, model = grid
    stages = ((batch, model),) * pipeline
    if pipeline == 1:
        if _allowed(wanted, "method", "sequential"):
            yield Layout(stages, (len(workload.model.layers),), merges=True)
        return

    @cache
    def layers(chunks: int, microbatches: int) -> tuple[int, ...]:
        return balanced_layers(workload, machine, stages, chunks=chunks, microbatches=microbatches)

    for method in METHODS.values():
        if not _allowed(wanted, "method", method.name):
            continue
        if not method.exact and (exact or workload.clips):  # the norm of all gradients is known too late
            continue
        if method.predicts and not workload.slots:
            continue
        for chunks in _chunks(workload, method, pipeline, wanted):
            for microbatches in _microbatches(workload, method, stages, wanted):
                yield Layout(
                    stages,
                    layers(chunks, microbatches),
                    method=method.name,
                    microbatches=microbatches,
                    chunks=chunks,
                    merges=not method.placed_weight_gradients,
                )


def _chunks(workload: Workload, method: Method, pipeline: int, wanted: Wanted) -> list[int]:
    if not method.chunked:
        return [1] if _allowed(wanted, "chunks", 1) else []
    chunks = wanted.get("chunks", 2)
    return [chunks] if chunks > 1 and chunks * pipeline <= len(workload.model.layers) else []


def _microbatches(workload: Workload, method: Method, stages: StageShapes, wanted: Wanted) -> list[int]:
    """Numbers of microbatches with which every rank has samples of each."""
    if "microbatches" not in wanted:
        return microbatch_counts(method, stages, workload.batch_size)
    count, pipeline = wanted["microbatches"], len(stages)
    if not method.cuts_minibatches:
        return [1] if count == 1 else []
    least, factor = pipeline if method.fills_pipeline else 1, pipeline if method.chunked else 1
    return [count] if least <= count <= workload.batch_size // stages[0][0] and count % factor == 0 else []


# -- layers of the stages --------------------------------------------------------------------------------------------


def balanced_layers(
    workload: Workload,
    machine: Machine,
    stages: Sequence[tuple[int, int]],
    *,
    chunks: int = 1,
    microbatches: int = 1,
) -> tuple[int, ...]:
    """Layers of every virtual stage for which the slowest stage, or boundary between two, is as fast as possible.

    The cost of a layer is that of its passes with a microbatch, split by its outputs over the model ranks of its stage:
    the smaller microbatches are, the more calls count beside arithmetic. The stages, of (batch, model) ranks, times the
    chunks are at most the layers.
    """
    layers = workload.model.layers
    groups = Groups(Layout.uniform(stages, len(layers)), machine)
    samples = ceil(workload.batch_size / microbatches)

    def layer_seconds(batch: int, model: int) -> Iterator[float]:
        return _layer_seconds(workload, groups, stages.index((batch, model)), ceil(samples / batch))

    # Which boundary lies between nodes is not known before the partition: all cost as much as the slowest.
    flows = {groups.flows(stage, stage + 1) for stage in range(len(stages) - 1)}
    sizes = [layer.outputs * samples * workload.itemsize for layer in layers[:-1]]
    slowest = (max(machine.message_seconds(size, spans_nodes=it > 0, flows=it) for it in flows) for size in sizes)
    boundaries = [2 * seconds for seconds in slowest]
    return balance(stages, chunks, layer_seconds, boundaries)


def _layer_seconds(workload: Workload, groups: Groups, stage: int, samples: int) -> Iterator[float]:
    """Seconds of the passes through every layer on a stage."""
    model = groups.model(stage)
    shared = model.ranks, model.crossings, workload.dtype, groups.busy_ranks, 1.0, True

    def passes(layer: DenseLayer) -> float:
        costs = chunk_costs(groups.machine, of_shapes([layer]), "columns", *shared)
        return (costs.forward(samples) + costs.backward(samples, accumulate=False)).total

    return map(passes, workload.model.layers)
