"""Parameters of a rank as one contiguous buffer with views per layer; gradients and optimizer state likewise.

The gradients are all-reduced as one buffer or as a few slices of it, the optimizer updates one buffer, and checkpoints
store slices.

Initial weights are functions of the seed, the layer and the output row: each row of a weight matrix has its own
counter-based generator (Philox; Salmon et al. 2011). A rank that owns rows draws only those (a rank that owns columns
draws full rows and keeps its block), and every process grid starts from the same network. Weights are drawn in float64
and then rounded, so float32 and float64 runs start from the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError
from hybridnn.nn.mlp import MLP, DenseLayer

ALIGNMENT = 16  # every array of the buffer starts at a multiple of this many elements: 64 bytes in float32


@dataclass(frozen=True)
class LayerShard:
    """A rank's shard of a layer's parameters; no parameter is owned by two ranks of a model group."""

    layer: DenseLayer
    # block of the weight matrix, shape (outputs, inputs)
    rows: slice
    columns: slice
    bias_rows: slice  # block of the bias; may be empty
    by_inputs: bool  # whether the weights are split by inputs (row split), not by outputs (column split)
    gathers: bool  # whether the outputs are gathered after the forward pass; only for a layer split by outputs

    @property
    def weight_shape(self) -> tuple[int, int]:
        """Rows and columns of the block."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    @property
    def bias_size(self) -> int:
        """Elements of the block of the bias."""
        return int(self.bias_rows.stop - self.bias_rows.start)


class LayerParameters(NamedTuple):
    """Views of one layer in a flat buffer: weights, bias, and the bias as a column."""

    weight: NDArray[Any]
    bias: NDArray[Any]
    bias_column: NDArray[Any]


def parameter_name(layer: DenseLayer, kind: str) -> str:
    """The stable name of a parameter, ``layers.<index>.weight`` or ``layers.<index>.bias``."""
    return f"layers.{layer.index}.{kind}"


def parameter_shapes(model: MLP) -> dict[str, tuple[int, ...]]:
    """Name and global shape of every parameter of `model`, in order."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in model.layers:
        shapes[parameter_name(layer, "weight")] = (layer.outputs, layer.inputs)
        shapes[parameter_name(layer, "bias")] = (layer.outputs,)
    return shapes


def check_weights(model: MLP, weights: Mapping[str, Any], source: str) -> dict[str, NDArray[Any]]:
    """Return the weights as arrays of NumPy, also those that are tensors of PyTorch.

    If they are not those of `model`, a `DataError` names `source` and the first wrong array.
    """
    if not isinstance(weights, Mapping):
        raise DataError(f"{source} must be arrays by name, as of Trainer.weights(), not {type(weights).__name__}")
    arrays = {}
    for name, shape in parameter_shapes(model).items():
        if name not in weights:
            found = ", ".join(sorted(weights)) or "nothing"
            raise DataError(f"{source}: {name} is missing; the file holds {found}")
        array = weights[name]
        if hasattr(array, "detach"):
            array = array.detach().cpu().double().numpy()  # NumPy has no bfloat16
        if not hasattr(getattr(array, "dtype", None), "kind"):
            raise DataError(f"{source}: {name} is of type {type(array).__name__}: numpy.asarray makes an array of it")
        if array.shape != shape:
            raise DataError(f"{source}: {name} has shape {array.shape}, the model needs {shape}")
        if array.dtype.kind not in "fiu":
            raise DataError(f"{source}: {name} has dtype {array.dtype}, the model needs real numbers")
        if np.ma.is_masked(array):
            raise DataError(f"{source}: {name} holds numbers that are masked")
        if not np.isfinite(array).all():
            raise DataError(f"{source}: {name} holds numbers that are not finite")
        arrays[name] = array
    extra = [name for name in weights if name.startswith("layers.") and name not in parameter_shapes(model)]
    if extra:
        raise DataError(f"{source}: {extra[0]} is not a parameter of the model, which has {len(model.layers)} layers")
    return arrays


class ParameterLayout:
    """Offsets of the arrays of a rank's parameters in a flat buffer.

    Attributes
    ----------
    size : int
        Elements of a flat buffer, including padding.
    ends : tuple of int
        End of every layer in the buffer: layer i is ``flat[ends[i - 1]:ends[i]]``, with 0 as the first start.
    """

    def __init__(self, shards: Sequence[LayerShard]) -> None:
        self.shards = tuple(shards)
        self._offsets: list[tuple[int, int]] = []
        ends, position = [], 0
        for shard in self.shards:
            weight_start = position
            bias_start = _aligned(weight_start + shard.weight_shape[0] * shard.weight_shape[1])
            position = _aligned(bias_start + shard.bias_size)
            self._offsets.append((weight_start, bias_start))
            ends.append(position)
        self.ends = tuple(ends)
        self.size = position

    def bounds(self, index: int) -> tuple[int, int]:
        """Start and stop of a layer in the buffer."""
        return self.ends[index - 1] if index else 0, self.ends[index]

    def views(self, flat: NDArray[Any]) -> list[LayerParameters]:
        """The arrays of every layer as views of `flat`, shape (at least size,)."""
        views = []
        for shard, (weight_start, bias_start) in zip(self.shards, self._offsets, strict=True):
            rows, columns = shard.weight_shape
            weight = flat[weight_start : weight_start + rows * columns].reshape(rows, columns)
            bias = flat[bias_start : bias_start + shard.bias_size]
            views.append(LayerParameters(weight, bias, bias[:, None]))
        return views

    def initialize(self, flat: NDArray[Any], seed: int) -> None:
        """Write the initial weights of this rank's blocks to `flat`, and zeros to biases and padding."""
        flat[...] = 0
        for shard, view in zip(self.shards, self.views(flat), strict=True):
            initialize_rows(shard.layer, seed, shard.rows, shard.columns, view.weight)

    def load(self, flat: NDArray[Any], weights: Mapping[str, NDArray[Any]]) -> None:
        """Write this rank's blocks of the global arrays `weights` to `flat`."""
        flat[...] = 0
        for shard, view in zip(self.shards, self.views(flat), strict=True):
            view.weight[...] = weights[parameter_name(shard.layer, "weight")][shard.rows, shard.columns]
            view.bias[...] = weights[parameter_name(shard.layer, "bias")][shard.bias_rows]


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def initialize_rows(layer: DenseLayer, seed: int, rows: slice, columns: slice, out: NDArray[Any]) -> None:
    """Write a block of the initial weights of `layer`, of its matrix of shape (outputs, inputs), to `out`.

    he: normal with variance 2 / inputs (He et al. 2015, equation 10); lecun: normal with variance 1 / inputs (LeCun et
    al. 1998, equation 16); glorot: uniform on ±sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010, equation 16).
    """
    for target, row in zip(out, range(rows.start, rows.stop), strict=True):
        generator = np.random.Generator(np.random.Philox(key=[seed, layer.index], counter=[0, 0, 0, row]))
        if layer.initializer == "glorot":
            limit = sqrt(6.0 / (layer.inputs + layer.outputs))
            values = generator.uniform(-limit, limit, layer.inputs)
        else:
            variance = (2.0 if layer.initializer == "he" else 1.0) / layer.inputs
            values = generator.standard_normal(layer.inputs)
            values *= sqrt(variance)
        target[...] = values[columns]
