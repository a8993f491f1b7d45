"""Layouts by the machine file: `parallel.auto`, and the default partition of a pipeline."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mpi4py import MPI

from hybridnn.config.settings import ParallelSettings, Settings, keys_of_layout, load_settings, settings_from
from hybridnn.cost.machine import Machine
from hybridnn.cost.machine_file import write_machine
from hybridnn.cost.plan import best_exact
from hybridnn.errors import HybridnnError
from hybridnn.runs.records import RunView
from hybridnn.runs.resume import resolve_request
from hybridnn.runs.run import run_training
from hybridnn.runs.workload import choose_parallel_settings, workload_from_settings
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
def test_the_machine_file_balances_a_pipeline_and_a_resumed_run_keeps_its_partition(
    comm: MPI.Intracomm, no_machine: Path
) -> None:
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
        if comm.rank == 0:
            assert layers_of_run("even") == (3, 2)
            shutil.rmtree("even")
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
def test_the_machine_file_chooses_the_microbatches_and_the_header_says_so(
    comm: MPI.Intracomm, no_machine: Path
) -> None:
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
def test_the_header_advises_where_a_layout_is_clearly_slower(
    comm: MPI.Intracomm, no_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HYBRIDNN_MACHINE", raising=False)
    monkeypatch.chdir(no_machine)
    for name, machine in (("none", None), ("slow messages", make_machine(alpha=1.0))):
        if comm.rank == 0 and machine is not None:
            write_machine(machine, no_machine / "machine.toml")
        comm.Barrier()
        train(no_machine / name, **DEEP, training={"epochs": 1}, parallel={"pipeline": 2, "method": "gpipe"})
        if comm.rank == 0:
            assert bool(records_of(no_machine / name)[0]["layout_advice"]) == (machine is not None)
        comm.Barrier()
