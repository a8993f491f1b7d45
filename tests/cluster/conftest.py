"""Fixtures of the tests on several nodes, made on this machine: ``make test-cluster``, ``pytest -m cluster``."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.nodes import CANNOT, Nodes, NodesCannotBeMade
from mpi_runner.opt_in import mark_opt_in
from slurm.cluster import SCRIPT, Cluster

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cluster: needs the nodes that `make test-cluster` makes, as root")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_opt_in(config, items, HERE, "cluster", "makes several nodes: make test-cluster")


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
