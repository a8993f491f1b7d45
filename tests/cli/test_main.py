"""The command line: help, version, exit codes, and `hybridnn data`."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridnn._version import __version__
from hybridnn.cli.main import main
from hybridnn.datasets import catalogue
from hybridnn.diagnostics.failsafe import PROGRESS_FILE
from reference.command_line import Run, error_line

if TYPE_CHECKING:
    from mpi_runner.launch import JobResult

COMMAND = [sys.executable, "-c", "from hybridnn.cli.main import main; main()"]


@pytest.fixture
def run(run_hybridnn: Run) -> Run:
    """The command line as it is."""
    return run_hybridnn


HEAVY = {"numpy", "scipy", "matplotlib", "mpi4py", "pooch"}


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], HEAVY | {"pydantic"}),
        (["--version"], HEAVY | {"pydantic"}),
        # Here some versions of typer load pydantic on their own account.
        (["train", "--help"], HEAVY),
        (["data", "--help"], HEAVY),
        (["trace", "--help"], HEAVY),
        (["schedule", "--help"], HEAVY),
        (["schedule", "gpipe"], HEAVY),
        ([], HEAVY),
    ],
)
def test_help_loads_nothing_heavy(arguments: list[str], heavy: set[str]) -> None:
    program = (
        "import sys\nfrom hybridnn.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
        "print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    text, _, loaded = done.stdout.partition("LOADED")
    assert text
    assert "typer" in loaded.split()
    assert heavy & set(loaded.split()) == set()


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"hybridnn {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "No such command 'trian'."),
        (["train", "--epoch", "3"], "No such option: --epoch"),
        (["train", "--format", "xml"], "xml"),
        (["train", "no.toml"], "settings file = 'no.toml': cannot be read: No such file or directory"),
        (["train", "--set", "training.epoch=3"], "unknown setting training.epoch; did you mean training.epochs?"),
        (["train", "--epochs", "many"], "training.epochs = 'many': must be a whole number"),
        (["train", "--batch-size", "-1"], "training.batch_size = -1: must be at least 1"),
        (["train", "--hidden", "3,x"], "model.hidden = '3,x': must be whole numbers"),
        (["train", "--lr", "0"], "optimizer.lr = 0: must be greater than 0"),
        (["train", "--split", "rows"], "parallel.model_split = 'rows': must be 'columns' or 'alternating'"),
        (["train", "--optimizer", "3"], "optimizer.name = '3': must be 'sgd', 'adam', 'adamw' or 'rmsprop'"),
        (["data", "info", "digit"], "data.name = 'digit': no such data set; did you mean digits?"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(run: Run, arguments: list[str], message: str) -> None:
    assert message in error_line(run(*arguments))


def test_wrong_input_leaves_no_run_folder(run: Run) -> None:
    run("train", "--epochs", "0", "--out", "here")
    assert list(Path.cwd().iterdir()) == []


def test_other_exceptions_propagate(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("hybridnn.datasets.catalogue", broken)
    hook = sys.excepthook
    with pytest.raises(ZeroDivisionError, match="a defect"):
        main(["data", "list"])
    assert sys.excepthook is hook


def test_interrupt_is_exit_code_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hybridnn.datasets.catalogue", interrupted)
    assert run("data", "list")[0] == 130


def test_data_list_names_every_data_set(run: Run) -> None:
    code, text, _ = run("data", "list")
    assert code == 0
    assert all(re.search(rf"^ *{name} ", text, re.MULTILINE) for name in catalogue())
    entries = json.loads(run("data", "list", "--format", "json")[1])
    assert [entry["name"] for entry in entries] == list(catalogue())


def test_data_info_shows_shape_licence_and_source(run: Run) -> None:
    info = catalogue()["digits"]
    text = run("data", "info", "digits")[1]
    assert "1,797" in text
    assert info.licence in text
    entry = json.loads(run("data", "info", "digits", "--format", "json")[1])
    assert (entry["train_samples"], entry["licence"], entry["citation"]) == (1797, info.licence, info.citation)


def test_data_fetch_prints_the_paths(run: Run) -> None:
    code, text, _ = run("data", "fetch", "digits")
    assert code == 0
    assert Path(text.strip()).name == "digits.npz"
    assert Path(text.strip()).is_file()
    assert json.loads(run("data", "fetch", "digits", "--format", "json")[1])["paths"] == [text.strip()]


def test_wrong_input_is_reported_once_on_any_number_of_ranks(
    run: Run, run_mpi: Callable[..., JobResult], tmp_path: Path
) -> None:
    expected = "Error: training.epochs = 0: must be at least 1"
    assert error_line(run("train", "--epochs", "0")).startswith(expected)
    result = run_mpi(3, [*COMMAND, "train", "--epochs", "0"], cwd=tmp_path)
    assert not result.timed_out
    assert result.returncode == 2
    assert result.stdout.count("Error:") + result.stderr.count("Error:") == 1
    assert expected in result.stderr
    assert os.listdir(tmp_path) == []


def test_only_rank_0_prints(run_mpi: Callable[..., JobResult], run_as_ranks: Run) -> None:
    result = run_mpi(3, [*COMMAND, "data", "fetch", "digits"])
    assert result.returncode == 0
    assert result.stdout.count("digits.npz") == 1
    assert run_as_ranks("--version") == (0, f"hybridnn {__version__}\n", "")


@pytest.mark.parametrize("wait", ["MPI.COMM_WORLD.Recv(bytearray(1), source=1, tag=0)", "hybridnn.ProcessGrid()"])
def test_error_that_only_one_rank_has_ends_the_job(
    run_mpi: Callable[..., JobResult], tmp_path: Path, wait: str
) -> None:
    program = (
        "from mpi4py import MPI\nimport hybridnn\nfrom hybridnn.cli.ranks import leave\n"
        f"if MPI.COMM_WORLD.rank == 1:\n    leave('only here', 2)\n{wait}"
    )
    progress = tmp_path / "progress"
    progress.touch()
    result = run_mpi(3, program, timeout=60, env={PROGRESS_FILE: str(progress)})
    assert not result.timed_out
    assert result.returncode == 2
    assert progress.read_text() == "failed 2"
    assert result.stderr.count(f"Error on rank 1 on {socket.gethostname()}: only here") == 1


def test_an_error_of_a_job_whose_command_needs_one_rank_is_one_line(run_mpi: Callable[..., JobResult]) -> None:
    result = run_mpi(3, [*COMMAND, "data", "info", "digit"], timeout=60)
    assert not result.timed_out
    assert result.returncode == 2
    assert sum(line.startswith("Error") for line in result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "info", "digit"],
        ["partition", "--profile", "absent.json", "--stages", "2"],
        ["schedule", "gpipe", "--out", "/proc/nothing-can-be-written.svg"],
        ["trace", "absent"],
    ],
)
def test_an_error_of_a_command_that_needs_one_rank_does_not_wait_for_others(
    run_as_ranks: Run, arguments: list[str]
) -> None:
    error_line(run_as_ranks(*arguments))
