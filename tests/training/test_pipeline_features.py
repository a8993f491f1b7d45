"""Pipelines: evaluation, messages, divergence, partitions by measured times, and refused settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hybridnn import MLP, SGD, Adam, ProcessGrid, Trainer
from hybridnn.errors import HybridnnError, NonFiniteLossError, SettingError
from hybridnn.pipeline.partition import LayerSeconds
from hybridnn.pipeline.schedules.methods import METHODS
from reference import network as net
from reference.cases import assert_arrays_same, data
from reference.pipeline_cases import (
    ADAM,
    DEEP,
    DELAYED_CASES,
    MOMENTUM,
    PipelineCase,
    pipelined_trainer,
    run_pipelined,
)
from reference.pipelines import uniform
from reference.ranks import allgather_objects
from reference.training_list import methods

if TYPE_CHECKING:
    from mpi4py import MPI


@pytest.mark.in_process(ranks=[3])
def test_evaluation_counts_every_sample_once(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, pipeline=comm.size)
    for batch_size in (1, 5, 22, 23, 40):
        for training in (MOMENTUM, ADAM):
            case = replace(training, batch_size=batch_size)
            trainer = pipelined_trainer(PipelineCase("pipedream", case), grid)
            x, y = data(case, "test")
            outputs, _ = net.forward(case.network, net.initial_weights(case.network, case.seed), x)
            found = trainer.evaluate(x, y)
            assert found.samples == len(x) == 23
            assert found.loss == pytest.approx(net.loss(case.network, outputs, y), rel=1e-12)
            np.testing.assert_allclose(trainer.predict(x), outputs, rtol=0, atol=1e-12)


@pytest.mark.in_process(ranks=[3])
def test_nothing_large_is_sent_but_activations_and_their_gradients_between_stages(comm: MPI.Intracomm) -> None:
    # One number for each sample and output at a boundary, forward and backward: else stages would not be apart.
    minibatches = 4
    for it in (replace(it, case=replace(MOMENTUM, epochs=1)) for it in methods(comm.size).values()):
        ends = np.cumsum(uniform(8, comm.size * it.chunks))[:-1]
        expected = 2 * 8 * MOMENTUM.samples * sum(DEEP[end] for end in ends)
        for record in run_pipelined(it, ProcessGrid(comm, pipeline=comm.size)).history.epochs:
            beside = record.bytes_sent - expected
            assert 0 <= beside <= 64 * minibatches, f"{it}: {record.bytes_sent} bytes, {expected} expected"


@pytest.mark.in_process(ranks=[3])
def test_a_diverging_run_stops_on_every_rank_with_the_same_words(comm: MPI.Intracomm) -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((40, 5)), random.standard_normal((40, 3))
    for it in (PipelineCase("1f1b", microbatches=3), *DELAYED_CASES.values()):
        trainer = Trainer(
            MLP(DEEP),
            SGD(lr=1e12),
            grid=ProcessGrid(comm, pipeline=comm.size),
            batch_size=10,
            **it.settings,
        )
        with pytest.raises(NonFiniteLossError) as caught:
            trainer.fit(x, y, epochs=100)
        assert len(set(allgather_objects(comm, str(caught.value)))) == 1, str(it)


def wrong_settings(stages: int) -> dict[str, tuple[dict[str, Any], str]]:
    """What is refused, with the options, and a pattern of what the message says."""
    few = MLP((*DEEP[: stages - 1], 3))
    return {
        "more stages than layers": ({"model": few}, rf"{stages}\b.*\b{stages - 1}|{stages - 1}\b.*\b{stages}"),
        "more chunks than layers": ({"method": "interleaved", "chunks": 5, "microbatches": stages}, "chunks|layers"),
        "too few layers dealt": ({"partition": (1,) * stages}, r"partition.*8"),
        "too many stages in it": ({"partition": (1,) * 8}, rf"partition.*{stages}"),
        "a stage of none": ({"partition": (8,) + (0,) * (stages - 1)}, "partition"),
        "clipping": ({"method": "pipedream", "clip_norm": 0.5}, "clip_norm.*0.5"),
        "clipping with fr": ({"method": "fr", "clip_norm": 0.5}, "clip_norm.*0.5"),
        "no momentum": ({"method": "spectrain", "optimizer": SGD(momentum=0.0)}, "momentum"),
        "sent minibatches": ({"method": "gpipe", "distribution": "scatter"}, "distribution.*scatter"),
        "sent on": ({"method": "fr", "distribution": "scatter-broadcast"}, "distribution.*scatter-broadcast"),
        "microbatches of pipedream": ({"method": "pipedream", "microbatches": 2}, "microbatches.*2"),
        "microbatches of the order": (
            {"method": "interleaved", "chunks": 2, "microbatches": stages + 1},
            rf"microbatches.*{stages + 1}",
        ),
        "chunks of 1f1b": ({"method": "1f1b", "chunks": 2}, "chunks.*2"),
        "no chunks": ({"method": "interleaved", "chunks": 0}, "chunks.*0"),
        "barriers of pipedream": ({"method": "pipedream", "barriers": True}, "barriers.*pipedream.*only with ddg, fr"),
        "no drain": ({"method": "fr", "drain_every": 0}, r"training\.drain_every.*0"),
        "unknown weight_grad": ({"method": "gpipe", "weight_grad": "split"}, "weight_grad.*split"),
        "merged by zb-h1": ({"method": "zb-h1", "weight_grad": "merged"}, "weight_grad.*merged"),
    }


@pytest.mark.in_process(ranks=[3])
@pytest.mark.parametrize("name", wrong_settings(2))
def test_wrong_settings_are_refused_in_one_line_on_every_rank(comm: MPI.Intracomm, name: str) -> None:
    options, pattern = wrong_settings(comm.size)[name]
    given: dict[str, Any] = {"model": MLP(DEEP), "optimizer": Adam()} | options
    with pytest.raises(HybridnnError, match=pattern) as caught:
        Trainer(grid=ProcessGrid(comm, pipeline=comm.size), **given)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert len(set(allgather_objects(comm, str(caught.value)))) == 1


def test_one_stage_takes_exact_methods_alone() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 20, 3))

    def trained(**given: Any) -> dict[str, Any]:
        trainer = Trainer(MLP([3, 5, 3]), SGD(0.05), batch_size=5, dtype="float64", **given)
        trainer.fit(x, y, epochs=2)
        return trainer.weights()

    plain = trained()
    for name, method in METHODS.items():
        if method.exact:
            assert_arrays_same(trained(method=name), plain)
        else:
            with pytest.raises(
                SettingError, match=rf"^parallel.method = '{name}': needs a pipeline of at least 2 stages"
            ):
                trained(method=name)
    assert_arrays_same(trained(method="1f1b"), plain)


@pytest.mark.in_process(ranks=[3])
def test_ranks_that_were_given_different_pipelines_are_refused(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, pipeline=comm.size, batch=1)
    last = comm.rank == comm.size - 1
    for mine, other in (
        ({"method": "gpipe"}, {"method": "pipedream"}),
        ({"method": "gpipe", "microbatches": 2}, {"method": "gpipe", "microbatches": 3}),
        ({"weight_grad": "merged"}, {"weight_grad": "per-microbatch"}),
        ({"partition": "profile"}, {"partition": "uniform"}),
        ({"batch_size": 11}, {"batch_size": 12}),
        ({"clip_norm": 1.0}, {}),
        ({}, {"seed": 1}),
    ):
        options: dict[str, Any] = other if last else mine
        with pytest.raises(SettingError, match="the same on every rank"):
            Trainer(MLP([4, 5, 6, 7, 3]), grid=grid, **options)


@pytest.mark.in_process(ranks=[4])
def test_a_partition_by_times_gives_a_wide_stage_more_layers(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_samples(model: MLP, samples: int, dtype: Any) -> tuple[LayerSeconds, ...]:
        """Equal layers whose time goes with the samples."""
        return tuple(LayerSeconds(samples, samples, samples) for _ in model.layers)

    monkeypatch.setattr("hybridnn.training.pipeline_choice.time_layers", by_samples)
    model = MLP([6] * 9)
    for stages, layers in (
        ([(3, 1), (1, 1)], (6, 2)),
        ([(1, 1), (3, 1)], (2, 6)),
        ([(1, 3), (1, 1)], (6, 2)),
        ([(2, 1), (2, 1)], (4, 4)),
    ):
        grid = ProcessGrid(comm, stages=stages)
        trainer = Trainer(model, grid=grid, batch_size=600, method="pipedream", partition="profile")
        assert trainer.layout.layers == layers


@pytest.mark.in_process(ranks=[2])
def test_data_of_both_tasks_in_turn_train_as_if_each_came_first(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, pipeline=2, batch=1)
    random = np.random.default_rng(0)
    x, numbers, labels = random.standard_normal((33, 4)), random.standard_normal((33, 3)), random.integers(0, 3, 33)

    def trainer() -> Trainer:
        return Trainer(MLP([4, 6, 5, 7, 3]), SGD(0.05), grid=grid, batch_size=5, dtype="float64", method="pipedream")

    mixed = trainer()
    mixed.predict(x)
    bytes_before = mixed.memory_bytes
    mixed.fit(x, labels, epochs=1)
    assert mixed.memory_bytes < 1.1 * bytes_before
    after_labels = mixed.weights()
    plain = trainer()
    plain.fit(x, labels, epochs=1)
    assert_arrays_same(after_labels, plain.weights())
    other = trainer()
    other.load_weights(after_labels)
    mixed.load_weights(after_labels, reset_optimizer=True)
    assert mixed.evaluate(x, numbers).loss == other.evaluate(x, numbers).loss
