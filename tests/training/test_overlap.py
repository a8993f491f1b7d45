"""Overlap of communication and computation: when it is chosen, and that the weights do not depend on it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, ProcessGrid, TrainConfig, Trainer
from hybridnn.config.settings import load_settings
from hybridnn.runs.workload import layout_from_settings
from hybridnn.training.layout_choice import resolve_layout


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
