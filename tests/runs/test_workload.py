"""Layouts and workloads from settings, against the header of the run that the same settings start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn.config.settings import load_settings
from hybridnn.cost.prediction.memory import stage_memory
from hybridnn.errors import GridError, HybridnnError, SettingError
from hybridnn.runs.records import RunHeader, RunView
from hybridnn.runs.run import run_training
from hybridnn.runs.workload import layout_from_settings, workload_from_settings
from reference.machines import make_machine

GENERATED = ("data.name=synthetic", "data.rows=50", "data.synthetic.test_samples=10")
SMALL = (
    "model.hidden=[9,8,7,6,5]",
    "training.epochs=1",
    "training.batch_size=20",
)


def with_data(changes: Sequence[str]) -> list[str]:
    """A small network, on generated data unless others are named."""
    named = any(change.startswith(("data.name", "data.file")) for change in changes)
    return [*(() if named else GENERATED), *SMALL, *changes]


class _Header(RunView):
    """Keeps the header of a run."""

    header: RunHeader | None = None

    def on_header(self, header: RunHeader) -> None:
        self.header = header


def check(comm: MPI.Intracomm, folder: Path, *changes: str) -> None:
    """Run, and compare with what the settings say without a run."""
    settings = load_settings(None, [*with_data(changes), f"output.folder={folder}"])
    workload = workload_from_settings(settings)
    layout = layout_from_settings(settings, comm.size, workload.model)
    view = _Header()
    run_training(settings, view)
    if comm.rank > 0:
        return
    header = view.header
    assert header is not None
    assert (workload.model.sizes, workload.samples) == (header.sizes, header.train_samples)
    assert layout.ranks == comm.size
    assert layout.describe() == header.layout.describe()
    assert layout.layers == header.layout.layers
    for stage, reported in enumerate(header.memory):
        counted = stage_memory(workload, layout, stage)
        assert replace(counted, weight_bytes=0) == replace(reported, weight_bytes=0)


@pytest.mark.in_process(ranks=[1])
def test_one_rank(comm: MPI.Intracomm, tmp_path: Path) -> None:
    check(comm, tmp_path / "plain", "optimizer.name=adam")
    # Exact methods are all the same on one stage.
    gpipe = ("parallel.method=gpipe", "parallel.microbatches=4", "optimizer.momentum=0.0")
    check(comm, tmp_path / "ignored", *gpipe)
    check(comm, tmp_path / "digits", "data.name=digits", "data.rows=100", "training.dtype=float64")
    if comm.rank == 0:
        x = np.arange(60.0).reshape(20, 3)
        np.savez(tmp_path / "own.npz", x_train=x, y_train=np.arange(20) % 4, x_test=x, y_test=np.arange(20) % 4)
        table = "a,b,c\n" + "\n".join(f"{row},{row % 3},{row * 0.5}" for row in range(31))
        (tmp_path / "own.csv").write_text(table)
    check(comm, tmp_path / "npz", f"data.file={tmp_path / 'own.npz'}")
    check(comm, tmp_path / "csv", f"data.file={tmp_path / 'own.csv'}", "data.targets=['c']")


ON_RANKS = {
    2: [
        ["parallel.model=2", "parallel.model_split=alternating", "parallel.overlap=false"],
        ["parallel.pipeline=2", "parallel.method=interleaved"],
        ["parallel.pipeline=2", "parallel.method=pipedream-vsync"],
        ["parallel.pipeline=2", "parallel.method=zb-h1", "parallel.partition=[4,2]", "training.batch_size=3"],
    ],
    4: [
        ["parallel.batch=2", "parallel.model=2"],
        ["parallel.pipeline=4", "parallel.method=gpipe"],
        ["parallel.stages=[{batch=3},{}]", "parallel.method=1f1b", "parallel.microbatches=5"],
        ["parallel.stages=[{model=2},{batch=2}]", "parallel.method=spectrain"],
    ],
}


@pytest.mark.in_process(ranks=[2, 4])
def test_several_ranks(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    for number, changes in enumerate(ON_RANKS[comm.size]):
        check(comm, mpi_tmp_path / str(number), *changes)


def test_names_of_optimizers_and_flags() -> None:
    for changes, optimizer in (
        (["optimizer.momentum=0.0"], "sgd"),
        ([], "momentum"),
        (["optimizer.name=adam"], "adam"),
        (["optimizer.name=adamw"], "adam"),
        (["optimizer.name=rmsprop"], "momentum"),  # has as many arrays
    ):
        assert workload_from_settings(load_settings(None, with_data(changes))).update_rule == optimizer
    clipped = workload_from_settings(load_settings(None, ["training.clip_norm=1.0", "training.dtype=float64"]))
    assert (clipped.clips, clipped.dtype, clipped.classification, clipped.batch_size) == (True, "float64", True, 100)
    assert not workload_from_settings(load_settings(None, with_data(()))).classification


def test_no_file_is_needed_for_a_data_set_of_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridnn.data.load_dataset", None)
    for changes, sizes, samples in (
        (["data.name=mnist"], (784, 10), 60_000),
        (["data.name=airfoil"], (5, 1), 1202),  # 1503 without a fifth
        (["data.name=airfoil-4"], (4, 1), 1202),
        (["data.name=ethylene", "data.rows=4000000"], (16, 2), 3_200_000),
    ):
        workload = workload_from_settings(load_settings(None, changes))
        assert (workload.model.sizes[0], workload.model.sizes[-1], workload.samples) == (*sizes, samples)


REFUSED: list[tuple[list[str], int, type[HybridnnError], str]] = [
    (["data.name=digits", "data.rows=1798"], 1, SettingError, "digits has 1797"),
    (["data.name=digits", "model.loss=mse"], 1, SettingError, "classification data takes cross_entropy"),
    (["parallel.batch=3"], 4, GridError, "does not fit 4 ranks"),
    (["parallel.method=pipedream"], 1, SettingError, "needs a pipeline of at least 2 stages"),
    (["parallel.pipeline=7"], 7, SettingError, "at most 6, the number of layers"),
    (["parallel.pipeline=2", "parallel.partition=[3,2]"], 2, SettingError, "the counts add up to 5"),
    (["parallel.pipeline=2", "parallel.partition=profile"], 2, SettingError, "needs a machine file"),
]


@pytest.mark.parametrize(("changes", "ranks", "error", "message"), REFUSED)
def test_refuses_what_the_trainer_refuses(changes: list[str], ranks: int, error: Any, message: str) -> None:
    settings = load_settings(None, with_data(changes))
    with pytest.raises(error, match=message):
        layout_from_settings(settings, ranks, workload_from_settings(settings).model)


def test_layouts_that_a_method_or_a_profile_chooses() -> None:
    settings = load_settings(None, with_data(["parallel.method=gpipe", "parallel.batch=2"]))
    layout = layout_from_settings(settings, 6, workload_from_settings(settings).model)
    assert (layout.stages, layout.method) == (((2, 1),) * 3, "gpipe")
    changes = ["model.hidden=[100,10,10,10]", "parallel.pipeline=2", "parallel.partition=profile"]
    settings = load_settings(None, with_data(changes))
    layout = layout_from_settings(settings, 2, workload_from_settings(settings).model, make_machine())
    # 16 x 100 twice, and three times 100 x 10, 10 x 10, 10 x 10 and 10 x 2 multiply-adds: 3200 against 3660
    assert layout.layers == (1, 4)
