"""Diagnosis of staleness: a callback that compares the gradients and weights of a pipeline with the newest ones.

Every stage k makes one update with minibatch t. W(k) are its weights before that update, and g(k) is the gradient that
it applies, before clipping. The newest weights of the network are those of all stages before their update t, whenever
each of them makes it: W = (W(0), …, W(K-1)). G is the gradient of the mean loss over the same samples at W, and G(k)
its part of stage k. F(k) and B(k) are the weights that the forward and the backward pass of the minibatch read on stage
k, and N(k) the last version of the stage when its forward pass began, without any prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import SettingError
from hybridnn.nn.kernels import Array
from hybridnn.nn.parameters import LayerParameters
from hybridnn.pipeline.schedules.instructions import Forward, Instruction
from hybridnn.training.trained_network import Callback, TrainedNetwork

if TYPE_CHECKING:
    from hybridnn.parallel.model_chunk import ModelChunk
    from hybridnn.pipeline.execution.executor import Minibatch
    from hybridnn.training.engine import Engine
    from hybridnn.training.records import StepRecord


@dataclass(frozen=True)
class StepStaleness:
    """Staleness of a step: values of every stage. Those of gradients are not finite for a gradient of 0.

    Attributes
    ----------
    step : int
    gradient_distance : tuple of float
        ``|g(k) - G(k)| / |G(k)|``
    gradient_angle : tuple of float
        Angle between ``g(k)`` and ``G(k)``, in degrees.
    weight_distance : tuple of float
        ``|F(k) - B(k)| / |W(k)|``: whether both passes read the same weights.
    used_error : tuple of float
        ``|F(k) - W(k)| / |W(k)|``, of the weights that the forward pass used: predicted ones, if the method predicts.
    stale_error : tuple of float
        ``|N(k) - W(k)| / |W(k)|``, of the last weights without a prediction.
    """

    step: int
    gradient_distance: tuple[float, ...]
    gradient_angle: tuple[float, ...]
    weight_distance: tuple[float, ...]
    used_error: tuple[float, ...]
    stale_error: tuple[float, ...]


@dataclass
class _Step:
    """What a step leaves until the pipeline is empty; all arrays are copies, by chunk of this rank."""

    minibatch: Minibatch
    last: dict[int, Array] = field(default_factory=dict)  # weights of the stage when its forward pass began
    forward: dict[int, Array] = field(default_factory=dict)
    backward: dict[int, Array] = field(default_factory=dict)
    weights: list[Array] = field(default_factory=list)
    gradient: list[Array] = field(default_factory=list)


class StalenessDiagnosis(Callback):
    """Callback that measures the staleness of every logged step of a pipeline, for each stage.

    It repeats the minibatch of a logged step at the newest weights, by an exact schedule on the same ranks, when the
    pipeline is empty. The training stays the same to the last bit. It takes one more pass for each of these steps, and
    five copies of this rank's weights until the pipeline has drained. With an exact method, whose values are all 0 up
    to rounding, the recorded times include these passes.

    `Trainer.fit` raises `SettingError` without several stages.

    Attributes
    ----------
    steps : list of StepStaleness
        Of the last `fit`, the same on every rank.
    """

    _engine: Engine  # of the training

    def __init__(self) -> None:
        self.steps: list[StepStaleness] = []
        self._kept: dict[int, _Step] = {}  # by number of the minibatch

    def on_train_begin(self, trainer: TrainedNetwork) -> None:
        """Begin to observe the passes and updates of the training."""
        if trainer.grid.pipeline == 1:
            raise SettingError("parallel.pipeline", 1, "StalenessDiagnosis needs several stages")
        self.steps, self._kept, self._engine = [], {}, trainer.engine
        self._engine.observe(self.note_weights, self.note_update)

    def on_train_end(self, trainer: TrainedNetwork) -> None:
        """End the observation."""
        trainer.engine.observe()

    def note_weights(self, pass_: Instruction, minibatch: Minibatch, read: Sequence[LayerParameters]) -> None:
        """Note the weights that a forward or a backward pass is about to read: those of all its microbatches."""
        if pass_.microbatch != 0 or not self._is_logged(minibatch):
            return
        chunk = self._engine.chunks[pass_.chunk]
        step = self._kept.setdefault(minibatch.number, _Step(minibatch))
        if isinstance(pass_, Forward):
            step.last[pass_.chunk] = _flat(chunk, chunk.parameters)
            step.forward[pass_.chunk] = _flat(chunk, read)
        else:
            step.backward[pass_.chunk] = _flat(chunk, read)

    def note_update(self, minibatch: Minibatch) -> None:
        """Note the gradient of the update that is next, and the weights before it; collective."""
        if self._is_logged(minibatch):
            step = self._kept[minibatch.number]
            step.gradient, step.weights = _gradient(self._engine), self._engine.copy_weights()

    def on_train_batch_end(self, trainer: TrainedNetwork, record: StepRecord) -> None:
        """Measure the staleness of a logged step; collective."""
        engine, step = trainer.engine, self._kept.pop(record.step - 1)
        exact = _exact_gradient(engine, step)
        used, newest = _norms(engine, step.gradient), _norms(engine, exact)
        weights, stage = _norms(engine, step.weights), trainer.grid.pipeline_rank
        last, forward, backward = (
            [read[index] for index in range(len(step.weights))] for read in (step.last, step.forward, step.backward)
        )
        with np.errstate(divide="ignore", invalid="ignore"):  # a gradient may be 0
            # Of unit vectors u and v the angle is 2 atan(|u - v| / |u + v|), which is precise for small ones.
            pairs = (step.gradient, used[stage]), (exact, newest[stage])
            u, v = ([flat / length for flat in flats] for flats, length in pairs)
            angle = np.degrees(2 * np.arctan2(_distances(engine, u, v), _distances(engine, u, [-flat for flat in v])))
            values = (
                _distances(engine, step.gradient, exact) / newest,
                angle,
                _distances(engine, forward, backward) / weights,
                _distances(engine, forward, step.weights) / weights,
                _distances(engine, last, step.weights) / weights,
            )
        self.steps.append(StepStaleness(record.step, *(tuple(of_stages.tolist()) for of_stages in values)))

    def _is_logged(self, minibatch: Minibatch) -> bool:
        return (minibatch.number + 1) % self._engine.config.log_every == 0


def _exact_gradient(engine: Engine, step: _Step) -> list[Array]:
    """Gradient of the mean loss over the minibatch of a step at the newest weights; the last gradient stays."""
    _gradient(engine)  # segments of a shared replica hold their sums, before the pass and after it
    last = [chunk.replica.gradient.copy() for chunk in engine.chunks]
    layout = engine.layout if engine.layout.exact else replace(engine.layout, method="1f1b")
    executor = engine.training.new_executor(layout.schedule, engine.task, 1)
    with engine.other_weights(step.weights):
        executor.begin([step.minibatch])
        executor.gradient(step.minibatch)
        executor.finish()
    found = _gradient(engine)
    for chunk, gradient in zip(engine.chunks, last, strict=True):
        chunk.kernels.copy(gradient, chunk.replica.gradient)
        chunk.replica.publish()
    return found


def _gradient(engine: Engine) -> list[Array]:
    """Copies of the sums of the last gradients by chunk; collective over the replicas."""
    return [chunk.replica.full_gradient().copy() for chunk in engine.chunks]


def _flat(chunk: ModelChunk, parameters: Sequence[LayerParameters]) -> Array:
    """A flat copy of the parameters of a chunk."""
    flat = chunk.kernels.zeros(chunk.weights.shape, chunk.weights.dtype)
    for own, read in zip(chunk.layout.views(flat), parameters, strict=True):
        own.weight[...], own.bias[...] = read.weight, read.bias
    return flat


def _distances(engine: Engine, flats: Sequence[Array], others: Sequence[Array]) -> NDArray[np.float64]:
    return _norms(engine, [one - other for one, other in zip(flats, others, strict=True)])


def _norms(engine: Engine, flats: Sequence[Array]) -> NDArray[np.float64]:
    """Norms of all stages, shape (stages,), from a flat buffer for each chunk of this rank; collective."""
    squared, layout = engine.squared_norms(flats), engine.layout
    layers = [[index for part in layout.layer_indices(stage) for index in part] for stage in range(len(layout.stages))]
    return np.sqrt([squared[of_stage].sum() for of_stage in layers])
