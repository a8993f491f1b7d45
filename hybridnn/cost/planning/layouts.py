"""All layouts in which a number of ranks can train: process grids, splits, methods, microbatches.

A layout in words, as settings, and what it means for the training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.planning.balance import balanced_layers
from hybridnn.cost.prediction.workload import GradientRounding, Layout, Workload
from hybridnn.errors import GridError, SettingError
from hybridnn.kernels.sixteen_bits import COMPRESSED_FORMATS
from hybridnn.parallel.layer_split import MODEL_SPLITS, split_layers
from hybridnn.pipeline.schedules.methods import METHODS, Method
from hybridnn.pipeline.schedules.weight_policies import PREDICTED, STASHED
from hybridnn.utils.checks import require_whole
from hybridnn.utils.text import counted


def layout_words(layout: Layout) -> str:
    """For example ``pipeline 2 x batch 4 x model 2 (columns), 1f1b with 8 microbatches``."""
    stages = len(layout.stages)
    widths = set(layout.stages)
    if len(widths) > 1:
        text = "stages " + " + ".join(f"{batch} x {model}" for batch, model in layout.stages)
    else:
        batch, model = layout.stages[0]
        axes = (("pipeline", stages), ("batch", batch), ("model", model))
        text = " x ".join(f"{name} {size}" for name, size in axes if size > 1) or "one rank"
    if any(model > 1 for _, model in widths):
        text += f" ({layout.split})"
    if stages > 1:
        text += f", {layout.method}"
        text += f" with {layout.microbatches} microbatches" if layout.microbatches > 1 else ""
    return text + ("" if layout.overlap else ", without overlap")


def layout_settings(layout: Layout) -> dict[str, Any]:
    """The keys of ``[parallel]`` that choose a layout whose stages have one width, as plain values."""
    batch, model = layout.stages[0]
    keys: dict[str, Any] = {
        "pipeline": len(layout.stages),
        "batch": batch,
        "model": model,
        "model_split": layout.split,
    }
    if model > 1 or (batch > 1 and layout.sharing_ranks is None):
        keys["overlap"] = layout.overlap  # elsewhere it means nothing
    if layout.wire is not None:
        keys["wire_dtype"] = layout.wire.words.name
    if len(layout.stages) == 1:
        return keys
    return keys | {
        "method": layout.method,
        "microbatches": layout.microbatches,
        "chunks": layout.chunks,
        "partition": list(layout.layers),
        "vertical_sync": layout.vertical_sync,
        "weight_grad": "auto" if layout.merges or METHODS[layout.method].placed_weight_gradients else "per-microbatch",
    }


def staleness(layout: Layout) -> str:
    """How old the weights are that a gradient is computed with."""
    if layout.exact:
        return "exact"
    most = len(layout.stages) - 1
    updates = counted(most, "update")
    if layout.vertical_sync:
        return f"stale by {updates}"
    policy = METHODS[layout.method].policy
    if policy is STASHED:
        return f"stale by up to {updates}"
    return "weights predicted" if policy is PREDICTED else "inconsistent"


PER_STAGE = 8
"""Most microbatches per stage: the bubble of a flushed pipeline is below a ninth of its work then."""

MOST_MICROBATCHES = 256


@dataclass(frozen=True)
class Constraints:
    """What a layout has to be; None where anything will do.

    Attributes
    ----------
    pipeline, batch, model : int
    split : {"columns", "alternating"}
    overlap : bool
    method : str
        Of a pipeline; one stage has none but ``sequential``.
    microbatches, chunks : int
        Of a pipeline.
    shared : bool
        False: no replicas that the batch ranks of a node share.
    wire_dtype : {"bfloat16", "float16"}
        What gradients are rounded to between nodes; None: they travel as computed.
    exact : bool
        True: only layouts that train as one rank does, but for such rounding.
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


ANY = Constraints()


class _Pipelined(NamedTuple):
    """A method with the numbers it is used with."""

    method: str
    microbatches: int
    chunks: int
    merges: bool


def feasible_layouts(
    workload: Workload, machine: Machine, ranks: int, constraints: Constraints = ANY
) -> Iterator[Layout]:
    """All layouts of exactly `ranks` ranks in which every rank has samples, layers and outputs.

    All stages have the same width; layers are dealt out to them by the machine's times. Microbatches are powers of two
    and the stages times powers of two, up to eight per stage and 256 in all. Vertical synchronization is left out: it
    takes memory and no less time.

    Parameters
    ----------
    workload : Workload
    machine : Machine
    ranks : int
    constraints : Constraints

    Raises
    ------
    SettingError
        If there are more ranks than the model can use, or constraints that no layout meets.
    """
    require_whole("ranks", ranks, 1)
    grids = list(_grids(workload, ranks))
    if not grids:
        fewer = f"{most_ranks(workload, ranks)} is the largest number up to {ranks} that this model can use"
        limits = f"{len(workload.model.layers)} layers, {workload.batch_size} samples in a minibatch"
        raise SettingError("ranks", ranks, f"{fewer}: it has {limits}, and {_narrowest(workload)} outputs to split")
    found = False
    for pipeline, batch, model in grids:
        for layout in _of_grid(workload, machine, pipeline, batch, model, constraints):
            found = True
            yield layout
    if not found:
        asked = ", ".join(f"{key} = {value}" for key, value in vars(constraints).items() if value is not None)
        raise SettingError("parallel", asked, f"no layout of {ranks} ranks that this model can use has all of these")


