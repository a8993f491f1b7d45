"""The passes of every layer of a network, alone on arrays of their own, to be timed."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.group import Group
from hybridnn.comm.recorder import Recorder
from hybridnn.kernels.numpy_backend import NUMPY
from hybridnn.nn.mlp import MLP
from hybridnn.nn.parameters import ParameterLayout
from hybridnn.parallel.dense import parallel_dense
from hybridnn.parallel.layer_split import split_layers
from hybridnn.parallel.workspace import StageRole, Workspace

__all__ = ["LayerPasses", "LayerSeconds", "NetworkPasses", "layer_passes", "time_passes"]

Pass = Callable[[], object]


class LayerPasses(NamedTuple):
    """One layer's passes; each call runs one."""

    forward: Pass
    input_gradient: Pass
    weight_gradient: Pass


class LayerSeconds(NamedTuple):
    """How long one layer's passes took."""

    forward: float
    input_gradient: float
    weight_gradient: float


class NetworkPasses(NamedTuple):
    """The passes of all layers, and what puts the gradient of the outputs in place before the way back."""

    layers: list[LayerPasses]
    set_output_gradient: Pass


def layer_passes(model: MLP, samples: int, dtype: DTypeLike) -> NetworkPasses:
    """Passes of every layer, unsplit; the first layer computes no gradient of its input, as in training.

    Parameters
    ----------
    model : MLP
    samples : int
        Samples of a pass.
    dtype : {"float32", "float64"}
    """
    alone = Group(None, "model", Recorder())
    splits = split_layers(model.layers, "columns", 1, 0)
    layout = ParameterLayout([split.shard for split in splits])
    generator = np.random.default_rng(0)
    # Numbers of usual size, because a processor is many times slower on denormal ones; repeated, because drawing them
    # all would take longer than what is timed.
    flat = np.resize(0.1 * generator.standard_normal(4096).astype(dtype), layout.size)
    gradient = np.zeros(layout.size, dtype)
    arrays = Workspace(splits, 1, 0, samples, dtype, StageRole()).arrays(samples)
    arrays.samples[...] = generator.standard_normal(arrays.samples.shape)
    output_gradient = generator.standard_normal(arrays.output_gradient.shape).astype(dtype)
    parameters, gradients = layout.views(flat), layout.views(gradient)

    def passes(index: int) -> LayerPasses:
        dense, layer = parallel_dense(splits[index], alone, False, NUMPY), arrays.layers[index]
        return LayerPasses(
            lambda: dense.forward(parameters[index], layer),
            lambda: dense.backward_input(parameters[index], layer).wait(),
            lambda: dense.backward_weight(layer, gradients[index]),
        )

    def set_output_gradient() -> None:
        # Earlier layers' gradients go through the same room: left there, they would grow from one turn to the next.
        arrays.output_gradient[...] = output_gradient

    return NetworkPasses([passes(index) for index in range(len(splits))], set_output_gradient)


def time_passes(passes: NetworkPasses) -> list[LayerSeconds]:
    """Seconds of every layer's passes, in one pass over the network and back.

    So each layer finds the caches as its neighbours leave them.
    """

    def timed(action: Pass) -> float:
        start = perf_counter()
        action()
        return perf_counter() - start

    forward = [timed(layer.forward) for layer in passes.layers]
    passes.set_output_gradient()
    backward = [(timed(layer.input_gradient), timed(layer.weight_gradient)) for layer in reversed(passes.layers)]
    return [LayerSeconds(ahead, *back) for ahead, back in zip(forward, reversed(backward), strict=True)]
