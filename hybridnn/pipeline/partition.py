"""Partition of layers into stages: the counts for which the slowest part of the pipeline is fastest, or equal counts.

A pipeline is as fast as its slowest part (Harlap et al. 2018, PipeDream, arXiv:1806.03377, section 3.2). Its parts are
the stages and the boundaries between them, at which activations go forward and their gradients come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from math import ceil, inf
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.blocks import block_sizes
from hybridnn.comm.group import Group
from hybridnn.comm.recorder import Recorder
from hybridnn.errors import SettingError
from hybridnn.nn.kernels import NUMPY
from hybridnn.nn.mlp import MLP, DenseLayer
from hybridnn.nn.parameters import ParameterLayout
from hybridnn.parallel.dense import parallel_dense, split_layers
from hybridnn.parallel.grid import StageShapes
from hybridnn.parallel.workspace import StageRole, Workspace
from hybridnn.pipeline.schedules.schedule import Method
from hybridnn.utils.checks import require_whole

REPEATS = 20  # timed passes, of which the median is taken


class LinkCost(NamedTuple):
    """Cost of messages between any two ranks: `alpha` seconds per message and `beta` seconds per byte."""

    alpha: float
    beta: float

    def message_seconds(self, nbytes: float) -> float:
        """Seconds of one message: alpha + beta n (Hockney's model)."""
        return self.alpha + self.beta * nbytes


TYPICAL_LINK = LinkCost(alpha=5e-6, beta=2e-10)  # order of magnitude inside a node; not measured


def check_stages(layers: int, stages: int) -> None:
    """Raise a SettingError for more stages than layers."""
    require_whole("parallel.pipeline", stages, 1)
    if stages > layers:
        raise SettingError("parallel.pipeline", stages, f"at most {layers}, the number of layers")


def check_partition(counts: Sequence[int], layers: int, stages: int) -> None:
    """Raise a SettingError for counts of layers that are not a partition of `layers` into `stages`."""
    check_stages(layers, stages)

    def error(allowed: str) -> SettingError:
        return SettingError("parallel.partition", list(counts), allowed)

    if len(counts) != stages:
        raise error(f"needs one count of layers for each of {stages} stage{'s' * (stages > 1)}")
    if sum(counts) != layers:
        raise error(f"the counts add up to {sum(counts)}, the network has {layers} layers")


def uniform_partition(layers: int, stages: int) -> tuple[int, ...]:
    """Equal counts of layers; the first ``layers mod stages`` stages have one more.

    Eleven layers over three stages are 4, 4, 3 (Kang 2019, section 3.1). Errors are those of `check_stages`.
    """
    check_stages(layers, stages)
    return tuple(block_sizes(layers, stages))


def balance(
    shapes: Sequence[tuple[int, int]], layer_seconds: Callable[[int, int], Iterable[float]], boundaries: Sequence[float]
) -> tuple[int, ...]:
    """Counts of layers for virtual stages of (batch, model) ranks: `balanced_counts` by the layers' times.

    `layer_seconds` takes the batch and model ranks of a stage, and gives the time of every layer there.
    """
    sums = {shape: list(accumulate(layer_seconds(*shape), initial=0)) for shape in dict.fromkeys(shapes)}

    def seconds(virtual_stage: int, first: int, end: int) -> float:
        of_stage = sums[shapes[virtual_stage]]
        return of_stage[end] - of_stage[first]

    return balanced_counts(seconds, boundaries, len(shapes))


def balanced_counts(
    seconds: Callable[[int, int, int], float], boundaries: Sequence[float], stages: int
) -> tuple[int, ...]:
    """Counts of layers for unequal stages, for which the slowest stage or boundary is as fast as possible.

    PipeDream's dynamic programming (Harlap et al. 2018, section 3.2) for given ranks of every stage. Where a boundary
    is slowest, the slowest stage is as fast as it can be without a slower boundary. `seconds` takes a stage, its first
    layer and the one after its last, and more layers take no less time; `boundaries` has the seconds of the boundary
    after each layer but the last. There are at least as many layers as stages. Of several equally fast counts the same
    ones are always returned.
    """
    slowest, counts = _least_slowest(seconds, boundaries, stages)
    if slowest in boundaries:
        free = [0.0 if boundary <= slowest else inf for boundary in boundaries]
        _, counts = _least_slowest(seconds, free, stages)
    return counts


def _least_slowest(
    seconds: Callable[[int, int, int], float], boundaries: Sequence[float], stages: int
) -> tuple[float, tuple[int, ...]]:
    """Seconds of the slowest part, and the counts; of equally fast counts those with more layers in front."""
    layers = len(boundaries) + 1
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage in range(stages):
        after, shortest, longest = stages - stage - 1, min(best), max(best)
        found = {}
        for end in range(stage + 1 if after else layers, layers - after + 1):
            least = inf
            least_counts: tuple[int, ...] = ()
            # From the fewest layers in the last stage on; more of them take longer.
            for first in range(min(longest, end - 1), shortest - 1, -1):
                own, (cost, counts) = seconds(stage, first, end), best[first]
                if own > least:
                    break
                slowest = max(cost, own, boundaries[first - 1] if first else 0.0)
                # Negative counts, so that the least is that with more layers in front.
                if slowest < least or (slowest == least and (*counts, first - end) < least_counts):
                    least, least_counts = slowest, (*counts, first - end)
            found[end] = least, least_counts
        best = found
    slowest, counts = best[layers]
    return slowest, tuple(-count for count in counts)


# -- typical costs -----------------------------------------------------------------------------------------------------

# Picoseconds of float32 work on a usual core, of a pass through a layer. Whole numbers, so that all ranks, processors
# and versions of Python find the same partition.
INSTRUCTION = 10_000_000  # Python around a pass through a chunk
CALL = 6_000_000  # Python and the BLAS library, whatever the sizes
WEIGHT = 140  # reading or writing a weight, whatever the number of samples
ELEMENT = 200  # of the inputs and outputs, and their activation
MULTIPLY_ADD = 22  # 90 billion operations per second


def typical_partition(model: MLP, shapes: StageShapes, samples: int, itemsize: int) -> tuple[int, ...]:
    """Partition into virtual stages of these ranks by typical costs of a microbatch, which need no measurement."""

    def picoseconds(batch: int, model_ranks: int) -> list[int]:
        share = ceil(samples / batch)
        return [typical_passes(layer, model_ranks, share, itemsize) for layer in model.layers]

    boundaries = [typical_messages(layer.outputs * samples * itemsize) for layer in model.layers[:-1]]
    return balance(shapes, picoseconds, boundaries)


def typical_step(
    model: MLP,
    stages: StageShapes,
    placed: Sequence[int],
    layers: Sequence[int],
    microbatches: int,
    batch_size: int,
    itemsize: int,
    *,
    drains: bool,
) -> int:
    """Picoseconds of a step by typical costs: M passes through the layers of the slowest stage.

    If the pipeline `drains` after every minibatch, it waits for (K - 1) / v passes more, with K stages of v chunks.
    `placed` are the stages of the virtual stages.
    """
    count, samples = len(stages), ceil(batch_size / microbatches)
    work = [0] * count
    for stage, (first, end) in zip(placed, pairwise(accumulate(layers, initial=0)), strict=True):
        batch, model_ranks = stages[stage]
        passes = [typical_passes(it, model_ranks, ceil(samples / batch), itemsize) for it in model.layers[first:end]]
        messages = typical_messages(model.sizes[first] * samples * itemsize) if first else 0
        work[stage] += 2 * INSTRUCTION + sum(passes) + messages
    waiting = (count - 1) * count * max(work) // len(layers) if drains else 0
    return microbatches * max(work) + waiting


def typical_messages(nbytes: int) -> int:
    """Picoseconds of the activations of a microbatch on their way to the next stage, and of their gradients back."""
    alpha, beta = (round(1e12 * seconds) for seconds in TYPICAL_LINK)
    return 2 * (alpha + beta * nbytes)


def typical_passes(layer: DenseLayer, model_ranks: int, samples: int, itemsize: int) -> int:
    """Picoseconds of the forward and the backward pass through a layer that is split by its outputs."""
    outputs = ceil(layer.outputs / model_ranks)
    weights = outputs * layer.inputs
    work = weights * WEIGHT + samples * (weights * MULTIPLY_ADD + (outputs + layer.inputs) * ELEMENT)
    products = 3 if layer.index else 2  # the network's inputs have no gradient
    return products * (CALL + work * itemsize // 4)


# -- microbatches ------------------------------------------------------------------------------------------------------

MOST_MICROBATCHES_PER_STAGE = 8
"""Most microbatches per stage: with so many the bubble of an exact pipeline is below a ninth of its work."""

MOST_MICROBATCHES = 256


def microbatch_counts(method: Method, stages: StageShapes, batch_size: int) -> list[int]:
    """Numbers of microbatches among which the fastest is chosen: every rank has samples of each microbatch.

    They are powers of two and the stages times powers of two, from 2 on, up to eight per stage and 256 in all. Empty if
    the method needs more than that; 1 for methods that do not cut minibatches.
    """
    if not method.cuts_minibatches:
        return [1]
    count = len(stages)
    most = min(batch_size // max(batch for batch, _ in stages), MOST_MICROBATCHES_PER_STAGE * count, MOST_MICROBATCHES)
    powers = [1 << bit for bit in range(1, MOST_MICROBATCHES.bit_length())]
    counts = {*powers, count, *(count * power for power in powers)}
    return [it for it in sorted(counts) if it <= most and method.can_cut(it, count)]


# -- times of layers ---------------------------------------------------------------------------------------------------


class LayerSeconds(NamedTuple):
    """Seconds of one layer's passes, for one minibatch or microbatch on one rank."""

    forward: float
    input_gradient: float
    weight_gradient: float


def time_layers(model: MLP, samples: int, dtype: DTypeLike, repeats: int = REPEATS) -> tuple[LayerSeconds, ...]:
    """Time the passes of every layer in this process with a minibatch or microbatch, without the loss and the update.

    Every time is the median over `repeats` passes after one for warming up, with one BLAS thread, as for ranks that
    share a node.
    """
    from threadpoolctl import threadpool_limits

    time_passes = layer_timer(model, samples, dtype)
    with threadpool_limits(limits=1, user_api="blas"):
        _, *rounds = [time_passes() for _ in range(1 + repeats)]
    return tuple(LayerSeconds(*np.median(layer, axis=0).tolist()) for layer in zip(*rounds, strict=True))


def layer_timer(model: MLP, samples: int, dtype: DTypeLike) -> Callable[[], list[LayerSeconds]]:
    """A function that times all passes in one pass over the network, so that caches are filled as in training.

    The layers are unsplit, on arrays of their own; as in training, there is no gradient of the network's inputs.
    """
    alone = Group(None, "model", Recorder())
    splits = split_layers(model.layers, "columns", 1, 0)
    layout = ParameterLayout(splits)
    generator = np.random.default_rng(0)
    # Weights of usual size, because processors are many times slower on denormal numbers; repeated, because drawing
    # all would take longer than the passes.
    flat = np.resize(0.1 * generator.standard_normal(4096).astype(dtype), layout.size)
    arrays = Workspace(splits, samples, dtype, StageRole()).arrays(samples)
    arrays.samples[...] = generator.standard_normal(arrays.samples.shape)
    output_gradient = generator.standard_normal(arrays.output_gradient.shape).astype(dtype)
    layers = [parallel_dense(split, alone, False, NUMPY) for split in splits]
    parameters, gradients = layout.views(flat), layout.views(np.zeros(layout.size, dtype))
    items = list(zip(layers, parameters, gradients, arrays.layers, strict=True))

    def timed(action: Callable[..., Any], *arguments: Any) -> float:
        start = perf_counter()
        action(*arguments)
        return perf_counter() - start

    def backward_input(dense: Any, weights: Any, own: Any) -> None:
        dense.backward_input(weights, own).wait()

    def time_passes() -> list[LayerSeconds]:
        forward = [timed(dense.forward, weights, own) for dense, weights, _, own in items]
        # Gradients of earlier layers share its memory; without a reset they would grow from pass to pass.
        arrays.output_gradient[...] = output_gradient
        backward = [
            (timed(backward_input, dense, weights, own), timed(dense.backward_weight, own, gradient))
            for dense, weights, gradient, own in reversed(items)
        ]
        return [LayerSeconds(ahead, *back) for ahead, back in zip(forward, reversed(backward), strict=True)]

    return time_passes