def most_ranks(workload: Workload, limit: int) -> int:
    """The largest number of ranks up to `limit` for which there is a layout."""
    layers, narrowest = len(workload.model.layers), _narrowest(workload)
    ranks = min(limit, layers * workload.batch_size * narrowest)
    while not any(_grids(workload, ranks)):
        ranks -= 1
    return ranks


def _narrowest(workload: Workload) -> int:
    """The most model ranks there can be: with alternating splits, some layers need not be split by their outputs."""
    return max(_most_model_ranks(workload, split, 1) for split in MODEL_SPLITS)


def _most_model_ranks(workload: Workload, split: str, pipeline: int) -> int:
    """Outputs of the narrowest layer that is split by them, where the stages cannot be chosen around it."""
    layers = workload.model.layers
    if split == "alternating" and pipeline == 1:
        layers = layers[::2]
    return min(layer.outputs for layer in layers)


def _grids(workload: Workload, ranks: int) -> Iterator[tuple[int, int, int]]:
    """Pipeline, batch and model ranks."""
    for pipeline in range(1, len(workload.model.layers) + 1):
        widest = max(_most_model_ranks(workload, split, pipeline) for split in MODEL_SPLITS)
        replicas, rest = divmod(ranks, pipeline)
        for batch in range(min(replicas, workload.batch_size), 0, -1) if rest == 0 else ():
            if replicas % batch == 0 and replicas // batch <= widest:
                yield pipeline, batch, replicas // batch


def _of_grid(
    workload: Workload, machine: Machine, pipeline: int, batch: int, model: int, wanted: Constraints
) -> Iterator[Layout]:
    if not (_is(pipeline, wanted.pipeline) and _is(batch, wanted.batch) and _is(model, wanted.model)):
        return
    stages = ((batch, model),) * pipeline
    node_ranks = machine.node_ranks(pipeline * batch * model)
    sharing_ranks = node_ranks if batch > 1 and node_ranks > model and wanted.shared is not False else None
    # A gradient that is never sent has nothing to overlap with.
    overlaps = (True, False) if model > 1 or (batch > 1 and sharing_ranks is None) else (wanted.overlap is not False,)
    partitions: dict[tuple[int, int], tuple[int, ...]] = {}
    for way in _pipelined(workload, pipeline, batch, wanted):
        key = way.chunks, way.microbatches
        if key not in partitions:
            partitions[key] = (
                balanced_layers(workload, machine, stages, chunks=way.chunks, microbatches=way.microbatches)
                if pipeline > 1
                else (len(workload.model.layers),)
            )
        for split in MODEL_SPLITS if model > 1 else MODEL_SPLITS[:1]:
            for overlap in overlaps:
                layout = Layout(
                    stages,
                    partitions[key],
                    split,
                    overlap,
                    way.method,
                    way.microbatches,
                    way.chunks,
                    merges=way.merges,
                    sharing_ranks=sharing_ranks,
                    wire=None
                    if wanted.wire_dtype is None
                    else GradientRounding(COMPRESSED_FORMATS[wanted.wire_dtype], node_ranks),
                )
                if _is(split, wanted.split) and _is(overlap, wanted.overlap) and _can_split(workload, layout):
                    yield layout


def _is(value: object, wanted: object) -> bool:
    return wanted is None or value == wanted


def _can_split(workload: Workload, layout: Layout) -> bool:
    """Whether no rank is left without outputs; and a split that alternates needs two layers in a stage to do so."""
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


def _pipelined(workload: Workload, pipeline: int, batch: int, wanted: Constraints) -> Iterator[_Pipelined]:
    """The methods that can be used, with numbers of microbatches and chunks."""
    if pipeline == 1:
        if _is("sequential", wanted.method):
            yield _Pipelined("sequential", 1, 1, merges=True)
        return
    for method in METHODS.values():
        if not _is(method.name, wanted.method) or (wanted.exact and not method.exact):
            continue
        if not method.exact and workload.clips:  # the norm of all gradients is known too late
            continue
        if method.predicts and not workload.slots:
            continue
        for chunks in _chunks(workload, method, pipeline, wanted):
            for microbatches in _microbatches(workload, method, pipeline, batch, wanted):
                yield _Pipelined(method.name, microbatches, chunks, merges=not method.placed_weight_gradients)


def _chunks(workload: Workload, method: Method, pipeline: int, wanted: Constraints) -> list[int]:
    if not method.chunked:
        return [1] if _is(1, wanted.chunks) else []
    usual = [2] if wanted.chunks is None else [wanted.chunks]
    return [chunks for chunks in usual if chunks > 1 and chunks * pipeline <= len(workload.model.layers)]


def _microbatches(workload: Workload, method: Method, pipeline: int, batch: int, wanted: Constraints) -> list[int]:
    """Numbers of microbatches that leave no rank without a sample of one."""
    if not method.cuts_minibatches:
        return [1] if _is(1, wanted.microbatches) else []
    most = workload.batch_size // batch
    if wanted.microbatches is not None:
        counts = {wanted.microbatches}
    else:
        most = min(most, PER_STAGE * pipeline, MOST_MICROBATCHES)
        powers = [1 << bit for bit in range(1, MOST_MICROBATCHES.bit_length())]
        counts = {*powers, pipeline, *(pipeline * power for power in powers)}
    fit = [count for count in sorted(counts) if count <= most]
    return [count for count in fit if not method.chunked or count % pipeline == 0]
