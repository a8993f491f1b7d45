"""Callbacks: one that is made of functions, and one that keeps its calls."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hybridnn import Callback
from hybridnn.training.records import EpochRecord, EvaluationRecord, StepPosition, StepRecord
from hybridnn.training.trained_network import TrainedNetwork


@dataclass
class Calling(Callback):
    """Calls a function with each record, and one that may end the training with each position between steps."""

    on_step: Callable[[StepRecord], Any] = field(default=lambda record: None)
    on_epoch: Callable[[EpochRecord], Any] = field(default=lambda record: None)
    on_evaluated: Callable[[EvaluationRecord], Any] = field(default=lambda record: None)
    should_stop: Callable[[StepPosition], Any] = field(default=lambda reached: None)

    def on_train_batch_end(self, trainer: TrainedNetwork, record: StepRecord) -> None:
        self.on_step(record)

    def on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:
        self.on_epoch(record)

    def on_evaluation(self, trainer: TrainedNetwork, record: EvaluationRecord) -> None:
        self.on_evaluated(record)

    def between_steps(self, trainer: TrainedNetwork, reached: StepPosition) -> bool:
        return bool(self.should_stop(reached))


class Calls(Callback):
    """Keeps the names of its calls, in order, and the weights at the end of the last epoch."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_train_begin(self, trainer: TrainedNetwork) -> None:
        self.names.append("train begins")

    def on_epoch_begin(self, trainer: TrainedNetwork, epoch: int) -> None:
        self.names.append(f"epoch {epoch} begins")

    def on_train_batch_end(self, trainer: TrainedNetwork, record: StepRecord) -> None:
        self.names.append(f"step {record.step}")

    def on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:
        self.names.append(f"epoch {record.epoch} ends")
        self.weights = trainer.weights()  # collective

    def on_train_end(self, trainer: TrainedNetwork) -> None:
        self.names.append("train ends")
