"""Pipelines: messages, partitions by measured times, and refused settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, Adam, ProcessGrid, Trainer
from hybridnn.errors import HybridnnError, SettingError
from hybridnn.pipeline.partition import LayerSeconds
from hybridnn.pipeline.schedules.methods import METHODS
from reference.cases import assert_arrays_same
from reference.pipeline_cases import (
    DEEP,
    MOMENTUM,
    run_pipelined,
)
from reference.pipelines import uniform
from reference.ranks import allgather_objects
from reference.training_list import methods


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


def wrong_settings(stages: int) -> dict[str, tuple[dict[str, Any], str]]:
    """What is refused, with the options, and a pattern of what the message says."""
    few = MLP((*DEEP[: stages - 1], 3))
    return {
        "more stages than layers": ({"model": few}, rf"{stages}\b.*\b{stages - 1}|{stages - 1}\b.*\b{stages}"),
        "more chunks than layers": ({"method": "interleaved", "chunks": 5, "microbatches": stages}, "chunks|layers"),
        "clipping": ({"method": "pipedream", "clip_norm": 0.5}, "clip_norm.*0.5"),
        "no momentum": ({"method": "spectrain", "optimizer": SGD(momentum=0.0)}, "momentum"),
        "sent minibatches": ({"method": "gpipe", "distribution": "scatter"}, "distribution.*scatter"),
        "barriers of pipedream": ({"method": "pipedream", "barriers": True}, "barriers.*pipedream.*only with ddg, fr"),
        "no drain": ({"method": "fr", "drain_every": 0}, r"training\.drain_every.*0"),
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
