"""Profile of layers: seconds of their passes, bytes of their outputs and parameters; measured, or read from a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.group import Group
from hybridnn.comm.recorder import Recorder
from hybridnn.errors import DataError, one_line
from hybridnn.kernels.numpy_kernels import NUMPY
from hybridnn.nn.mlp import MLP
from hybridnn.nn.parameters import ParameterLayout
from hybridnn.parallel.dense import parallel_dense, split_layers
from hybridnn.parallel.workspace import StageRole, Workspace
from hybridnn.utils.checks import require_whole
from hybridnn.utils.files import FileError, read_json
from hybridnn.utils.text import shown_path

REPEATS = 20  # timed passes, of which the median is taken


@dataclass(frozen=True)
class LayerProfile:
    """Costs of one layer, for one minibatch or microbatch on one rank."""

    # time of the forward pass, and of the complete backward pass
    forward_seconds: float
    backward_seconds: float
    output_bytes: float  # activations for the next layer, and also their gradient
    parameter_bytes: float  # weights and biases


def time_layers(
    model: MLP, samples: int, dtype: DTypeLike, repeats: int = REPEATS, *, threads: int = 1
) -> tuple[LayerProfile, ...]:
    """Time the passes of every layer in this process with a minibatch or microbatch, without the loss and the update.

    Every time is the median over `repeats` passes after one for warming up, with so many BLAS threads, 1 by default as
    for ranks that share a node.

    Raises
    ------
    SettingError
        If `samples`, `repeats` or `threads` is not a whole number, 1 or more.
    """
    from threadpoolctl import threadpool_limits

    for name, value in (("samples", samples), ("repeats", repeats), ("threads", threads)):
        require_whole(name, value, 1)
    time_passes = layer_timer(model, samples, dtype)
    with threadpool_limits(limits=threads, user_api="blas"):
        _, *rounds = [time_passes() for _ in range(1 + repeats)]
    itemsize = np.dtype(dtype).itemsize
    return tuple(
        LayerProfile(
            forward_seconds=median(seconds[index].forward for seconds in rounds),
            backward_seconds=median(
                seconds[index].input_gradient + seconds[index].weight_gradient for seconds in rounds
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
