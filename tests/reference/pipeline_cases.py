"""Trainings to run twice, with hybridnn in a pipeline and by the serial replay of its method."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import hybridnn
from hybridnn.training.pipelining import Pipelining
from reference import network as net
from reference import pipelines
from reference.cases import (
    OPTIMIZERS,
    SCHEDULES,
    Case,
    assert_arrays_close,
    assert_close,
    data,
    make_trainer,
)
from reference.cases import reference as exact_reference
from reference.network import Weights
from reference.pipelines import DELAYED, Pipeline
from reference.serial import Outcome, Plan

DEEP = (5, 7, 6, 9, 8, 5, 4, 6, 3)
"""Eight layers, so that four ranks can hold two chunks each."""
RESIDUAL = (6, 6, 6, 8, 8, 8, 8, 7, 4)

MOMENTUM = Case(DEEP, epochs=2)
"""Four minibatches in an epoch, the last of 7 samples."""
ADAM = Case(DEEP, classification=False, optimizer="adam", samples=31, epochs=2)
"""The last minibatch is one sample."""
FEW = Case(RESIDUAL, activation="selu", residual=True, optimizer="nesterov", samples=5, batch_size=3, epochs=3)
"""Two minibatches, fewer than three or four stages."""
SINGLE = Case(DEEP, classification=False, samples=9, batch_size=20, epochs=2)
"""One minibatch, with more room than samples."""
COSINE = Case(DEEP, activation="relu", optimizer="adamw", schedule="cosine", samples=24, batch_size=4, epochs=2, seed=1)
"""Six minibatches; the rate is another in every update."""
TRAININGS = {"momentum": MOMENTUM, "adam": ADAM, "few": FEW, "single": SINGLE, "cosine": COSINE}

UNEVEN = {1: (8,), 2: (5, 3), 3: (1, 2, 5), 4: (3, 1, 1, 3)}
"""Layers of each stage, by number of stages."""


@dataclass(frozen=True)
class PipelineCase:
    """A training in a pipeline, with the fields of `Pipelining`."""

    method: str
    case: Case = MOMENTUM
    microbatches: int | None = None
    chunks: int = 1
    partition: str | tuple[int, ...] = "uniform"
    vertical_sync: bool = False
    weight_grad: str = "auto"
    synchronous_sends: bool = False

    @property
    def pipelining(self) -> Pipelining:
        return Pipelining(**{f.name: getattr(self, f.name) for f in fields(self) if f.name != "case"})

    def __str__(self) -> str:
        changed = [f"{f.name}={getattr(self, f.name)}" for f in fields(self)[2:] if getattr(self, f.name) != f.default]
        return ", ".join([self.method, *changed, str(self.case)])


DELAYED_CASES = {
    **{method: PipelineCase(method) for method in DELAYED},
    "vertical-sync": PipelineCase("pipedream", vertical_sync=True),
}
"""Every method with stale or predicted weights."""


def exact_cases(stages: int) -> dict[str, PipelineCase]:
    """Every exact method, with microbatches that do not divide the minibatches where the order can take them."""
    return {
        "sequential": PipelineCase("sequential"),
        "gpipe": PipelineCase("gpipe", microbatches=3, weight_grad="per-microbatch"),
        "gpipe-merged": PipelineCase("gpipe", microbatches=4, weight_grad="merged"),
        "1f1b": PipelineCase("1f1b", microbatches=4, weight_grad="per-microbatch"),
        "1f1b-merged": PipelineCase("1f1b", microbatches=3, weight_grad="merged"),
        "1f1b-auto": PipelineCase("1f1b"),
        "interleaved": PipelineCase("interleaved", microbatches=2 * stages, chunks=2, weight_grad="per-microbatch"),
        "interleaved-merged": PipelineCase("interleaved", microbatches=stages, chunks=2, weight_grad="merged"),
        "zb-h1": PipelineCase("zb-h1", microbatches=stages + 1),
    }


EXACT_NAMES = tuple(exact_cases(1))


def short_training(method: str, stages: int) -> Case:
    """One epoch of few minibatches, the last of them one sample: with stale weights, enough to show every delay.

    Every stage has layers enough for two chunks, and one has one more than the others. Four ranks can split each layer.
    """
    sizes = tuple(DEEP[layer % 8] for layer in range(2 * stages + 2))
    minibatches = stages + 2 if method in DELAYED else 3
    return Case(sizes, samples=4 * minibatches - 3, batch_size=4, epochs=1)


@lru_cache(maxsize=256)
def _replay(case: Case, pipeline: Pipeline) -> Outcome:
    plan = Plan(
        rule=OPTIMIZERS[case.optimizer][1],
        epochs=case.epochs,
        batch_size=case.batch_size,
        seed=case.seed,
        schedule=SCHEDULES[case.schedule][1],
    )
    return pipelines.train(case.network, plan, pipeline, *data(case))


def expected_outcome(it: PipelineCase, stages: int) -> Outcome:
    """The run by the replay, or by the serial reference; the grid, the order and the messages are nothing to it."""
    if it.method not in DELAYED:
        return exact_reference(it.case)
    case = replace(it.case, model_split="columns", overlap=True, shared_replicas="auto")
    uniform = pipelines.uniform(case.network.layers, stages)
    layers = uniform if isinstance(it.partition, str) else it.partition
    return _replay(case, Pipeline(it.method, layers, it.vertical_sync))


def pipelined_trainer(
    it: PipelineCase, grid: hybridnn.ProcessGrid, dtype: str = "float64", **settings: Any
) -> hybridnn.Trainer:
    return make_trainer(it.case, grid, dtype, pipelining=it.pipelining, **settings)


def run_pipelined(
    it: PipelineCase, grid: hybridnn.ProcessGrid, dtype: str = "float64", **settings: Any
) -> hybridnn.Trainer:
    """Train as the case says."""
    trainer = pipelined_trainer(it, grid, dtype, **settings)
    trainer.fit(*data(it.case), epochs=it.case.epochs, validation=data(it.case, "test"))
    return trainer


def check_pipelined(it: PipelineCase, grid: hybridnn.ProcessGrid, **settings: Any) -> hybridnn.Trainer:
    """Train on `grid`, and compare weights, losses, predictions and metrics with the replay's."""
    where, expected = f"{it} on {grid!r}", expected_outcome(it, grid.pipeline)
    trainer = run_pipelined(it, grid, **settings)
    assert_arrays_close(trainer.weights(), expected.weights, where)
    losses = [record.train_loss for record in trainer.history.epochs]
    assert_close(losses, expected.epoch_losses, f"{where}: epoch losses")
    check_quality_of(trainer, it.case, expected.weights, where)
    return trainer


def check_quality_of(trainer: hybridnn.Trainer, case: Case, weights: Weights, where: str) -> None:
    """Predictions, and the metrics of the test samples as asked for now and as recorded in the last epoch."""
    x, y = data(case, "test")
    outputs, _ = net.forward(case.network, weights, x)
    assert_close(trainer.predict(x), outputs, f"{where}: predictions")
    found, last = trainer.evaluate(x, y), trainer.history.epochs[-1]
    assert found.samples == len(x), where
    assert_close([found.loss, last.test_loss], [net.loss(case.network, outputs, y)] * 2, f"{where}: test loss")
    if case.classification:
        assert found.accuracy == last.test_accuracy == net.accuracy(outputs, y), where
    else:
        assert_close([found.r2, last.test_r2], [net.r2(outputs, y)] * 2, f"{where}: R2")
