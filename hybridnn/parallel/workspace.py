"""Workspace of a stage: its arrays, allocated once for the largest microbatch, with views for every size.

Several microbatches can be in flight: there are buffers for some inputs and for some sets of activations, and the
schedule chooses those of a microbatch. The backward pass needs only two gradients at a time, because a layer's weight
gradient is computed before the layer below overwrites its operands: two buffers alternate, and the free one is scratch
memory. If weight gradients are computed later, each set of activations stores their operands, or they are concatenated
for one product over all microbatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.nn.kernels import NUMPY, Array, Kernels
from hybridnn.nn.parameters import LayerShard
from hybridnn.parallel.dense import LayerArrays, WeightGradientArrays

# At most so many samples and at least so many outputs make a transposed product faster for input gradients, as
# `benchmarks/input_gradients.py` shows: see `Kernels.matmul_transposed`.
NARROW, TALL = 48, 640

WIDE, STEP = 128, 16


class StageRole(NamedTuple):
    """Whether a stage is at an end of the pipeline."""

    loads_input: bool = True  # whether its input is data
    loads_target: bool = True  # whether its output is compared with targets


@dataclass(frozen=True)
class MicrobatchBuffers:
    """Buffers for the microbatches in flight."""

    inputs: int = 1  # with their targets
    activations: int = 1  # sets of activations
    keeps_dz: bool = False  # whether sets store ``dz``: weight gradients are computed later than input gradients
    keeps_dy: bool = False  # whether sets store the gradient of the output: the next chunk of the rank writes it


@dataclass(frozen=True)
class StageArrays:
    """All arrays of a stage for n samples on this rank."""

    samples: Array  # the transpose of `input`; inputs are loaded here if the stage loads them
    targets: Array  # targets are loaded here if the stage loads them; else empty
    columns: NDArray[np.int64]  # 0 … n-1
    layers: list[LayerArrays]
    input: Array  # input of the first layer
    input_gradient: Array | None  # gradient with respect to it; None if the stage loads its input
    outputs: Array  # output of the last layer
    output_gradient: Array  # gradient with respect to it, which the loss or the next stage writes


class _Stored(NamedTuple):
    """What the forward pass of a layer stores, flat; None where the layer does not need an array."""

    output: Array
    separate: Array | None
    full_input: Array | None
    dz: Array | None


class Workspace:
    """Memory for microbatches of up to `capacity` samples on this rank.

    Rows of the arrays must be contiguous (`features_contiguous`) where they travel in messages or kernels read along
    them. `before` is the workspace of the chunk before, if its outputs are the inputs: there is one array, not a copy.
    """

    def __init__(
        self,
        shards: Sequence[LayerShard],
        capacity: int,
        dtype: DTypeLike,
        role: StageRole,
        buffers: MicrobatchBuffers = MicrobatchBuffers(),
        *,
        features_contiguous: bool = True,
        kernels: Kernels = NUMPY,
        before: Workspace | None = None,
    ) -> None:
        self._kernels, self._features_contiguous, self._before = kernels, features_contiguous, before
        self._shards, self._role, self._buffers = shards, role, buffers
        self._capacity, self._dtype = capacity, np.dtype(dtype)
        self._cache: dict[tuple[int, int, int, bool | None], StageArrays] = {}
        self._inputs = [self._allocate(shards[0].layer.inputs) for _ in range(buffers.inputs)]
        self._targets: dict[bool, list[Array]] = {}  # by whether they are labels
        self._activations = [list(map(self._allocate_stored, shards)) for _ in range(buffers.activations)]
        kept = buffers.activations if buffers.keeps_dy else 0
        self._output_gradients = [self._allocate(shards[-1].layer.outputs) for _ in range(kept)]
        self._columns = kernels.to_device(np.arange(capacity))
        self._ones = self._kernels.zeros((capacity,), dtype)
        self._ones[...] = 1
        residual = [_own_height(shard) for shard in shards if shard.layer.residual]
        self._own_gradient = self._allocate(max(residual, default=0))
        input_height = 0 if role.loads_input else shards[0].layer.inputs
        height = max(input_height, *(_output_height(shard) for shard in shards))
        self._gradients = (self._allocate(height), self._allocate(height))
        transposes = not self._is_by_sample(1) and any(_own_height(shard) >= TALL for shard in shards)
        self._product = kernels.empty((height * min(capacity, NARROW),), dtype) if transposes else None

    def expect_targets(self, *, labels: bool) -> Sequence[Array]:
        """Buffers for the targets of a stage that loads them: integer labels, or arrays of the outputs' shape."""
        if self._role.loads_target and labels not in self._targets:
            dtype, width = (np.dtype(np.int64), 1) if labels else (self._dtype, self._shards[-1].layer.outputs)
            self._targets[labels] = [self._kernels.empty((self._capacity * width,), dtype) for _ in self._inputs]
        return self._targets.get(labels, ())

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        gradients = (self._own_gradient, *self._gradients, *self._output_gradients)
        transient = self._columns, self._ones, *gradients, self._product
        return self.activation_bytes + sum(int(array.nbytes) for array in transient if array is not None)

    @property
    def activation_bytes(self) -> int:
        """Bytes of the inputs and activations stored until their backward pass."""
        of_layers = chain(*chain(*self._activations))
        stored = *self._inputs, *chain(*self._targets.values()), *of_layers
        return sum(array.nbytes for array in stored if array is not None)

    def arrays(self, n: int, input_slot: int = 0, activation_slot: int = 0, labels: bool | None = None) -> StageArrays:
        """Views for `n` samples, at most the capacity, of one input buffer and one set of activations.

        `labels` is whether the targets are labels; None: there are no targets.
        """
        key = (n, input_slot, activation_slot, labels)
        if key not in self._cache:
            self._cache[key] = self._view(*key)
        return self._cache[key]

    def _allocate(self, height: int) -> Array:
        return self._kernels.empty((height * self._capacity,), self._dtype)

    def _allocate_stored(self, shard: LayerShard) -> _Stored:
        layer = shard.layer
        has_block = shard.by_inputs and shard.weight_shape[1] < layer.inputs  # of its input
        return _Stored(
            self._allocate(_output_height(shard)),
            self._allocate(_own_height(shard)) if layer.residual else None,
            self._allocate(layer.inputs) if layer.residual and has_block else None,
            self._allocate(_own_height(shard)) if self._buffers.keeps_dz else None,
        )

    def _view(self, n: int, input_slot: int, activation_slot: int, labels: bool | None) -> StageArrays:
        first, last = self._shards[0].layer, self._shards[-1].layer

        input_gradient = None
        if self._before is not None:
            given = self._before.arrays(n, 0, input_slot)
            x, input_gradient = given.outputs, given.output_gradient
        else:
            elements = self._inputs[input_slot][: n * first.inputs]
            x = elements.reshape(n, first.inputs).T if self._role.loads_input else elements.reshape(first.inputs, n)
        targets = self._kernels.empty((0,), self._dtype)
        if self._role.loads_target and labels is not None:
            buffer = self.expect_targets(labels=labels)[input_slot]
            targets = buffer[:n] if labels else buffer[: n * last.outputs].reshape(n, last.outputs)
        output_gradient = self._output_gradients[activation_slot] if self._output_gradients else None
        layers: list[LayerArrays] = []
        source = x
        for index, stored in enumerate(self._activations[activation_slot]):
            layers.append(self._view_layer(index, source, n, stored, output_gradient, input_gradient))
            source = layers[-1].y
        return StageArrays(
            samples=x.T,
            targets=targets,
            columns=self._columns[:n],
            layers=layers,
            input=x,
            input_gradient=layers[0].dx,
            outputs=layers[-1].y,
            output_gradient=layers[-1].dy,
        )

    def _features(self, flat: Array, height: int, n: int) -> Array:
        """Features of `n` samples, shape (height, n)."""
        elements = flat[: height * n]
        return elements.reshape(n, height).T if self._is_by_sample(n) else elements.reshape(height, n)

    def _is_by_sample(self, n: int) -> bool:
        """Whether `n` samples are stored contiguously per sample rather than per feature.

        Matrix products work on blocks along the contiguous axis. In float64, if there are few samples, or no multiple
        of such a block, they are faster with whole samples; in float32 they are slower.
        """
        return not self._features_contiguous and self._dtype == np.float64 and (n < WIDE or n % STEP != 0)

    def _view_layer(
        self, index: int, x: Array, n: int, stored: _Stored, output_gradient: Array | None, input_gradient: Array | None
    ) -> LayerArrays:
        shard = self._shards[index]
        layer, view = shard.layer, partial(self._features, n=n)
        above = len(self._shards) - 1 - index
        y = view(stored.output, _output_height(shard))
        is_handed = above == 0 and output_gradient is not None
        dy = view(output_gradient if is_handed else self._gradients[above % 2], _output_height(shard))
        has_dx = index > 0 or not self._role.loads_input
        dx = view(self._gradients[(above + 1) % 2], len(x)) if has_dx else None
        dx = dx if index or input_gradient is None else input_gradient
        own, rows, full_input = _own_height(shard), shard.rows, stored.full_input
        local_y, own_dy = (y[rows], dy[rows]) if shard.gathers else (y, dy)
        full_x = own_x = own_dx = None
        if layer.residual and not shard.by_inputs:
            # Inputs and outputs have the same blocks, as there are as many.
            own_x, own_dx = x[rows], None if dx is None else dx[rows]
        elif layer.residual:
            own_dy = dy[shard.columns]
            full_x = x if full_input is None else view(full_input, layer.inputs)
            own_x = None if full_input is None else full_x[shard.columns]
        product = self._product if has_dx and own >= TALL and n <= NARROW else None
        separate, dz = stored.separate, stored.dz
        if dz is None and layer.residual:
            dz = self._own_gradient
        return LayerArrays(
            x=x,
            activation=local_y if separate is None else view(separate, own),
            y=y,
            dy=dy,
            dz=own_dy if dz is None else view(dz, own),
            dx=dx,
            local_y=local_y,
            own_dy=own_dy,
            full_x=full_x,
            own_x=own_x,
            own_dx=own_dx,
            scratch=view(self._gradients[(above + 1) % 2], own),
            product=None if product is None else product[: n * len(x)].reshape(n, len(x)),
            ones=self._ones[:n],
        )


