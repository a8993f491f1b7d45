"""Fixtures of the tests on several nodes, made on this machine: ``make test-cluster``, ``pytest -m cluster``."""

import contextlib
import fcntl
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.nodes import CANNOT, Nodes, NodesCannotBeMade
from selection import mark_opt_in
from slurm.cluster import SCRIPT, Cluster

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cluster: needs the nodes that `make test-cluster` makes, as root")
    config.addinivalue_line("markers", "alone: `make test-cluster` runs no other of its tests at the same time")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_opt_in(config, items, HERE, "cluster", "makes several nodes: make test-cluster")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test marked ``alone`` while other processes run none; waiting does not count towards its time limit."""
    if not hasattr(item.config, "workerinput") or item.get_closest_marker("skip"):
        return (yield)
    folder = item.config.cache.mkdir("cluster")
    with open(folder / "next.lock", "wb") as next_turn, open(folder / "machine.lock", "wb") as machine:
        # The test that waits for the machine is the next to have it: tests that begin later wait behind.
        fcntl.flock(next_turn, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(next_turn, fcntl.LOCK_UN)
        return (yield)


@pytest.fixture(scope="session")
def four_nodes() -> Iterator[Nodes]:
    """Return four nodes of two slots each, whose links have no limit; for tests that leave them as they are."""
    with made(Nodes(4)) as nodes:
        yield nodes


@contextlib.contextmanager
def made(nodes: Nodes) -> Iterator[Nodes]:
    """Make the nodes, or skip the test."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(nodes)
        except NodesCannotBeMade as error:
            pytest.skip(str(error))
        yield nodes


@pytest.fixture(scope="session")
def slurm_on_nodes() -> Iterator[Cluster]:
    """Return a Slurm on four nodes of two CPUs each, whose links have no limit."""
    installed = subprocess.run([SCRIPT, "install"], capture_output=True, text=True, check=False)
    if installed.returncode == CANNOT:
        pytest.skip(installed.stderr.strip())
    with made(Nodes(4)) as nodes:
        yield Cluster(nodes=nodes)


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
