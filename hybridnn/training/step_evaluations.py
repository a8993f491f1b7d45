"""Evaluation on the test data every few steps, of the weights of that step on every stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hybridnn.nn.kernels import Array
from hybridnn.training.data_split import DataSplit
from hybridnn.training.engine import Engine
from hybridnn.training.records import EvaluationRecord


class StepEvaluations:
    """Evaluates the weights of every step that is a multiple of `every`.

    Parameters
    ----------
    every : int
        Steps between two evaluations.
    record : callable
        Called with each record, in the order of the steps.
    """

    def __init__(self, engine: Engine, test: DataSplit, every: int, record: Callable[[EvaluationRecord], None]) -> None:
        self._engine, self._test, self._every, self._record = engine, test, every, record

    def is_due(self, step: int) -> bool:
        """Whether the weights after so many steps are evaluated."""
        return step % self._every == 0

    def evaluate(self, step: int, epoch: int, weights: Sequence[Array] | None = None) -> None:
        """Evaluate the current weights, or copies of those after `step`, by chunk; collective."""
        with self._engine.other_weights(weights):
            test = self._engine.evaluate(self._test)
        self._record(EvaluationRecord(step, epoch, test.loss, test.accuracy, test.r2))
