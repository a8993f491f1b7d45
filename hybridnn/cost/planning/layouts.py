"""Feasible layouts: all process grids, splits, methods and microbatches in which a number of ranks can train."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.planning.balance import balanced_layers
from hybridnn.cost.prediction.workload import GradientRounding, Layout, Workload
from hybridnn.errors import GridError, SettingError
from hybridnn.kernels.compressed_formats import COMPRESSED_FORMATS
from hybridnn.parallel.layer_split import MODEL_SPLITS, split_layers
from hybridnn.pipeline.schedules.methods import METHODS, Method
from hybridnn.utils.checks import require_whole

MICROBATCHES_PER_STAGE = 8
"""Most microbatches per stage: with so many the bubble of an exact pipeline is below a ninth of its work."""

MOST_MICROBATCHES = 256


@dataclass(frozen=True)
class Constraints:
    """Properties that a layout must have; None for any.

    Attributes
    ----------
    pipeline, batch, model : int
        Axes of the process grid.
    split : {"columns", "alternating"}
    method : str
        Of a pipeline; one stage has ``sequential``.
    microbatches, chunks : int
        Of a pipeline.
    shared : bool
        False: no shared replicas.
    wire_dtype : {"bfloat16", "float16"}
        Rounding of gradients between nodes; None for no rounding.
    exact : bool
        True: only layouts that train as one rank does, except for rounding.
    """

    pipeline: int | None = None
    batch: int | None = None
    model: int | None = None
    split: str | None = None
    overlap: bool | None = None
    method: str | None = None
    microbatches: int | None = None
    chunks: int | None = None
    shared: bool | None = None
    wire_dtype: str | None = None
    exact: bool | None = None


UNCONSTRAINED = Constraints()


def feasible_layouts(
    workload: Workload, machine: Machine, ranks: int, constraints: Constraints = UNCONSTRAINED
) -> Iterator[Layout]:
    """All layouts of exactly `ranks` ranks in which every rank has samples, layers and outputs.

    All stages have the same shape; layers are assigned to them by their times on the machine. Numbers of microbatches
    are powers of two and the stages times powers of two, up to eight per stage and 256 in all. Vertical synchronization
    is left out: it needs more memory and is not faster.

    Raises
    ------
    SettingError
        If there are more ranks than the model can use, or no layout meets the constraints.
    """
    require_whole("ranks", ranks, 1)
    grids = list(_grids(workload, ranks))
    if not grids:
        fewer = f"{most_ranks(workload, ranks)} is the largest number up to {ranks} that this model can use"
        limits = f"{len(workload.model.layers)} layers, {workload.batch_size} samples in a minibatch"
        widest = _most_model_ranks(workload, 1)
        raise SettingError("ranks", ranks, f"{fewer}: it has {limits}, and {widest} outputs to split")
    found = False
    for pipeline, batch, model in grids:
        for layout in _layouts_of_grid(workload, machine, (pipeline, batch, model), constraints):
            found = True
            yield layout
    if not found:
        required = ", ".join(f"{key} = {value}" for key, value in vars(constraints).items() if value is not None)
        raise SettingError("parallel", required, f"no layout of {ranks} ranks that this model can use has all of these")


def most_ranks(workload: Workload, limit: int) -> int:
    """The largest number of ranks up to `limit` for which there is a layout."""
    ranks = min(limit, len(workload.model.layers) * workload.batch_size * _most_model_ranks(workload, 1))
    while not any(_grids(workload, ranks)):
        ranks -= 1
    return ranks


def _most_model_ranks(workload: Workload, pipeline: int) -> int:
    """Outputs of the narrowest layer that has to be split by them.

    With one stage, the alternating split leaves out every second layer; with more, stages can begin at any layer.
    """
    layers = workload.model.layers[::2] if pipeline == 1 else workload.model.layers
    return min(layer.outputs for layer in layers)


def _grids(workload: Workload, ranks: int) -> Iterator[tuple[int, int, int]]:
    """Pipeline, batch and model ranks."""
    for pipeline in range(1, len(workload.model.layers) + 1):
        replicas, rest = divmod(ranks, pipeline)
        for batch in range(min(replicas, workload.batch_size), 0, -1) if rest == 0 else ():
            if replicas % batch == 0 and replicas // batch <= _most_model_ranks(workload, pipeline):
                yield pipeline, batch, replicas // batch


def _layouts_of_grid(
    workload: Workload, machine: Machine, grid: tuple[int, int, int], constraints: Constraints
) -> Iterator[Layout]:
    pipeline, batch, model = grid
    if not all(map(_allowed, grid, (constraints.pipeline, constraints.batch, constraints.model))):
        return
    node_ranks = machine.node_ranks(pipeline * batch * model)
    sharing_ranks = node_ranks if batch > 1 and node_ranks > model and constraints.shared is not False else None
    words = None if constraints.wire_dtype is None else COMPRESSED_FORMATS[constraints.wire_dtype]
    # Without gradients to send there is nothing to overlap.
    is_sent = model > 1 or (batch > 1 and sharing_ranks is None)
    overlaps = (True, False) if is_sent else (constraints.overlap is not False,)
    for bare in _pipelines(workload, machine, grid, constraints):
        for split in MODEL_SPLITS if model > 1 else MODEL_SPLITS[:1]:
            for overlap in overlaps:
                layout = replace(
                    bare,
                    split=split,
                    overlap=overlap,
                    sharing_ranks=sharing_ranks,
                    wire=None if words is None else GradientRounding(words, node_ranks),
                )
                allowed = _allowed(split, constraints.split) and _allowed(overlap, constraints.overlap)
                if allowed and _can_split(workload, layout):
                    yield layout


def _allowed(value: object, required: object) -> bool:
    return required is None or value == required


def _can_split(workload: Workload, layout: Layout) -> bool:
    """Whether every rank has outputs; the alternating split also needs two layers in some stage."""
    model = layout.stages[0][1]
    if model == 1:
        return True
    if layout.split == "alternating" and max(layout.layers) < 2:
        return False
    try:
        for stage in range(len(layout.stages)):
            for chunk in range(layout.chunks):
                split_layers(layout.layers_of(workload.model, stage, chunk), layout.split, model, 0)
    except GridError:
        return False
    return True


def _pipelines(
    workload: Workload, machine: Machine, grid: tuple[int, int, int], constraints: Constraints
) -> Iterator[Layout]:
    """Layouts with all methods, microbatches and chunks, and all else at its default."""
    pipeline, batch, model = grid
    stages = ((batch, model),) * pipeline
    if pipeline == 1:
        if _allowed("sequential", constraints.method):
            yield Layout(stages, (len(workload.model.layers),), merges=True)
        return
    partitions: dict[tuple[int, int], tuple[int, ...]] = {}
    for method in METHODS.values():
        if not _allowed(method.name, constraints.method) or (constraints.exact and not method.exact):
            continue
        if not method.exact and workload.clips:  # the norm of all gradients is known too late
            continue
        if method.predicts and not workload.slots:
            continue
        for chunks in _chunks(workload, method, pipeline, constraints):
            for microbatches in _microbatches(workload, method, pipeline, batch, constraints):
                key = chunks, microbatches
                if key not in partitions:
                    partitions[key] = balanced_layers(
                        workload, machine, stages, chunks=chunks, microbatches=microbatches
                    )
                yield Layout(
                    stages,
                    partitions[key],
                    method=method.name,
                    microbatches=microbatches,
                    chunks=chunks,
                    merges=not method.placed_weight_gradients,
                )


def _chunks(workload: Workload, method: Method, pipeline: int, constraints: Constraints) -> list[int]:
    if not method.chunked:
        return [1] if _allowed(1, constraints.chunks) else []
    chunks = 2 if constraints.chunks is None else constraints.chunks
    return [chunks] if chunks > 1 and chunks * pipeline <= len(workload.model.layers) else []


def _microbatches(workload: Workload, method: Method, pipeline: int, batch: int, constraints: Constraints) -> list[int]:
    """Numbers of microbatches with which every rank has samples of each."""
    if not method.cuts_minibatches:
        return [1] if _allowed(1, constraints.microbatches) else []
    most = workload.batch_size // batch
    if constraints.microbatches is not None:
        counts = {constraints.microbatches}
    else:
        most = min(most, MICROBATCHES_PER_STAGE * pipeline, MOST_MICROBATCHES)
        powers = [1 << bit for bit in range(1, MOST_MICROBATCHES.bit_length())]
        counts = {*powers, pipeline, *(pipeline * power for power in powers)}
    least = pipeline if method.fills_pipeline else 1
    factor = pipeline if method.chunked else 1
    return [count for count in sorted(counts) if least <= count <= most and count % factor == 0]
