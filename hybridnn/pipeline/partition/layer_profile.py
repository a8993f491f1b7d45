"""Profile of layers: seconds of their passes, bytes of their outputs and parameters; measured, or read from a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.group import Group
from hybridnn.comm.recorder import Recorder
from hybridnn.errors import DataError, one_line
from hybridnn.kernels.numpy_backend import NUMPY
from hybridnn.nn.mlp import MLP
from hybridnn.nn.parameters import ParameterLayout
from hybridnn.parallel.dense import parallel_dense
from hybridnn.parallel.layer_split import split_layers
from hybridnn.parallel.workspace import StageRole, Workspace
from hybridnn.utils.checks import require_whole
from hybridnn.utils.files import FileError, read_json
from hybridnn.utils.text import shown_path

REPEATS = 20
"""Timed passes, of which the median is taken."""


@dataclass(frozen=True)
class LayerProfile:
    """Costs of one layer, for one minibatch or microbatch on one rank.

    Attributes
    ----------
    forward_seconds, backward_seconds : float
        Time of the forward pass, and of the complete backward pass.
    output_bytes : float
        Activations for the next layer, and also their gradient.
    parameter_bytes : float
        Weights and biases.
    """

    forward_seconds: float
    backward_seconds: float
    output_bytes: float
    parameter_bytes: float


def time_layers(
    model: MLP, samples: int, dtype: DTypeLike, repeats: int = REPEATS, *, threads: int = 1
) -> tuple[LayerProfile, ...]:
    """Time the passes of every layer in this process, without the loss and the update.

    Parameters
    ----------
    model : MLP
    samples : int
        Samples of the minibatch, or microbatch, of one rank.
    dtype : {"float32", "float64"}
    repeats : int
        Passes after one for warming up; each time is the median over them.
    threads : int
        BLAS threads; 1 by default, as for ranks that share a node.

    Raises
    ------
    SettingError
        If `samples`, `repeats` or `threads` is not a whole number, 1 or more.
    """
    from threadpoolctl import threadpool_limits

    for name, value in (("samples", samples), ("repeats", repeats), ("threads", threads)):
        require_whole(name, value, 1)
    passes = layer_passes(model, samples, dtype)
    with threadpool_limits(limits=threads, user_api="blas"):
        rounds = [time_passes(passes) for _ in range(1 + repeats)]
    itemsize = np.dtype(dtype).itemsize
    return tuple(
        LayerProfile(
            forward_seconds=median(seconds[index].forward for seconds in rounds[1:]),
            backward_seconds=median(
                seconds[index].input_gradient + seconds[index].weight_gradient for seconds in rounds[1:]
            ),
            output_bytes=layer.outputs * samples * itemsize,
            parameter_bytes=layer.parameters * itemsize,
        )
        for index, layer in enumerate(model.layers)
    )


def read_profile(path: Path | str) -> tuple[LayerProfile, ...]:
    """Read a profile: a JSON list with an object for every layer, its keys the attributes of `LayerProfile`.

    Other keys, for example a layer's name, are ignored.

    Raises
    ------
    DataError
        If the file cannot be read or is not such a list, or a number is missing, negative or not finite; the message
        names the file, the layer (from 0) and the key.
    """
    layers = read_json(path, finite=False)
    if not isinstance(layers, list) or not layers:
        raise FileError(path, "must be a list with an object for every layer")
    return tuple(_checked_layer(f"{shown_path(path)}, layer {index}", layer) for index, layer in enumerate(layers))


def _checked_layer(where: str, layer: object) -> LayerProfile:
    keys = [field.name for field in fields(LayerProfile)]
    if not isinstance(layer, dict):
        raise DataError(f"{where}: must be an object with {', '.join(keys)}")
    for key in keys:
        if key not in layer:
            raise DataError(f"{where}: {key} is missing")
        value = layer[key]
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < inf:
            raise DataError(f"{where}: {key} is {one_line(repr(value))}, must be a finite number, 0 or more")
    return LayerProfile(**{key: layer[key] for key in keys})


def write_profile(path: Path | str, profile: Sequence[LayerProfile]) -> None:
    """Write a profile as JSON, for `read_profile`.

    Raises
    ------
    DataError
        If the file cannot be written.
    """
    text = json.dumps([asdict(layer) for layer in profile], indent=2, allow_nan=False)
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from error


# -- passes ----------------------------------------------------------------------------------------------------------


Pass = Callable[[], object]


class LayerPasses(NamedTuple):
    """Functions that run the passes of one layer."""

    forward: Pass
    input_gradient: Pass
    weight_gradient: Pass


class LayerSeconds(NamedTuple):
    """Times of one layer's passes."""

    forward: float
    input_gradient: float
    weight_gradient: float


class NetworkPasses(NamedTuple):
    """The passes of all layers, and a function that sets the gradient of the outputs before the backward pass."""

    layers: list[LayerPasses]
    set_output_gradient: Pass


def layer_passes(model: MLP, samples: int, dtype: DTypeLike) -> NetworkPasses:
    """Passes of every layer, unsplit, on arrays of their own; as in training, without the gradient of the inputs.

    Parameters
    ----------
    model : MLP
    samples : int
    dtype : {"float32", "float64"}
    """
    alone = Group(None, "model", Recorder())
    splits = split_layers(model.layers, "columns", 1, 0)
    layout = ParameterLayout(splits)
    generator = np.random.default_rng(0)
    # Weights of usual size, because processors are many times slower on denormal numbers; repeated, because drawing
    # all would take longer than the passes.
    flat = np.resize(0.1 * generator.standard_normal(4096).astype(dtype), layout.size)
    gradient = np.zeros(layout.size, dtype)
    arrays = Workspace(splits, samples, dtype, StageRole()).arrays(samples)
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
        # Gradients of earlier layers share its memory; without a reset they would grow from pass to pass.
        arrays.output_gradient[...] = output_gradient

    return NetworkPasses([passes(index) for index in range(len(splits))], set_output_gradient)


def time_passes(passes: NetworkPasses) -> list[LayerSeconds]:
    """Seconds of every layer's passes in one pass over the network, so that caches are filled as in training."""

    def timed(action: Pass) -> float:
        start = perf_counter()
        action()
        return perf_counter() - start

    forward = [timed(layer.forward) for layer in passes.layers]
    passes.set_output_gradient()
    backward = [(timed(layer.input_gradient), timed(layer.weight_gradient)) for layer in reversed(passes.layers)]
    return [LayerSeconds(ahead, *back) for ahead, back in zip(forward, reversed(backward), strict=True)]
