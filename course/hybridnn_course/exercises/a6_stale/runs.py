"""Trainings of A6 with the student's functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hybridnn_course.answers import Values
from hybridnn_course.assignment import Function, Variant
from hybridnn_course.exercises.a6_stale.replay import (
    BATCH,
    EPOCHS,
    MOMENTUM,
    RATE,
    SIZES,
    STAGES,
    Array,
    StageReads,
    epoch_batches,
    initial_layers,
    loss_and_gradient,
    named_layers,
    outcome,
    with_ones,
)
from hybridnn_course.injection import find, injected
from hybridnn_course.whole_run import digits, train_digits

METHODS = ("vanilla", "ddg", "fr", "pipedream", "vertical sync", "extra")
STORE_METHODS = ("pipedream", "vertical sync")
STAGE_METHODS = ("vanilla", "ddg", "fr")
TRAINER = "hybridnn.training.trainer"
READ = "hybridnn.pipeline.schedules.schedule:Schedule.weights_read"


# -- rules ------------------------------------------------------------------------------------------------------------


def run_rules(function: Function, variant: Variant) -> Values:
    """Train with every method, whose schedule reads the versions that the student's function returns."""
    trained = {}
    for_method = ""

    def reads(schedule: Any, stage: int, minibatch: int) -> StageReads:
        return StageReads(*function(for_method, stage, schedule.stages, minibatch))

    with _reading(reads):
        for for_method in METHODS:
            trained[for_method] = train_by(for_method, MOMENTUM, variant)
    return of_methods(trained)


@contextmanager
def _reading(reads: Function) -> Iterator[None]:
    """Schedules of trainings read the weights of a rule, ``reads(schedule, stage, minibatch)``."""
    from hybridnn.pipeline.schedules.instructions import Forward
    from hybridnn.pipeline.schedules.weight_policies import WeightRead

    original = find(READ)

    def weights_read(self: Any, stage: int, instruction: Any) -> WeightRead | None:
        usual: WeightRead | None = original(self, stage, instruction)
        if usual is None or self.method == "evaluation":
            return usual
        read = reads(self, stage, instruction.minibatch)
        if isinstance(instruction, Forward):
            return WeightRead(int(read.forward), int(read.forward_ahead))
        return WeightRead(int(read.backward), int(read.backward_ahead))

    with injected(READ, weights_read, TRAINER):
        yield


def train_by(method: str, momentum: float = 0.0, variant: Variant | None = None) -> Values:
    """Train by a method on `STAGES` pipeline ranks, with one layer each."""
    from hybridnn import SGD

    options: dict[str, Any]
    if method == "extra" and variant is not None and variant["extra_method"] == "two versions":
        options = {"method": "pipedream-2bw", "microbatches": STAGES}
    elif method in ("vertical sync", "extra"):  # both are orders of PipeDream that keep at most K versions
        options = {"method": "pipedream-vsync"}
    else:
        options = {"method": method}
    return train_digits(
        STAGES,
        SIZES,
        EPOCHS,
        grid={"pipeline": STAGES},
        network={"activation": "tanh"},
        batch_size=BATCH,
        initial_weights=named_layers(initial_layers()),
        optimizer=SGD(lr=RATE, momentum=momentum),
        **options,
    )


def of_methods(trained: dict[str, Values]) -> Values:
    """The outcomes of several trainings, with the method in every name."""
    return {f"{method}: {name}": value for method, values in trained.items() for name, value in values.items()}


# -- store ------------------------------------------------------------------------------------------------------------


def run_store(function: Function, variant: Variant) -> Values:
    """Train with PipeDream, with and without vertical synchronization, and the student's weight versions."""

    def make_store(*arguments: Any, predicts: bool) -> _AdaptedStore:
        return _AdaptedStore(function, *arguments)

    with injected("hybridnn.pipeline.execution.chunk_runtime:WeightStore", make_store, TRAINER):
        return of_methods({method: train_by(method, MOMENTUM) for method in STORE_METHODS})


class _AdaptedStore:
    """The library's `WeightStore` over the student's versions, without predictions."""

    nbytes = 0

    def __init__(self, make_versions: Function, chunk: Any, optimizer: Any, state: Any, versions: int) -> None:
        self._chunk, self._optimizer, self._state = chunk, optimizer, state
        self._versions = make_versions(chunk.weights, versions)

    def begin(self, rate_of: Any) -> None:
        """Every run ends with an update that keeps no older version."""

    def read(self, age: int, ahead: int) -> Any:
        return self._chunk.layout.views(self._versions.read(age))

    def update(self, rate: float, kept: Collection[int] = (), delay: int = 0) -> None:
        chunk, self._state.delay = self._chunk, delay

        def rule(old: Array, new: Array) -> None:
            chunk.replica.update(self._optimizer, old, self._state, rate, out=None if new is old else new)

        self._versions.update(rule, set(kept))
        chunk.weights = self._versions.read(0)
        chunk.parameters = chunk.layout.views(chunk.weights)


# -- stage ------------------------------------------------------------------------------------------------------------


def run_stage(function: Function, variant: Variant) -> Values:
    """Train with the student's stages."""
    return of_methods({method: _train_stages(function, method) for method in STAGE_METHODS})


def _train_stages(make_stage: Function, method: str) -> Values:
    """The steps of Kang 2019, Table 3: a forward pass through all stages, then one backward pass on every stage."""
    last = STAGES - 1
    activations = ["identity" if k == last else "tanh" for k in range(STAGES)]
    layers = zip(initial_layers(), activations, strict=True)
    stages = [make_stage(layer, activation, method, RATE) for layer, activation in layers]
    losses = []
    for epoch in range(EPOCHS):
        batches, gradients, total = list(epoch_batches(epoch + 1)), [np.zeros(0)] * STAGES, 0.0
        first = epoch * len(batches)  # number of the epoch's first minibatch
        for step in range(len(batches) + last):
            if step < len(batches):
                x, labels = batches[step]
                for stage in stages:
                    x = stage.forward(first + step, with_ones(x))
                loss, gradients[last] = loss_and_gradient(x, labels)
                total += loss * len(labels)
            for k, stage in enumerate(stages):
                t = step - (last - k)
                if 0 <= t < len(batches):
                    dx = stage.backward(first + t, gradients[k])
                    if k:
                        gradients[k - 1] = dx[:-1]
        losses.append(total / len(digits()[1]))
    return outcome(losses, [np.asarray(stage.weights) for stage in stages])


# -- distance and predict ---------------------------------------------------------------------------------------------


def run_distance(function: Function, variant: Variant) -> Values:
    """Train with SpecTrain and the student's distances."""

    def reads(schedule: Any, stage: int, minibatch: int) -> StageReads:
        return as_reads(function(stage, schedule.stages, minibatch, schedule.minibatches), minibatch)

    with _reading(reads):
        return train_by("spectrain", MOMENTUM)


def run_predict(function: Function, variant: Variant) -> Values:
    """Train with SpecTrain and the student's extrapolation."""
    with injected("hybridnn.nn.optimizers:SGD.predict", function, TRAINER):
        return train_by("spectrain", MOMENTUM)


def as_reads(prediction: Any, minibatch: int) -> StageReads:
    """A pair of predictions as what a stage reads."""
    (forward, forward_ahead), (backward, backward_ahead) = prediction
    return StageReads(forward, forward, backward, forward_ahead, backward_ahead)
