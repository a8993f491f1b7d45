"""Diagnosis of staleness: how far the gradients of a pipeline are from those at the newest weights.

Every stage k makes one update with minibatch t. W(k) are its weights before that update, and g(k) is the gradient that
it applies, before clipping. The newest weights of the network are those of all stages before their update t, whenever
each of them makes it: W = (W(0), …, W(K-1)). G is the gradient of the mean loss over the same samples at W, and G(k)
its part of stage k. F(k) and B(k) are the weights that the forward and the backward pass of the minibatch read on stage
k. Then a record has for every stage

* the distance of the gradients |g(k) - G(k)| / |G(k)|,
* the angle between g(k) and G(k), in degrees,
* the distance of the weights |F(k) - B(k)| / |W(k)|.

With an exact method all are 0, up to rounding. G takes one more pass over the minibatch, by an exact schedule on the
same ranks, when the pipeline is empty; it is the same under MPI and with ranks of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hybridnn.nn.kernels import Array
from hybridnn.nn.parameters import LayerParameters
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.pipeline.execution.executor import Minibatch
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.instructions import Forward, Instruction
from hybridnn.training.global_arrays import GlobalArrays

ExactGradient = Callable[[Minibatch, Sequence[Array]], list[Array]]
"""``exact_gradient(minibatch, weights)`` returns G by chunk; `weights` are those of this rank (`Engine`)."""


@dataclass
class _Step:
    """What a logged step leaves until the pipeline is empty; all arrays are copies, by chunk of this rank."""

    read: dict[int, Array] = field(
        default_factory=dict
    )  # weights of the forward pass, then minus those of the backward
    weights: list[Array] = field(default_factory=list)
    gradient: list[Array] = field(default_factory=list)


class StalenessDiagnosis:
    """Compares, for every logged step, the gradients and the weights of all stages; see the module.

    Keeps three copies of this rank's weights for each logged step until the pipeline has drained.
    """

    def __init__(
        self, chunks: Sequence[ModelChunk], arrays: GlobalArrays, layout: Layout, stage: int, log_every: int
    ) -> None:
        self._chunks, self._arrays, self._layout, self._stage = chunks, arrays, layout, stage
        self._every = log_every
        self._steps: dict[int, _Step] = {}  # by number of the minibatch

    def note_weights(self, pass_: Instruction, minibatch: Minibatch, parameters: Sequence[LayerParameters]) -> None:
        """Note the weights that a forward or a backward pass is about to read: those of all its microbatches."""
        if not self.is_logged(minibatch) or pass_.microbatch != 0:
            return
        chunk = self._chunks[pass_.chunk]
        flat = chunk.kernels.zeros(chunk.weights.shape, chunk.weights.dtype)
        for own, read in zip(chunk.layout.views(flat), parameters, strict=True):
            own.weight[...], own.bias[...] = read.weight, read.bias
        if isinstance(pass_, Forward):
            self._steps.setdefault(minibatch.number, _Step()).read[pass_.chunk] = flat
        else:
            self._steps[minibatch.number].read[pass_.chunk] -= flat

    def is_logged(self, minibatch: Minibatch) -> bool:
        """Whether the step of a minibatch has a record."""
        return (minibatch.number + 1) % self._every == 0

    def note_update(self, minibatch: Minibatch, gradient: list[Array], weights: list[Array]) -> None:
        """Note copies, by chunk, of the gradient of the update of a logged step, and of the weights before it."""
        step = self._steps[minibatch.number]
        step.gradient, step.weights = gradient, weights

    def of_step(self, minibatch: Minibatch, exact_gradient: ExactGradient) -> dict[str, tuple[float, ...]]:
        """Fields of the `StepRecord` of a logged step, a value for each stage; collective, with an empty pipeline."""
        step = self._steps.pop(minibatch.number)
        exact = exact_gradient(minibatch, step.weights)
        pairs = list(zip(step.gradient, exact, strict=True))
        used, newest = self._norms(step.gradient), self._norms(exact)
        with np.errstate(divide="ignore", invalid="ignore"):  # a gradient may be 0
            distances = self._norms([one - other for one, other in pairs]) / newest
            # Of unit vectors u and v the angle is 2 atan(|u - v| / |u + v|), which is precise for small ones.
            lengths = float(used[self._stage]), float(newest[self._stage])
            units = [(one / lengths[0], other / lengths[1]) for one, other in pairs]
            across, along = (self._norms([u + sign * v for u, v in units]) for sign in (-1, 1))
            read = [step.read[index] for index in range(len(self._chunks))]
            between = self._norms(read) / self._norms(step.weights)
        return {
            "gradient_distance": tuple(distances.tolist()),
            "gradient_angle": tuple(np.degrees(2 * np.arctan2(across, along)).tolist()),
            "weight_distance": tuple(between.tolist()),
        }

    def _norms(self, flats: Sequence[Array]) -> NDArray[np.float64]:
        """Norms of all stages, shape (stages,), from a flat buffer for each chunk of this rank; collective."""
        squared, stages = self._arrays.squared_norms(flats), range(len(self._layout.stages))
        layers = [[index for part in self._layout.layer_indices(stage) for index in part] for stage in stages]
        return np.sqrt([squared[of_stage].sum() for of_stage in layers])
