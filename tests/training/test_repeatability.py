"""Trainings that repeat to the last bit: twice, in parts, and whatever the order of the ranks."""

from dataclasses import replace
from typing import Any

import pytest

from hybridnn import Trainer
from hybridnn.in_process import run_ranks
from reference.cases import Case, assert_arrays_same, data, local_data
from reference.pipeline_cases import ADAM, MOMENTUM, PipelineCase
from reference.sweeps import sizes_for
from reference.training_cases import Grid, TrainingCase, trained, trainer_of
from reference.training_list import methods

PIPELINES = [
    *(TrainingCase(3, Grid(pipeline=3), replace(it, case=ADAM)) for it in methods(3).values()),
    TrainingCase(4, Grid(pipeline=2), PipelineCase("zb-h1", ADAM, microbatches=3)),
    TrainingCase(4, Grid(stages=((1, 1), (3, 1))), PipelineCase("pipedream", ADAM)),
    *(TrainingCase(4, Grid(pipeline=2), PipelineCase(method, ADAM)) for method in ("pipedream", "ddg", "spectrain")),
]
"""The last three share replicas, which hold several versions of the weights."""


def on_grid(model: int, split: str, *, overlap: bool = True) -> TrainingCase:
    sizes, shared = sizes_for(model, split, True, True), False if overlap else "auto"
    how: dict[str, Any] = {"model_split": split, "overlap": overlap, "shared_replicas": shared}
    return TrainingCase(4, Grid(model=model), Case(sizes, residual=True, optimizer="adamw", **how))


GRIDS = [on_grid(1, "columns"), on_grid(1, "columns", overlap=False), on_grid(2, "alternating"), on_grid(4, "columns")]
IN_PARTS = [
    (TrainingCase(2, Grid(model=2), Case((5, 13, 9, 11, 8), optimizer="adam")), False),
    (TrainingCase(4, Grid(model=2), Case((5, 13, 9, 11, 8), optimizer="adam")), True),
    *((it, True) for it in PIPELINES[:-4]),
]
"""Trainings, and whether they shuffle the samples."""


def left(trainer: Trainer) -> list[dict[str, Any]]:
    """Weights, and optimizer state by slot."""
    return [trainer.weights(), *trainer.optimizer_slots().values()]


def assert_same(first: Trainer, second: Trainer) -> None:
    for found, expected in zip(left(first), left(second), strict=True):
        assert_arrays_same(found, expected)
    for records in ("steps", "epochs"):
        losses = ([record.train_loss for record in getattr(it.history, records)] for it in (first, second))
        assert next(losses) == next(losses)


@pytest.mark.sweep
@pytest.mark.parametrize("it", [*GRIDS, *PIPELINES], ids=str)
def test_the_same_layout_twice(it: TrainingCase) -> None:
    single = replace(it, dtype="float32")
    run_ranks(it.ranks, lambda comm: assert_same(trained(single, comm), trained(single, comm)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shared_and_private_replicas(dtype: str) -> None:
    """Three ranks update slices, or all of 304 elements: BLAS treats the last 16 differently, in both the same ones."""
    for optimizer in ("plain", "momentum", "nesterov"):
        own, shared = (
            TrainingCase(3, Grid(), Case((7, 13, 9, 3), optimizer=optimizer, shared_replicas=is_shared), dtype)
            for is_shared in (False, True)
        )
        run_ranks(3, lambda comm, own=own, shared=shared: assert_same(trained(shared, comm), trained(own, comm)))


@pytest.mark.sweep
@pytest.mark.parametrize(("it", "shuffle"), IN_PARTS, ids=str)
def test_a_training_in_parts_with_evaluations_between_them(it: TrainingCase, shuffle: bool) -> None:
    def program(comm: Any) -> None:
        once, parts = (trainer_of(it, comm, shuffle=shuffle) for _ in range(2))
        x, y = local_data(it.case, once.grid)
        once.fit(x, y, epochs=2)
        for _ in range(2):
            parts.predict(data(it.case)[0][:1])
            parts.fit(x, y, epochs=1, validation=(x[:7], y[:7]))
            parts.evaluate(x, y)
        assert_same(parts, once)
        assert [record.epoch for record in parts.history.epochs] == [1, 2]
        assert parts.step == once.step == 8

    run_ranks(it.ranks, program)


@pytest.mark.parametrize("seeds", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_every_order_of_the_ranks_gives_the_same_bits(seeds: int) -> None:
    it = TrainingCase(4, Grid(pipeline=2), PipelineCase("1f1b", MOMENTUM))

    def program(comm: Any) -> dict[str, Any]:
        return trained(it, comm).weights()

    first = run_ranks(4, program).results[0]
    for seed in range(seeds):
        again = run_ranks(4, program, order=seed, sends=("rendezvous", "eager")[seed % 2]).results[0]
        assert_arrays_same(again, first)
