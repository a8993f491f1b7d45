"""What the start of a training loads, by rank: every rank of a large job reads its modules from one file system."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mpi_runner.launch import JobResult, job_environment

WRITE = """
import os, sys
def write():
    name = "loaded-" + os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0"))
    with open(name, "w") as file:
        file.write("\\n".join(sys.modules))
"""
TRAIN = f"""
{WRITE}
from hybridnn.cli.main import main
try:
    main(["train", "--epochs", "1", "--hidden", "8", "--out", "run", *sys.argv[1:]])
finally:
    write()
"""

NEVER = {"matplotlib", "pandas", "scipy", "sklearn", "PIL", "xml.sax", "urllib.request", "http.client", "numpy.f2py"}
"""What no rank needs to train on a data set that comes with the package."""

TOOLS = {
    "hybridnn.cost.machine",
    "hybridnn.cost.prediction",
    "hybridnn.cost.plan",
    "hybridnn.gpu.engine",
    "hybridnn.gpu.cupy_kernels",
    "hybridnn.gpu.nccl",
    "hybridnn.study",
    "hybridnn_course",
    "hybridnn_course_staff",
    "hybridnn_papers",
}
OTHER_COMMANDS = {"hybridnn.cli.study", "hybridnn.cli.schedule", "hybridnn.cli.trained", "hybridnn.doctor"}
PRINTED = {"rich", "tomli_w", "hybridnn.drawing.learning_curve"}
"""What rank 0 alone prints and writes."""


def loaded(rank: int = 0) -> set[str]:
    """Modules that a rank has loaded, with all packages that they are in."""
    names = Path(f"loaded-{rank}").read_text().split()
    return {".".join(name.split(".")[:parts]) for name in names for parts in range(1, name.count(".") + 2)}


def run_alone(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], env=job_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_trainer_needs_numpy_only() -> None:
    run_alone(f"{WRITE}\nfrom hybridnn import MLP, SGD, ProcessGrid, Trainer\nwrite()")
    commands = {
        "pydantic",
        "pydantic_core",
        "typer",
        "rich",
        "mpi4py.MPI",
        "hybridnn.cli",
        "hybridnn.config",
        "hybridnn.runs",
    }
    assert loaded() & (NEVER | TOOLS | commands) == set()
    assert {"numpy", "hybridnn.training.trainer"} <= loaded()


def test_other_ranks_do_not_load_what_rank_0_prints_with(run_mpi: Callable[..., JobResult], tmp_path: Path) -> None:
    result = run_mpi(2, TRAIN, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert loaded(0) >= PRINTED
    for rank in range(2):
        assert loaded(rank) & (NEVER | TOOLS | OTHER_COMMANDS) == set()
    assert loaded(1) & PRINTED == set()
