"""The arrays of a stage, allocated once for the largest microbatch and viewed for every size.

Several microbatches can be in flight: there are buffers for some inputs and for some sets of activations, and whoever
schedules says which ones a microbatch uses. The backward pass needs only two gradients at a time, because a layer's
weight gradient is done before the layer below writes over what it read: two buffers take turns, and the free one is
scratch memory. Where weight gradients come later, each set of activations has room for what they need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.partition import block_slice
from hybridnn.kernels.backend import Array, Kernels
from hybridnn.kernels.numpy_backend import NUMPY
from hybridnn.nn.parameters import LayerShard
from hybridnn.parallel.dense import LayerArrays

NARROW = 48
"""Samples up to which input gradients are taken as a transposed product: see `matmul_transposed`."""

WIDE, STEP = 128, 16


def samples_are_contiguous(n: int) -> bool:
    """Whether `n` samples are better kept with the features of each side by side, where nobody else needs to know.

    A library of matrix products works on blocks of the axis whose numbers lie side by side. Where samples are few, or
    no multiple of such a block, features are better that axis: ``benchmarks/sample_layout.py`` measures it.
    """
    return n < WIDE or n % STEP != 0


def weight_gradient_input_sizes(splits: Sequence[LayerShard], capacity: int) -> list[int]:
    """Numbers of each array that weight gradients are taken from, of a stage that loads its input.

    They are the input, the layers' outputs, and their ``dz``, for `capacity` samples.
    """
    outputs, own = map(_output_height, splits), map(_own_height, splits)
    return [height * capacity for height in (splits[0].layer.inputs, *outputs, *own)]


class StageRole(NamedTuple):
    """What a stage does beside its layers.

    Attributes
    ----------
    loads_input, loads_target : bool
        Whether its input is the data's, and its output is compared with the data's targets.
    """

    loads_input: bool = True
    loads_target: bool = True


@dataclass(frozen=True)
class StageArrays:
    """All arrays of a stage for n samples of this rank.

    Attributes
    ----------
    samples : ndarray, shape (n, features)
        Where inputs are loaded, on a stage that does; the transpose of `input`.
    targets : ndarray, shape (n, outputs), or of int64 and shape (n,)
        Where targets are loaded, on a stage that does.
    columns : ndarray of int64, shape (n,)
        0 … n-1.
    layers : list of LayerArrays
    input : ndarray, shape (features, n)
        Input of the first layer.
    input_gradient : ndarray, shape (features, n), or None
        Gradient with respect to it; None where the stage loads its input.
    outputs : ndarray, shape (outputs, n)
        Output of the last layer.
    output_gradient : ndarray, shape (outputs, n)
        Gradient with respect to it: where the loss or the stage after writes.
    """

    samples: Array
    targets: Array
    columns: NDArray[np.int64]
    layers: list[LayerArrays]
    input: Array
    input_gradient: Array | None
    outputs: Array
    output_gradient: Array


@dataclass(frozen=True)
class _Activations:
    """One set of what a forward pass keeps, flat, per layer; None where a layer needs none."""

    outputs: list[Array]
    separate: list[Array | None]
    whole_inputs: list[Array | None]
    dz: list[Array | None]

    def arrays(self) -> list[Array]:
        return [*self.outputs, *(a for a in (*self.separate, *self.whole_inputs, *self.dz) if a is not None)]


class Workspace:
    """Memory for microbatches of up to `capacity` samples on this rank.

    Parameters
    ----------
    splits : sequence of LayerShard
        The layers of the stage.
    ranks, rank : int
        Size of the model group and this rank's place in it.
    capacity : int
        Most samples of a microbatch that come to this rank.
    dtype : dtype
        Of activations and gradients.
    role : StageRole
    inputs, activations : int
        Buffers for inputs (with their targets), and sets of activations.
    keeps_dz : bool
        Whether weight gradients come later than input gradients.
    travels : bool
        Whether rows of the arrays are messages, so that those of a row have to lie side by side.
    kernels : Kernels
        Of the device that is to hold the arrays.
    kept : iterator of ndarray, optional
        Memory for what weight gradients are taken from, where others are to see it: one set, with ``dz``, in the order
        of `weight_gradient_input_sizes`.
    """

    def __init__(
        self,
        splits: Sequence[LayerShard],
        ranks: int,
        rank: int,
        capacity: int,
        dtype: DTypeLike,
        role: StageRole,
        *,
        inputs: int = 1,
        activations: int = 1,
        keeps_dz: bool = False,
        travels: bool = True,
        kernels: Kernels = NUMPY,
        kept: Iterator[Array] | None = None,
    ) -> None:
        self._kernels, self._travels = kernels, travels
        self._kept = kept
        self._splits, self._role, self._keeps_dz = splits, role, keeps_dz
        self._ranks, self._rank, self._capacity, self._dtype = ranks, rank, capacity, np.dtype(dtype)
        self._cache: dict[tuple[int, int, int], StageArrays] = {}
        self._inputs = [self._kept_room(splits[0].layer.inputs) for _ in range(inputs)]
        self._targets: list[Array] = []
        self.expect_targets(classification=False)
        self._activations = [self._activation_room() for _ in range(activations)]
        self._columns = kernels.to_device(np.arange(capacity))
        self._ones = self._kernels.zeros((capacity,), dtype)
        self._ones[...] = 1
        self._own_gradient = self._room(
            max((_own_height(split) for split in splits if split.layer.residual), default=0)
        )
        # Nobody wants the gradient of the data.
        entry = 0 if role.loads_input else splits[0].layer.inputs
        widest = max(entry, *(_output_height(split) for split in splits))
        self._gradients = (self._room(widest), self._room(widest))
        self._product = self._room(widest) if travels and capacity <= NARROW else None

    def expect_targets(self, *, classification: bool) -> None:
        """Make room for targets, on a stage that loads them: integer labels, or numbers."""
        dtype = np.dtype(np.int64) if classification else self._dtype
        if not self._role.loads_target or (self._targets and self._targets[0].dtype == dtype):
            return
        numbers = self._capacity * (1 if classification else self._splits[-1].layer.outputs)
        self._targets = [self._kernels.empty((numbers,), dtype) for _ in self._inputs]
        self._cache = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        transient = [self._columns, self._ones, self._own_gradient, *self._gradients]
        if self._product is not None:
            transient.append(self._product)
        return int(self.activation_bytes + sum(array.nbytes for array in transient))

    @property
    def activation_bytes(self) -> int:
        """Bytes of the inputs and activations that wait for their backward pass."""
        kept = [array for item in self._activations for array in item.arrays()]
        return sum(array.nbytes for array in (*self._inputs, *self._targets, *kept))

    def arrays(self, n: int, input_slot: int = 0, activation_slot: int = 0) -> StageArrays:
        """Views for `n` samples, at most the capacity, of one input buffer and one set of activations."""
        key = (n, input_slot, activation_slot)
        if key not in self._cache:
            self._cache[key] = self._view(*key)
        return self._cache[key]

    def _room(self, height: int) -> Array:
        return self._kernels.empty((height * self._capacity,), self._dtype)

    def _kept_room(self, height: int) -> Array:
        return self._room(height) if self._kept is None else next(self._kept)

    def _activation_room(self) -> _Activations:
        splits = self._splits
        gathered = [split.by_inputs and split.layer.residual and self._ranks > 1 for split in splits]
        return _Activations(
            [self._kept_room(_output_height(split)) for split in splits],
            [self._room(_own_height(split)) if split.layer.residual else None for split in splits],
            [
                self._room(split.layer.inputs) if gather else None
                for split, gather in zip(splits, gathered, strict=True)
            ],
            [self._kept_room(_own_height(split)) if self._keeps_dz else None for split in splits],
        )

    def _view(self, n: int, input_slot: int, activation_slot: int) -> StageArrays:
        first, last = self._splits[0].layer, self._splits[-1].layer
        flat = self._inputs[input_slot][: n * first.inputs]
        x = flat.reshape(n, first.inputs).T if self._role.loads_input else flat.reshape(first.inputs, n)
        targets = self._kernels.empty((0,), self._dtype)
        if self._role.loads_target:
            room = self._targets[input_slot]
            labels = room.dtype == np.int64
            targets = room[:n] if labels else room[: n * last.outputs].reshape(n, last.outputs)
        layers: list[LayerArrays] = []
        source = x
        for place in range(len(self._splits)):
            layers.append(self._view_layer(place, source, n, self._activations[activation_slot]))
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

    def _view_layer(self, place: int, x: Array, n: int, kept: _Activations) -> LayerArrays:
        split = self._splits[place]
        layer, shard = split.layer, split

        by_samples = not self._travels and samples_are_contiguous(n)

        def view(flat: Array, height: int) -> Array:
            numbers = flat[: height * n]
            return numbers.reshape(n, height).T if by_samples else numbers.reshape(height, n)

        above = len(self._splits) - 1 - place
        y = view(kept.outputs[place], _output_height(split))
        dy = view(self._gradients[above % 2], _output_height(split))
        has_dx = place > 0 or not self._role.loads_input
        dx = view(self._gradients[(above + 1) % 2], len(x)) if has_dx else None
        own = _own_height(split)
        whole_x = own_x = own_dx = None
        if split.by_inputs:
            own_y, own_dy = y, dy[shard.columns] if layer.residual else dy
            if layer.residual:
                stored = kept.whole_inputs[place]
                whole_x = x if stored is None else view(stored, layer.inputs)
                own_x = None if stored is None else whole_x[shard.columns]
        else:
            own_y, own_dy = (y[shard.rows], dy[shard.rows]) if split.gathers else (y, dy)
            if layer.residual:
                block = block_slice(layer.inputs, self._ranks, self._rank)
                own_x, own_dx = x[block], None if dx is None else dx[block]
        separate, kept_dz = kept.separate[place], kept.dz[place]
        if kept_dz is None and layer.residual:
            kept_dz = self._own_gradient
        return LayerArrays(
            x=x,
            whole_x=whole_x,
            activation=own_y if separate is None else view(separate, own),
            y=y,
            own_y=own_y,
            dy=dy,
            own_dy=own_dy,
            dz=own_dy if kept_dz is None else view(kept_dz, own),
            dx=dx,
            own_x=own_x,
            own_dx=own_dx,
            scratch=view(self._gradients[(above + 1) % 2], own),
            room=None if dx is None or self._product is None else self._product[: dx.size].reshape(n, len(dx)),
            ones=self._ones[:n],
        )


def _own_height(split: LayerShard) -> int:
    """Rows of the output this rank computes: its block, or all (a part of every sum) where split by inputs."""
    return split.weight_shape[0]


def _output_height(split: LayerShard) -> int:
    """Rows of the output the next layer gets."""
    return split.layer.outputs if split.gathers else split.weight_shape[0]
