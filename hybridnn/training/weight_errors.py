"""Errors of predicted and of stale weights during a training (Chen et al. 2018, section 3.3 and Figure 8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

from hybridnn.errors import SettingError
from hybridnn.nn.kernels import Array
from hybridnn.training.callbacks import Callback
from hybridnn.training.progress import StepPosition
from hybridnn.training.records import StepRecord
from hybridnn.training.trained_network import TrainedNetwork


class WeightErrors(Callback):
    """Adds to every `StepRecord` the errors of stale and of predicted weights: `stale_error` and `predicted_error`.

    They compare the weights with those of 1 to `most` updates before, and with the predictions made then. Keeps
    ``most * (most + 1)`` copies of the weights, and slows the training down.

    Raises `SettingError` for an asynchronous method, or an optimizer that does not predict weights.
    """

    def __init__(self, trainer: TrainedNetwork, most: int) -> None:
        if not (trainer.engine.layout.exact and trainer.optimizer.predicts_weights):
            needs = "an exact method and an optimizer that predicts weights, such as SGD with momentum"
            raise SettingError("training.weight_error", most, f"above 0 needs {needs}")
        self._most = most
        # Of the last updates, the newest first: weights by chunk, and those predicted for 1, 2, ... updates later.
        self._versions: deque[tuple[list[Array], list[list[Array]]]] = deque(maxlen=most)

    def on_train_batch_end(self, trainer: TrainedNetwork, record: StepRecord) -> None:
        """Compare the weights with the versions before this update; collective."""
        stale = tuple(_error(trainer, weights) for weights, _ in self._versions)
        predicted = tuple(_error(trainer, predictions[s]) for s, (_, predictions) in enumerate(self._versions))
        trainer.history.steps[-1] = replace(record, stale_error=stale, predicted_error=predicted)

    def between_steps(self, trainer: TrainedNetwork, reached: StepPosition) -> bool:
        """Keep the weights after this update, and predict later ones with its learning rate."""
        engine, found = trainer.engine, []
        for updates in range(1, self._most + 1):
            arrays = [chunk.kernels.empty(chunk.weights.shape, chunk.weights.dtype) for chunk in engine.chunks]
            for chunk, state, out in zip(engine.chunks, engine.states, arrays, strict=True):
                trainer.optimizer.predict(chunk.weights, state, reached.learning_rate, updates, out)
            found.append(arrays)
        self._versions.appendleft(([chunk.weights.copy() for chunk in engine.chunks], found))
        return False


def _error(trainer: TrainedNetwork, other: Sequence[Array]) -> float:
    """Root-mean-square difference of the weights from others; collective."""
    differences = [chunk.weights - weights for chunk, weights in zip(trainer.engine.chunks, other, strict=True)]
    return sqrt(trainer.engine.arrays.squared_norms(differences).sum() / trainer.model.parameters)
