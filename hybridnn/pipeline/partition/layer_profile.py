"""Times of the passes of layers, measured in this process."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.group import Group
from hybridnn.comm.recorder import Recorder
from hybridnn.nn.kernels import NUMPY
from hybridnn.nn.mlp import MLP
from hybridnn.nn.parameters import ParameterLayout
from hybridnn.parallel.dense import parallel_dense, split_layers
from hybridnn.parallel.workspace import StageRole, Workspace

REPEATS = 20  # timed passes, of which the median is taken


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


# -- passes ----------------------------------------------------------------------------------------------------------


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
