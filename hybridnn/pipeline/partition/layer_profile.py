"""What every layer costs: seconds of its passes, bytes of its output and its parameters; measured or from a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from math import inf
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.checks import require_whole
from hybridnn.errors import DataError, one_line
from hybridnn.nn.mlp import MLP
from hybridnn.pipeline.partition.layer_passes import layer_passes, time_passes
from hybridnn.small_files import FileError, read_json, shown_path

__all__ = ["REPEATS", "LayerProfile", "read_profile", "time_layers", "write_profile"]

REPEATS = 20
"""Passes of which the median is taken."""


@dataclass(frozen=True)
class LayerProfile:
    """Costs of one layer, for one minibatch or microbatch on one rank.

    Attributes
    ----------
    forward_seconds, backward_seconds : float
        Time of the forward pass, and of the whole backward pass.
    output_bytes : float
        Activations that go to the next layer; the gradient that comes back has as many.
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
    """Time every layer forward and backward on this machine, in this process alone.

    Whole passes over the network are timed layer by layer, so that a layer finds the caches as its neighbours leave
    them. The first layer computes no gradient of its input, as in training. The loss and the update are not timed.

    Parameters
    ----------
    model : MLP
    samples : int
        Samples of a pass: of the minibatch, or of the microbatch, that comes to one rank.
    dtype : {"float32", "float64"}
    repeats : int
        Passes after one that is not counted; each time is the median over them.
    threads : int
        BLAS threads; 1, because a rank that shares its node has about as many.

    Returns
    -------
    tuple of LayerProfile
        One for each layer, from input to output.

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

    Other keys, for example a layer's name, are left alone.

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
    """Write `profile` as JSON; `read_profile` reads an equal one back.

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
