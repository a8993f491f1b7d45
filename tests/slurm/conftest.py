"""Fixtures of the tests on a real Slurm, which is started on this machine: ``make test-slurm``, ``pytest -m slurm``."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpi_runner.slowness import deadline
from selection import mark_opt_in
from slurm.cluster import SCRIPT, Cluster

HERE = Path(__file__).parent
CANNOT = 77
SECONDS_TO_INSTALL = 300


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slurm: needs the real Slurm that `make test-slurm` starts")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_opt_in(config, items, HERE, "slurm", "starts a real Slurm: make test-slurm")


@pytest.fixture(scope="session")
def configuration() -> Iterator[str]:
    """Return the configuration file of a running Slurm; it is stopped afterwards unless it ran before."""
    ran = _slurm("status").returncode == 0
    started = _slurm("start")
    if started.returncode == CANNOT:
        pytest.skip(started.stderr.strip())
    assert started.returncode == 0, started.stderr
    yield started.stdout.strip().partition("SLURM_CONF=")[2]
    if not ran:
        _slurm("stop")


@pytest.fixture(scope="session")
def _cluster(configuration: str) -> Cluster:
    return Cluster(configuration)


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    """Return the Slurm, with an empty queue before and after the test."""
    with _cluster.emptied():
        yield _cluster


@pytest.fixture(scope="session")
def launcher(_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the launcher that works on this machine."""
    script = tmp_path_factory.mktemp("launcher") / "launcher.sbatch"
    command = f"{shlex.quote(sys.executable)} -m hybridnn.batch_jobs launcher"
    script.write_text(f"#!/bin/bash\n#SBATCH --job-name=launcher\n{command}\n")
    return _cluster.submit(script).wait(60).splitlines()[-1]


def _slurm(action: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, action], capture_output=True, text=True, timeout=deadline(SECONDS_TO_INSTALL))
