"""The command line: help, version, exit codes, loaded modules, `hybridnn data`, and commands on the ranks of a job."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from hybridnn import schedule
from hybridnn._version import __version__
from hybridnn.cli.main import main, parser
from hybridnn.cost.machine_file import read_machine
from hybridnn.data import catalogue, load_file
from hybridnn.diagnostics.failsafe import PROGRESS_FILE
from hybridnn.drawing.timelines import read_schedule
from hybridnn.errors import DataError
from mpi_runner.launch import JobResult, job_environment
from mpi_runner.slowness import deadline
from reference.command_line import Run, error_line, output_of
from reference.traces import trace_document, two_stages

LOADED = """
import sys
from hybridnn.cli.main import main
commands = ["--help"], ["--version"], [], ["data", "--help"], ["trace", "--help"], ["schedule"], ["schedule", "--help"]
for command in *commands, ["schedule", "gpipe"], ["trace", "trace.json"], ["train", "--help"]:
    try:
        main(command)
    except SystemExit as end:
        assert end.code == 0, end.code
    print(f"LOADED {' '.join(command)}:", *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    content = json.dumps(trace_document([(1, 1), (1, 1)], two_stages()))
    (tmp_path / "trace.json").write_text(content)
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = re.findall(r"^LOADED (.*): (.*)$", done.stdout, re.MULTILINE)
    loaded = {command: set(names.split()) for command, names in found}
    assert all("typer" in names for names in loaded.values())
    assert "mpi4py" not in loaded.pop("trace trace.json")
    for command, names in loaded.items():
        allowed = {"numpy"} if command == "train --help" else set()  # of the options of a training
        assert names & {"numpy", "scipy", "matplotlib", "mpi4py", "pooch"} <= allowed, command
    # For the help of a command, some versions of typer load pydantic on their own account.
    assert "pydantic" not in loaded["--help"] | loaded["--version"]


def test_without_its_distribution_a_command_says_what_to_install(run_hybridnn, monkeypatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    parser.cache_clear()
    line = error_line(run_hybridnn("course", "check"))
    parser.cache_clear()
    assert line == "Error: hybridnn course is not installed; pip install hybridnn-course adds it"


def test_version(run_as_ranks: Run) -> None:
    assert run_as_ranks("--version") == (0, f"hybridnn {__version__}\n", "")


def test_other_exceptions_propagate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridnn.data.catalogue", Mock(side_effect=ZeroDivisionError("a defect")))
    hook = sys.excepthook
    with pytest.raises(ZeroDivisionError, match="a defect"):
        main(["data", "list"])
    assert sys.excepthook is hook


INTERRUPTED_IMPORT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
from hybridnn.__main__ import main
main()
"""


def test_an_interrupt_while_modules_are_imported_is_one_line() -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT]
    result = subprocess.run(command, capture_output=True, text=True, timeout=deadline(60))
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "Error: interrupted\n")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 2, "not enough memory: Python could not allocate more"),
        (MemoryError("Unable to allocate 3.64 TiB"), 2, "not enough memory: Unable to allocate 3.64 TiB"),
    ],
)
def test_an_interrupt_and_a_lack_of_memory_are_one_line(run_hybridnn, monkeypatch, error, code, line) -> None:
    monkeypatch.setattr("hybridnn.data.catalogue", Mock(side_effect=error))
    assert run_hybridnn("data", "list") == (code, "", f"Error: {line}\n")


def test_the_command_that_left_names_the_one_to_use(run_hybridnn: Run) -> None:
    assert "use hybridnn report RUN RUN" in error_line(run_hybridnn("compare", "a", "b"))


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "~/none"],
        ["report", "~/none", "~/other"],
        ["train", "~/none.toml"],
        ["train", "--out=~/file/none"],
        ["train", "--resume=~/none"],
        ["train", "--file", "~/none.csv", "--targets", "y"],
        ["train", "--set", "data.file=~/none.csv", "--set", "data.targets=y"],
        ["train", "home.toml"],
        ["data", "check", "~/none.csv"],
        ["plan", "--ranks", "2", "--machine=~/none.toml"],
        ["study", "run", "~/none.toml"],
        ["study", "run", "study.toml", "--commands"],
        ["run", "-n", "2", "~/none.py"],
    ],
)
def test_a_path_may_begin_with_the_home_folder(run_hybridnn, monkeypatch, tmp_path, command) -> None:
    (tmp_path / "home").mkdir()
    for name in ("file", "base.toml"):
        (tmp_path / "home" / name).touch()
    (tmp_path / "home.toml").write_text('[data]\nfile = "~/none.csv"\ntargets = "y"')
    study = 'name = "it"\nmachine = "~/none.toml"\nbase = "~/base.toml"\naxes = {ranks = [1]}'
    (tmp_path / "study.toml").write_text(study)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "argv", ["hybridnn", *command])
    assert str(tmp_path / "home") in error_line(run_hybridnn(*command))


def test_a_path_in_python_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    made = schedule("gpipe", stages=2)
    made.draw("~/picture.svg")
    made.animate(Path("~/page.html"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "picture.svg"]
    for read in (read_schedule, read_machine, partial(load_file, targets="y")):
        with pytest.raises(DataError, match=re.escape(str(tmp_path / "none"))):
            read("~/none.toml" if read is read_machine else "~/none.csv")


def test_data_lists_shows_and_fetches_data_sets(run_hybridnn: Run) -> None:
    text = output_of(run_hybridnn("data", "list"))
    assert all(re.search(rf"^ *{name} ", text, re.MULTILINE) for name in catalogue())
    entries = json.loads(run_hybridnn("data", "list", "--format", "json")[1])
    assert [entry["name"] for entry in entries] == list(catalogue())
    info = catalogue()["digits"]
    text = run_hybridnn("data", "info", "digits")[1]
    assert "1,797" in text
    assert info.licence in text
    entry = json.loads(run_hybridnn("data", "info", "digits", "--format", "json")[1])
    assert (entry["train_samples"], entry["licence"], entry["citation"]) == (1797, info.licence, info.citation)
    code, text, _ = run_hybridnn("data", "fetch", "digits")
    assert (code, Path(text.strip()).name) == (0, "digits.npz")
    assert Path(text.strip()).is_file()


COMMANDS: dict[tuple[str, ...], tuple[int, str]] = {
    ("train", "--epochs", "0"): (2, "Error: training.epochs = 0: must be a whole number, at least 1"),
    ("train", "--file", "labels.npz"): (2, "Error: labels.npz: y_train: label -1 in row 0"),
    ("train", "--out", "/proc/no-folder"): (2, "Error: output.folder = '/proc/no-folder'"),
    ("train", "-n", "2"): (2, "Error: -n 2 starts the ranks itself: call it without mpirun or srun"),
    ("data", "info", "digit"): (2, "Error: data.name = 'digit': no such data set"),
    ("study", "run", "laugier-figure-5"): (2, "Error: study run starts the launcher itself"),
    ("data", "fetch", "digits"): (0, "digits.npz"),
}
"""Exit code and only line of commands. Rank 0 alone reads data, makes folders, and runs `data` and `study`."""

ON_RANKS = f"""
import sys
import hybridnn
from mpi4py import MPI
from hybridnn.cli.main import main
hybridnn.ProcessGrid()
MPI.Win.Allocate(8, comm=MPI.COMM_WORLD).Free()
for number, (command, (code, _)) in enumerate({COMMANDS!r}.items()):
    sys.argv = ["hybridnn", *command]
    try:
        main(command)
    except SystemExit as end:
        assert end.code == code or (end.code, command[0]) in ((0, "data"), (0, "study")) and MPI.COMM_WORLD.rank
    MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.timeout(120)
def test_commands_of_a_job_print_once_and_its_mpirun_no_warning(run_mpi, tmp_path) -> None:
    """The settings for root and for more ranks than cores have to be given to mpirun itself, and no others."""
    np.savez(tmp_path / "labels.npz", x_train=np.ones((30, 4)), y_train=np.arange(30) % 3 - 1)
    unset = {name: None for name in os.environ if name.startswith(("OMPI_", "PRTE_"))}
    root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    settings = unset | root | {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    result = run_mpi(3, ON_RANKS, cwd=tmp_path, env=settings)
    assert (result.timed_out, result.returncode) == (False, 0), result.stderr
    found = [line for line in (result.stderr + result.stdout).splitlines() if line.strip()]
    for line, (_, expected) in zip(found, COMMANDS.values(), strict=True):
        assert expected in line
    assert os.listdir(tmp_path) == ["labels.npz"]


ALONE = """
from mpi4py import MPI
from hybridnn.cli import ranks
ranks.DEADLINE = 1.0
if MPI.COMM_WORLD.rank in {ranks}:
    ranks.leave(f"found on rank {{MPI.COMM_WORLD.rank}}", 2)
{wait}
"""


@pytest.mark.parametrize(
    ("ranks", "wait"),
    [
        ([0], "MPI.COMM_WORLD.Barrier()"),
        ([1], "MPI.COMM_WORLD.Recv(bytearray(1), source=1, tag=0)"),
        ([1, 2], "import hybridnn; hybridnn.ProcessGrid()"),
    ],
)
def test_error_that_not_all_ranks_have_ends_the_job(run_mpi, tmp_path, ranks, wait) -> None:
    progress = tmp_path / "progress"
    progress.touch()
    result = run_mpi(3, ALONE.format(ranks=ranks, wait=wait), env={PROGRESS_FILE: str(progress)})
    assert (result.timed_out, result.returncode, progress.read_text()) == (False, 2, "failed 2")
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error")]
    place = f" on rank {ranks[0]} on {socket.gethostname()}" * (ranks != [0])
    assert errors == [f"Error{place}: found on rank {ranks[0]}"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "info", "digit"],
        ["schedule", "gpipe", "--out", "/proc/nothing-can-be-written.svg"],
        ["schedule", "gpip"],
        ["trace", "absent"],
        ["formulas", "laugier", "--network", "x"],
    ],
)
def test_an_error_of_a_command_that_needs_one_rank_does_not_wait_for_others(run_as_ranks, arguments) -> None:
    error_line(run_as_ranks(*arguments))


WRITE = """
import os, sys
def write():
    name = "loaded-" + os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0"))
    with open(name, "w") as file:
        file.write("\\n".join(sys.modules))
"""
TRAIN_AND_WRITE = f"""
{WRITE}
from hybridnn.cli.main import main
try:
    main(["train", "--epochs", "1", "--hidden", "8", "--out", "run", *sys.argv[1:]])
finally:
    write()
"""

NEVER = {"matplotlib", "pandas", "scipy", "sklearn", "PIL", "xml.sax", "urllib.request", "http.client", "numpy.f2py"}
"""What no rank needs to train on a data set that comes with the package."""

TOOLS = {"hybridnn.study", "hybridnn_course", "hybridnn_course_staff", "hybridnn_papers"}
TOOLS |= {f"hybridnn.cost.{name}" for name in ("machine", "prediction", "plan")}
TOOLS |= {f"hybridnn.gpu.{name}" for name in ("engine", "cupy_kernels", "nccl")}
OTHER_COMMANDS = {"hybridnn.cli.study", "hybridnn.cli.schedule", "hybridnn.cli.trained", "hybridnn.doctor"}
PRINTED = {"rich", "tomli_w", "hybridnn.drawing.learning_curve"}
"""What rank 0 alone prints and writes."""


def loaded(rank: int = 0) -> set[str]:
    """Modules that a rank has loaded, with all packages that they are in."""
    names = Path(f"loaded-{rank}").read_text().split()
    return {".".join(name.split(".")[:parts]) for name in names for parts in range(1, name.count(".") + 2)}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_trainer_needs_numpy_only() -> None:
    command = [sys.executable, "-c", f"{WRITE}\nfrom hybridnn import MLP, SGD, ProcessGrid, Trainer\nwrite()"]
    done = subprocess.run(command, env=job_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    commands = {"pydantic", "pydantic_core", "typer", "rich", "hybridnn.cli", "hybridnn.config", "hybridnn.runs"}
    assert loaded() & (NEVER | TOOLS | commands | {"mpi4py.MPI"}) == set()
    assert {"numpy", "hybridnn.training.trainer"} <= loaded()


def test_other_ranks_do_not_load_what_rank_0_prints_with(run_mpi: Callable[..., JobResult], tmp_path: Path) -> None:
    result = run_mpi(2, TRAIN_AND_WRITE, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert loaded(0) >= PRINTED
    for rank in range(2):
        assert loaded(rank) & (NEVER | TOOLS | OTHER_COMMANDS) == set()
    assert loaded(1) & PRINTED == set()
