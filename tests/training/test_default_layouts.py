"""Defaults that depend on the layout: microbatches, partition, overlap."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.comm.mpi import import_mpi
from hybridnn.config.settings import load_settings
from hybridnn.pipeline.partition import uniform_partition
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.runs.workload import layout_from_settings
from hybridnn.training.config import TrainConfig
from hybridnn.training.layout_choice import resolve_layout
from reference.cases import assert_arrays_close

NETWORKS = ([40, 9, 8, 7, 6, 5, 3], [5, 6, 6, 6, 6, 60, 60, 3])
"""Networks whose work is not in the middle."""


def trained(grid: ProcessGrid, sizes: list[int], **options: Any) -> Trainer:
    random = np.random.default_rng(len(sizes))
    x, y = random.standard_normal((53, sizes[0])), random.integers(0, 3, 53)
    trainer = Trainer(MLP(sizes, "tanh"), SGD(lr=0.1), grid=grid, batch_size=24, dtype="float64", **options)
    trainer.fit(x, y, epochs=1)
    return trainer


@pytest.mark.in_process(ranks=[2, 3])
@pytest.mark.parametrize("sizes", NETWORKS)
def test_defaults_of_exact_methods_train_as_one_rank_does(comm: MPI.Intracomm, sizes: list[int]) -> None:
    alone = trained(ProcessGrid(import_mpi().COMM_SELF), sizes).weights()
    grids = [ProcessGrid(comm, pipeline=comm.size)]
    if comm.size == 3:
        grids += [ProcessGrid(comm, stages=[(2, 1), (1, 1)]), ProcessGrid(comm, stages=[(1, 1), (1, 2)])]
    uneven = 0
    for grid in grids:
        for method in (method for method in METHODS.values() if method.exact):
            trainer = trained(grid, sizes, method=method.name)
            layout = trainer.layout
            uneven += layout.layers != uniform_partition(len(sizes) - 1, len(layout.layers))
            assert_arrays_close(trainer.weights(), alone, f"{layout.describe()}, layers {layout.layers}", 1e-10)
    assert uneven  # else the test would be of equal numbers of layers


def step_seconds(model: MLP, counts: tuple[int, ...], microbatches: int, batch_size: int, *, drains: bool) -> float:
    """Seconds of a step in float32 on stages of one rank, by the costs that `hybridnn.pipeline.partition` states."""
    samples, stages, first = -(-batch_size // microbatches), [], 0
    for count in counts:
        seconds = 2 * 10e-6 + (2 * (5e-6 + 2e-10 * model.sizes[first] * samples * 4) if first else 0)
        for layer in model.layers[first : first + count]:
            weights, elements = layer.inputs * layer.outputs, layer.inputs + layer.outputs
            product = 6e-6 + weights * 140e-12 + samples * (weights * 22e-12 + elements * 200e-12)
            seconds += product * (3 if first or layer.index else 2)
        stages.append(seconds)
        first += count
    return (microbatches + (len(counts) - 1 if drains else 0)) * max(stages)


@pytest.mark.parametrize(("method", "drains"), [("gpipe", True), ("1f1b", True), ("pipedream-2bw", False)])
def test_the_default_microbatches_are_the_fastest_by_typical_costs(method: str, drains: bool) -> None:
    for sizes, batch_size in (([64, 64, 64, 64, 10], 100), ([16, *[1024] * 4, 2], 128), ([16, *[1024] * 4, 2], 2048)):
        for stages in (2, 3, 4):
            config, found = TrainConfig(MLP(sizes), batch_size=batch_size, method=method), dict[int, float]()
            chosen = resolve_layout(config, ((1, 1),) * stages, stages)
            least = stages if method == "pipedream-2bw" else 2
            for count in {1 << bit for bit in range(1, 9)} | {stages << bit for bit in range(9)}:
                if least <= count <= 8 * stages:
                    layers = resolve_layout(replace(config, microbatches=count), ((1, 1),) * stages, stages).layers
                    found[count] = step_seconds(config.model, layers, count, batch_size, drains=drains)
            assert found[chosen.microbatches] == pytest.approx(min(found.values()), rel=1e-9)
    # Large products have more microbatches, because a small bubble counts for more than calls.
    wide, narrow = (resolve_layout(replace(config, model=MLP([width] * 5)), ((1, 1),) * 4, 4) for width in (2048, 8))
    assert (wide.microbatches > narrow.microbatches) == drains


def test_default_microbatches_fit_the_samples_and_the_method() -> None:
    def chosen(batch_size: int, method: str, stages: tuple[tuple[int, int], ...]) -> int:
        config = TrainConfig(MLP([6] * 9), batch_size=batch_size, method=method)
        return resolve_layout(config, stages, 2).microbatches

    assert chosen(100, "pipedream", ((1, 1),) * 2) == 1
    assert chosen(100, "gpipe", ((4, 1),)) == 1
    assert chosen(7, "gpipe", ((3, 1), (1, 1))) == 2  # three samples of each
    assert chosen(1, "1f1b", ((1, 1),) * 3) == 3  # of which two are empty
    assert chosen(100, "interleaved", ((1, 1),) * 3) % 3 == 0


def test_messages_overlap_where_others_than_the_computing_cores_move_them() -> None:
    for node_ranks, on_host, expected in ((1, True, True), (2, False, True), (2, True, False)):
        for wanted in ("auto", True, False):
            config = TrainConfig(MLP([2, 1]), overlap=wanted)
            found = resolve_layout(config, ((2, 1),), node_ranks, on_host=on_host).overlap
            assert found is (expected if wanted == "auto" else wanted)


@pytest.mark.in_process(ranks=[2])
def test_a_trainer_on_one_node_sums_gradients_once(comm: MPI.Intracomm) -> None:
    """Layers of more than a bucket each: in one message after the backward pass, or in one for each layer."""
    x, y = np.zeros((8, 400), np.float32), np.zeros((8, 1), np.float32)
    for wanted in ("auto", False, True):
        grid = ProcessGrid(comm, batch=comm.size)
        trainer = Trainer(MLP([400, 400, 400, 1]), grid=grid, batch_size=8, overlap=wanted, shared_replicas=False)
        assert trainer.layout.overlap is (wanted is True)
        trainer.fit(x, y, epochs=1)
        calls = Counter(event.name for event in grid.recorder.events if event.axis == "batch")
        assert calls["allreduce"] > 1 if trainer.layout.overlap else calls["allreduce"] == 1, calls
        assert ("allreduce.wait" in calls) is trainer.layout.overlap, calls


@pytest.mark.parametrize(("given", "expected"), [("auto", False), ("true", True), ("false", False)])
def test_the_layout_of_settings_overlaps_as_a_run_would(given: str, expected: bool) -> None:
    settings = load_settings(None, ["data.name=digits", f"parallel.overlap={given}"])
    assert layout_from_settings(settings, 2, MLP([64, 16, 10])).overlap is expected
