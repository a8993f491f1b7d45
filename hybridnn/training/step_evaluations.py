"""Evaluation on the test data every few steps, of the weights of that step on every stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hybridnn.kernels.backend import Array
from hybridnn.training.data_split import DataSplit
from hybridnn.training.engine import Engine
from hybridnn.training.records import EvaluationRecord


class _KeptWeights(NamedTuple):
    step: int
    epoch: int
    weights: list[Array]  # by chunk


class StepEvaluations:
    """Evaluates the weights of every step that is a multiple of `every`.

    With an exact method at once. The pipeline of an asynchronous method is not empty between steps, and its stages
    reach a step at different times: each copies its own weights then, and the copies are evaluated after the epoch.

    Parameters
    ----------
    every : int
        Steps between two evaluations.
    record : callable
        Called with each record, in the order of the steps.
    """

    def __init__(self, engine: Engine, test: DataSplit, every: int, record: Callable[[EvaluationRecord], None]) -> None:
        self._engine, self._test, self._every, self._record = engine, test, every, record
        self._kept: list[_KeptWeights] = []

    def is_due(self, step: int) -> bool:
        """Whether the weights after so many steps are evaluated."""
        return step % self._every == 0

    def after_step(self, step: int, epoch: int) -> None:
        """Evaluate or copy the weights after `step` updates of this stage; collective."""
        if self._engine.layout.exact:
            self._evaluate(step, epoch)
        else:
            self._kept.append(_KeptWeights(step, epoch, self._engine.copy_weights()))

    def end_epoch(self, step: int, epoch: int) -> None:
        """Evaluate the copies of an asynchronous method after its epoch, which ended with `step`; collective."""
        if self._engine.layout.exact:
            return
        kept, self._kept = self._kept, []
        for copy in kept:
            with self._engine.other_weights(copy.weights):
                self._evaluate(copy.step, copy.epoch)
        if self.is_due(step):
            self._evaluate(step, epoch)

    def _evaluate(self, step: int, epoch: int) -> None:
        test = self._engine.evaluate(self._test)
        self._record(EvaluationRecord(step, epoch, test.loss, test.accuracy, test.r2))