def _own_height(shard: LayerShard) -> int:
    """Rows of the output this rank computes: its block, or all (as an addend of the sum) if split by inputs."""
    return shard.weight_shape[0]


def _output_height(shard: LayerShard) -> int:
    """Rows of the input of the next layer."""
    return shard.layer.outputs if shard.gathers else shard.weight_shape[0]


class ConcatenatedMicrobatches:
    """Inputs and gradients of all samples of a minibatch on this rank, for one weight-gradient product per layer.

    The microbatches are concatenated as columns, so ``dz xᵀ`` over all columns is the sum over the microbatches. One
    large product is faster than several small ones whose results are added. With `loads_input` the input of the first
    layer is data, of which every sample is contiguous.
    """

    def __init__(
        self, shards: Sequence[LayerShard], capacity: int, dtype: DTypeLike, loads_input: bool, kernels: Kernels
    ) -> None:
        self._kernels, self._loads_input = kernels, loads_input
        self._shapes = [shard.weight_shape for shard in shards]
        self._x = [kernels.empty((columns * capacity,), dtype) for _, columns in self._shapes]
        self._dz = [kernels.empty((rows * capacity,), dtype) for rows, _ in self._shapes]
        self._ones = kernels.zeros((capacity,), dtype)
        self._ones[...] = 1
        self.nbytes: int = sum(array.nbytes for array in (self._ones, *self._x, *self._dz))
        self._cache: dict[int, list[WeightGradientArrays]] = {}

    def layers(self, samples: int) -> list[WeightGradientArrays]:
        """Views for a minibatch of `samples` on this rank."""
        if samples not in self._cache:
            self._cache[samples] = [self._view(index, samples) for index in range(len(self._shapes))]
        return self._cache[samples]

    def copy_layer(self, index: int, layer: LayerArrays, first: int, samples: int) -> None:
        """Copy the input and gradient of one layer of a microbatch to the columns from `first` on, of `samples`."""
        concatenated = self.layers(samples)[index]
        columns = slice(first, first + len(layer.ones))
        self._kernels.copy(layer.x, concatenated.x[:, columns])
        self._kernels.copy(layer.dz, concatenated.dz[:, columns])

    def _view(self, index: int, samples: int) -> WeightGradientArrays:
        rows, columns = self._shapes[index]
        x: Array = self._x[index][: columns * samples]
        samples_contiguous = self._loads_input and index == 0
        x = x.reshape(samples, columns).T if samples_contiguous else x.reshape(columns, samples)
        dz = self._dz[index][: rows * samples].reshape(rows, samples)
        return WeightGradientArrays(x=x, dz=dz, ones=self._ones[:samples])
