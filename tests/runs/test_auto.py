"""Layouts and workloads from settings and the machine file."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn.config.settings import ParallelSettings, Settings, keys_of_layout, load_settings, settings_from
from hybridnn.cost.machine import Machine
from hybridnn.cost.machine_file import write_machine
from hybridnn.cost.plan import best_exact
from hybridnn.cost.prediction.memory import stage_memory
from hybridnn.errors import GridError, HybridnnError, SettingError
from hybridnn.runs.records import RunHeader, RunView
from hybridnn.runs.resume import resolve_request
from hybridnn.runs.run import run_training
from hybridnn.runs.workload import choose_parallel_settings, layout_from_settings, workload_from_settings
from reference.command_line import records_of
from reference.machines import make_machine
from reference.trained_runs import train

CHANGES = ["data.rows=200", "model.hidden=[12,12,12]", "training.epochs=1", "training.batch_size=20"]


def settings_with(*changes: str) -> Settings:
    return load_settings(None, [*CHANGES, "parallel.auto=true", *changes])


@pytest.fixture
def no_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder without a machine file."""
    monkeypatch.delenv("HYBRIDNN_MACHINE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def folder(comm: MPI.Intracomm, no_machine: Path) -> Path:
    """Return a working folder for rank 0 with a machine file where one message costs as much as a network."""
    if comm.rank == 0:
        write_machine(make_machine(alpha=1e-3), no_machine / "machine.toml")
    comm.Barrier()
    return no_machine


@pytest.mark.in_process(ranks=[1, 4])
@pytest.mark.usefixtures("folder")
def test_the_best_exact_layout_is_chosen_on_every_rank(comm: MPI.Intracomm) -> None:
    settings = settings_with()
    settled = choose_parallel_settings(settings)
    best = best_exact(workload_from_settings(settings), make_machine(alpha=1e-3), comm.size)
    expected = ParallelSettings.model_validate(keys_of_layout(best.layout))
    assert settled.parallel == expected
    # One all-reduce costs least where messages are dear.
    assert (settled.parallel.pipeline, settled.parallel.batch, settled.parallel.model) == (1, comm.size, 1)
    assert not settled.parallel.auto
    assert settled.model_copy(update={"parallel": settings.parallel}) == settings
    assert choose_parallel_settings(settled) == settled


@pytest.mark.in_process(ranks=[4])
@pytest.mark.usefixtures("folder")
def test_keys_that_are_set_are_kept(comm: MPI.Intracomm) -> None:
    grid = choose_parallel_settings(settings_with("parallel.model=2", "parallel.overlap=false")).parallel
    assert (grid.model, grid.overlap) == (2, False)
    own = choose_parallel_settings(settings_with("parallel.batch=4", "parallel.shared_replicas=false")).parallel
    assert (own.batch, own.shared_replicas) == (4, False)
    pipeline = choose_parallel_settings(settings_with("parallel.pipeline=2", "parallel.method=gpipe")).parallel
    assert (pipeline.pipeline, pipeline.method) == (2, "gpipe")
    assert sum(pipeline.partition) == 4  # type: ignore[arg-type]  # counts
    named = choose_parallel_settings(settings_with("parallel.method=gpipe")).parallel
    assert (named.pipeline > 1, named.method) == (True, "gpipe")
    cut = choose_parallel_settings(settings_with("parallel.pipeline=4", "parallel.microbatches=5")).parallel
    assert (cut.pipeline, cut.microbatches) == (4, 5)
    # Both ends of a pipeline read data, so there is none where rank 0 hands them out.
    assert choose_parallel_settings(settings_with("data.distribution=scatter")).parallel.pipeline == 1


REFUSED = [
    (["parallel.method=pipedream"], r"parallel.method = 'pipedream': parallel.auto chooses among the exact methods"),
    (["parallel.partition=[2,2]"], r"parallel.partition = \[2, 2\]: does not go with parallel.auto"),
    (["parallel.stages=[{batch=3},{}]"], r"parallel.stages = .*: does not go with parallel.auto"),
    (["parallel.pipeline=3"], r"pipeline = 3.*no layout of 4 ranks"),
    (["data.name=no-such"], r"no such data set"),
]


@pytest.mark.in_process(ranks=[4])
@pytest.mark.usefixtures("folder")
def test_what_cannot_be_chosen_is_refused_on_every_rank(comm: MPI.Intracomm) -> None:
    for changes, message in REFUSED:
        others = ["data.rows=200"] if "data.name" in changes[0] else []
        settings = load_settings(None, [*[c for c in CHANGES if c not in others], "parallel.auto=true", *changes])
        with pytest.raises(HybridnnError, match=message):
            choose_parallel_settings(settings)


@pytest.mark.in_process(ranks=[2])
@pytest.mark.usefixtures("no_machine")
def test_without_a_machine_file_the_error_says_how_to_make_one(comm: MPI.Intracomm) -> None:
    with pytest.raises(HybridnnError, match=r"hybridnn calibrate -n 2 --out machine\.toml"):
        choose_parallel_settings(settings_with())


DEEP = {"data": {"rows": 200}, "model": {"hidden": [12, 12, 12, 12]}}


@pytest.mark.in_process(ranks=[2])
def test_the_machine_file_balances_a_pipeline_and_a_resumed_run_keeps_its_partition(comm, no_machine) -> None:
    def begin(machine: Machine | None) -> None:
        comm.Barrier()
        if comm.rank == 0:
            Path("machine.toml").unlink(missing_ok=True)
            if machine is not None:
                write_machine(machine, Path("machine.toml"))
        comm.Barrier()

    def layers_of_run(folder: str) -> object:
        return load_settings(Path(folder) / "config.toml").parallel.partition

    parallel = {"pipeline": 2, "method": "pipedream"}
    by_calls, by_work = make_machine(call=1.0, multiply_add=0.0), make_machine()  # digits has 64 inputs
    for machine, expected in ((None, (3, 2)), (by_calls, (3, 2)), (by_work, (1, 4))):
        begin(machine)
        train(no_machine / "first", **DEEP, training={"epochs": 1}, parallel=parallel)
        if comm.rank == 0:
            assert layers_of_run("first") == expected
            shutil.rmtree("first")
    train(no_machine / "even", **DEEP, training={"epochs": 1}, parallel=parallel | {"partition": "uniform"})
    assert comm.rank or layers_of_run("even") == (3, 2)
    begin(by_work)
    sections = {**DEEP, "parallel": parallel, "output": {"folder": str(no_machine / "run")}}
    run_training(settings_from({**sections, "training": {"epochs": 1}}), RunView())
    begin(by_calls)
    longer = settings_from({**sections, "training": {"epochs": 2}})
    resumed = resolve_request(longer, "auto", ())
    assert resumed is not None
    settings, start = resumed
    assert (settings.parallel.partition, start) == ((1, 4), "resume")
    assert len(run_training(settings, RunView(), start=start).epochs) == 2
    longer = settings_from({**sections, "training": {"epochs": 3}})
    other = longer.model_copy(update={"parallel": ParallelSettings(pipeline=2, method="pipedream", partition=(2, 3))})
    assert resolve_request(other, "auto", ()) == (other, "resume")  # what is set is not replaced


@pytest.mark.in_process(ranks=[2])
def test_the_machine_file_chooses_the_microbatches_and_the_header_says_so(comm, no_machine) -> None:
    """On machines where only calls, and where only work takes time; a bubble is half a microbatch of two."""
    parallel = {"pipeline": 2, "method": "gpipe"}
    for name, machine, expected in (("calls", make_machine(call=1.0), 2), ("work", make_machine(), 16)):
        if comm.rank == 0:
            write_machine(machine, no_machine / "machine.toml")
        comm.Barrier()
        train(no_machine / name, **DEEP, training={"epochs": 1}, parallel=parallel)
        train(no_machine / f"{name} given", **DEEP, training={"epochs": 1}, parallel={**parallel, "microbatches": 4})
        if comm.rank == 0:
            header, given = (records_of(no_machine / run)[0] for run in (name, f"{name} given"))
            assert header["layout"]["microbatches"] == expected
            assert header["microbatches_why"] == "predicted best from 2 to 16 by the machine file made up"
            assert (given["layout"]["microbatches"], given["microbatches_why"]) == (4, "")
        comm.Barrier()


@pytest.mark.in_process(ranks=[2])
def test_the_header_advises_where_a_layout_is_clearly_slower(comm, no_machine) -> None:
    for name, machine in (("none", None), ("slow messages", make_machine(alpha=1.0))):
        if comm.rank == 0 and machine is not None:
            write_machine(machine, no_machine / "machine.toml")
        comm.Barrier()
        train(no_machine / name, **DEEP, training={"epochs": 1}, parallel={"pipeline": 2, "method": "gpipe"})
        if comm.rank == 0:
            assert bool(records_of(no_machine / name)[0]["layout_advice"]) == (machine is not None)
        comm.Barrier()


GENERATED = ("data.name=synthetic", "data.rows=50", "data.synthetic.test_samples=10")
SMALL = ("model.hidden=[9,8,7,6,5]", "training.epochs=1", "training.batch_size=20")


def with_data(changes: Sequence[str]) -> list[str]:
    """A small network, on generated data unless others are named."""
    named = any(change.startswith(("data.name", "data.file")) for change in changes)
    return [*(() if named else GENERATED), *SMALL, *changes]


class _Header(RunView):
    """Keeps the header of a run."""

    header: RunHeader | None = None

    def show_header(self, header: RunHeader) -> None:
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
    assert (clipped.dtype, clipped.classification, clipped.batch_size) == ("float64", True, 100)
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


WRONG: list[tuple[list[str], int, type[HybridnnError], str]] = [
    (["data.name=digits", "data.rows=1798"], 1, SettingError, "digits has 1797"),
    (["data.name=digits", "model.loss=mse"], 1, SettingError, "classification data takes cross_entropy"),
    (["parallel.batch=3"], 4, GridError, "does not fit 4 ranks"),
    (["parallel.method=pipedream"], 1, SettingError, "needs a pipeline of at least 2 stages"),
    (["parallel.pipeline=7"], 7, SettingError, "at most 6, the number of layers"),
    (["parallel.pipeline=2", "parallel.partition=[3,2]"], 2, SettingError, "the counts add up to 5"),
    (["parallel.pipeline=2", "parallel.partition=profile"], 2, SettingError, "needs a machine file"),
]


@pytest.mark.parametrize(("changes", "ranks", "error", "message"), WRONG)
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
