"""Commands and scripts without mpi4py; communicators of other ranks are refused."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.errors import GridError, SettingError
from hybridnn.in_process import run_ranks
from hybridnn.training.device import resolve_device
from mpi_runner.launch import run_job

EXAMPLE = """
x = np.random.default_rng(0).normal(size=(120, 5))
y = np.sin(x[:, :2])

def example(comm=None, **axes):
    trainer = Trainer(MLP([5, 7, 2]), SGD(lr=0.05), grid=ProcessGrid(comm, **axes), batch_size=50, dtype="float64")
    history = trainer.fit(x[:100], y[:100], epochs=2, validation=(x[100:], y[100:]))
    return [history.epochs[-1].train_loss, trainer.evaluate(x[100:], y[100:]).loss]
"""

WITHOUT_MPI = f"""
import contextlib, io, json, sys
sys.modules["mpi4py"] = None  # as if it were not installed
import numpy as np
from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.cli.main import main
from hybridnn.in_process import run_ranks
{EXAMPLE}

def run(*arguments):
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            main(arguments)
    except SystemExit as end:
        return end.code, out.getvalue()

found = {{"script": example()}}
found["ranks"] = run_ranks(4, lambda comm: example(comm, batch=2, model=2)).results[3]
tiny = ("--hidden", "9", "--epochs", "1", "-q", "--format", "json")
np.savez("samples.npz", x=np.zeros((3, 64)))
commands = {{
    "train": ("train", *tiny, "--out", "one"),
    "four": ("train", *tiny, "--out", "four", "--in-process", "4", "--batch", "2", "--model", "2"),
    "evaluate": ("evaluate", "four", "--format", "json"),
    "evaluate on two": ("evaluate", "four", "--format", "json", "--in-process", "2"),
    "predict": ("predict", "one", "samples.npz"),
    "schedule": ("schedule", "1f1b", "--stages", "2"),
    "plan": ("plan", "--machine", "machine.toml", "--ranks", "4"),
    "simulate": ("simulate", "one/config.toml", "--ranks", "1", "--machine", "machine.toml"),
    "report": ("report", "four"),
    "export": ("export", "one", "weights.npz"),
    "doctor": ("doctor", "--format", "json"),
}}
found["commands"] = {{name: run(*arguments) for name, arguments in commands.items()}}
found["imported"] = sorted(name for name in sys.modules if name.startswith("mpi4py."))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def without_mpi(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results and output of a process without mpi4py."""
    folder = tmp_path_factory.mktemp("without-mpi")
    machine = Path(__file__).parents[2] / "hpc_jobs" / "machines"
    (folder / "machine.toml").write_bytes(next(machine.glob("*.toml")).read_bytes())
    result = run_job([sys.executable, "-c", WITHOUT_MPI], timeout=120, cwd=folder)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_commands_work_without_mpi4py(without_mpi: dict[str, Any]) -> None:
    assert without_mpi["imported"] == []
    codes = {name: ended[0] for name, ended in without_mpi["commands"].items()}
    assert codes == dict.fromkeys(codes, 0)
    printed = {name: ended[1] for name, ended in without_mpi["commands"].items()}
    losses = [json.loads(printed[name])["epochs"][0]["validation_loss"] for name in ("train", "four")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)  # float32
    for name in ("evaluate", "evaluate on two"):
        assert json.loads(printed[name])["loss"] == pytest.approx(losses[1], rel=1e-5)
    header = json.loads(printed["train"])["header"]
    assert (header["ranks"], header["versions"]["MPI"]) == (1, "none")
    library = [one for one in json.loads(printed["doctor"])["findings"] if one["name"] == "MPI library"]
    assert [(one["verdict"], one["what"]) for one in library] == [("warning", "no MPI library was found")]


def test_scripts_work_without_mpi4py(without_mpi: dict[str, Any]) -> None:
    scope = {"np": np, "MLP": MLP, "SGD": SGD, "Trainer": Trainer, "ProcessGrid": ProcessGrid}
    exec(EXAMPLE, scope)
    expected = scope["example"]()  # with MPI
    np.testing.assert_allclose(without_mpi["script"], expected, rtol=1e-12)
    np.testing.assert_allclose(without_mpi["ranks"], expected, rtol=1e-10)


def test_a_communicator_of_mpi_is_refused_in_a_rank(comm: Any) -> None:
    with pytest.raises(GridError, match=r"^the communicator is not of this run_ranks: "):
        run_ranks(2, lambda own: ProcessGrid(comm))
    grid = ProcessGrid(comm)
    with pytest.raises(GridError, match=r"^the communicator is not of this run_ranks: "):
        run_ranks(2, lambda own: Trainer(MLP([2, 3, 1]), grid=grid))


def test_a_communicator_of_ranks_is_refused_outside_them() -> None:
    comm, grid = run_ranks(2, lambda own: (own, ProcessGrid(own))).results[1]
    with pytest.raises(GridError, match=r"^the communicator is one of run_ranks, "):
        ProcessGrid(comm)
    with pytest.raises(GridError, match=r"^the communicator is one of run_ranks, "):
        Trainer(MLP([2, 3, 1]), grid=grid)
    with pytest.raises(GridError, match=r"^the communicator is not of this run_ranks: "):
        run_ranks(2, lambda own: ProcessGrid(comm))
    parts = run_ranks(4, lambda own: ProcessGrid(own.Split(own.rank // 2)).size).results
    assert parts == (2, 2, 2, 2), "communicators that it was split into are accepted"


@pytest.mark.in_process(ranks=[2])
def test_ranks_of_one_process_compute_on_the_cpu(comm: Any) -> None:
    def load() -> Any:
        raise AssertionError("no GPU is looked for")

    assert resolve_device("auto", ProcessGrid(comm), load).kind == "cpu"
    assert resolve_device("cpu", ProcessGrid(comm), load).why == "as requested"
    with pytest.raises(SettingError, match=r"^device.name = 'gpu': ranks of one process compute on the CPU"):
        Trainer(MLP([2, 3, 1]), grid=ProcessGrid(comm), device="gpu")
