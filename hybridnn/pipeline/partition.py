"""Partition of layers into stages: equal counts, or the counts for which the slowest part of the pipeline is fastest.

A pipeline is as fast as its slowest part (Harlap et al. 2018, PipeDream, arXiv:1806.03377, section 3.2). Its parts are
the stages and the boundaries between them, at which activations go forward and their gradients come back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.blocks import block_sizes
from hybridnn.comm.group import Group
from hybridnn.comm.recorder import Recorder
from hybridnn.errors import SettingError
from hybridnn.nn.kernels import NUMPY
from hybridnn.nn.mlp import MLP
from hybridnn.nn.parameters import ParameterLayout
from hybridnn.parallel.dense import parallel_dense, split_layers
from hybridnn.parallel.workspace import StageRole, Workspace
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
    if any(isinstance(count, bool) or not isinstance(count, int) or count < 1 for count in counts):
        raise error("each stage needs a whole number of layers, 1 or more")
    if sum(counts) != layers:
        raise error(f"the counts add up to {sum(counts)}, the network has {layers} layers")


def uniform_partition(layers: int, stages: int) -> tuple[int, ...]:
    """Equal counts of layers; the first ``layers mod stages`` stages have one more.

    Eleven layers over three stages are 4, 4, 3 (Kang 2019, section 3.1). Errors are those of `check_stages`.
    """
    check_stages(layers, stages)
    return tuple(block_sizes(layers, stages))


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


# -- times of layers ---------------------------------------------------------------------------------------------------


class LayerProfile(NamedTuple):
    """Seconds of one layer, for one minibatch or microbatch on one rank."""

    forward_seconds: float
    backward_seconds: float  # of the complete backward pass


def time_layers(model: MLP, samples: int, dtype: DTypeLike, repeats: int = REPEATS) -> tuple[LayerProfile, ...]:
    """Time the passes of every layer in this process with a minibatch or microbatch, without the loss and the update.

    Every time is the median over `repeats` passes after one for warming up, with one BLAS thread, as for ranks that
    share a node.
    """
    from threadpoolctl import threadpool_limits

    time_passes = layer_timer(model, samples, dtype)
    with threadpool_limits(limits=1, user_api="blas"):
        _, *rounds = [time_passes() for _ in range(1 + repeats)]
    return tuple(
        LayerProfile(
            forward_seconds=median(passes.forward for passes in of_layer),
            backward_seconds=median(passes.input_gradient + passes.weight_gradient for passes in of_layer),
        )
        for of_layer in zip(*rounds, strict=True)
    )


class LayerSeconds(NamedTuple):
    """Times of one layer's passes."""

    forward: float
    input_gradient: float
    weight_gradient: float


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
            (
                timed(backward_input, dense, weights, own),
                timed(dense.backward_weight, own, gradient),
            )
            for dense, weights, gradient, own in reversed(items)
        ]
        return [LayerSeconds(ahead, *back) for ahead, back in zip(forward, reversed(backward), strict=True)]

    return time_passes
