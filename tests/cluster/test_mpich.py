"""Trainings and runs on several nodes under MPICH, which mpi4py loads in place of Open MPI."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.nodes import Nodes
from cluster.test_training import assert_ok, trained_cases
from reference.command_line import assert_same_weights, records_of

TRAIN = ["train", "--data", "digits", "--hidden", "20,18,16", "--set", "training.dtype=float64", "--batch", "2"]


@dataclass(frozen=True)
class Mpich:
    """MPICH in a folder of its own."""

    folder: Path

    @property
    def mpirun(self) -> str:
        """Path of its launcher."""
        return str(self.folder / "bin" / "mpirun")

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables with which mpi4py loads this library, and waiting ranks yield their core."""
        return {"MPI4PY_LIBMPI": str(self.folder / "lib" / "libmpi.so.12"), "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}


@pytest.fixture(scope="session")
def mpich(pytestconfig: pytest.Config) -> Mpich:
    """Return MPICH from the package index, installed beside this environment and kept."""
    found = Mpich(pytestconfig.cache.mkdir("mpich"))
    with open(found.folder.parent / "mpich.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may run tests
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--ignore-installed"]
        install = [sys.executable, "-m", "pip", "install", *options, "--prefix", str(found.folder), "mpich"]
        if not Path(found.environment["MPI4PY_LIBMPI"]).exists():
            result = subprocess.run(install, capture_output=True, text=True)
            if result.returncode != 0:
                pytest.skip(f"MPICH cannot be installed: {result.stderr.strip().splitlines()[-1]}")
    return found


def test_trainings_between_nodes_equal_those_of_one_process(mpich: Mpich, four_nodes: Nodes, tmp_path: Path) -> None:
    """Every axis, a pipeline of each kind, shared replicas, rounded gradients and checkpoints."""
    program = [sys.executable, "-m", "cluster.training_job", "2,2", "--few"]
    command = [mpich.mpirun, "-ppn", "2", "-n", "4", *program]
    report = trained_cases(four_nodes, command, tmp_path, mpich.environment)
    assert set(report) == {"few", "library", "end"}
    assert next(iter(report["library"])).startswith("MPICH")
    assert_ok(report["few"], least=50)


def test_a_run_goes_on_with_fewer_nodes(mpich: Mpich, four_nodes: Nodes, tmp_path: Path) -> None:
    def trained(ranks: int, per_node: int, *arguments: str) -> str:
        command = [mpich.mpirun, "-ppn", str(per_node), "-n", str(ranks), sys.executable, "-m", "hybridnn", *arguments]
        result = four_nodes.run(command, env=mpich.environment, folder=tmp_path)
        assert result.returncode == 0, result.stderr
        return result.stdout

    trained(1, 1, *TRAIN[:-2], "--epochs", "2", "--out", "whole")
    assert "4 on 4 nodes" in trained(4, 1, *TRAIN, "--pipeline", "2", "--epochs", "1", "--out", "run")
    assert "4 on 2 nodes" in trained(4, 2, "train", "--resume", "run", "--model", "2", "--epochs", "2")
    assert_same_weights(tmp_path / "run", tmp_path / "whole", 1e-10)
    launchers = {header["hosts"]["launcher"] for header in records_of(tmp_path / "run", "header")}
    assert len(launchers) == 1
    assert "MPICH" in launchers.pop()
