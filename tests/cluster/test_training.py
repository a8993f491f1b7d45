"""Trainings on ranks of several nodes equal those of one process, on every axis and with every method."""

import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cluster.nodes import Nodes
from mpi_runner.launch import find_mpirun

LIMIT = 600.0
"""Seconds of a job of all cases; its six ranks share the cores with all that other programs do."""

pytestmark = pytest.mark.timeout(1.5 * LIMIT)

TESTS = str(Path(__file__).parents[1])

SHAPES: Mapping[str, tuple[int, int, Sequence[str]]] = {
    "2,2": (4, 200, ()),
    "1,1,1,1": (4, 80, ("--map-by", "node")),
    "2,2,2": (6, 70, ()),
    "2,1": (3, 50, ()),
}
"""Ranks, number of trainings, and options of mpirun, by the number of ranks on each node."""

GROUPS = ("trainings", "shared replicas", "checkpoints")
"""Groups of cases of `training_job`."""

Report = Mapping[str, Mapping[str, str]]
"""``ok`` or what is wrong, by group and name of the case."""


def trained_cases(nodes: Nodes, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> Report:
    """Run a command that starts `training_job`, and return what it reports."""
    path = os.pathsep.join(filter(None, (TESTS, os.environ.get("PYTHONPATH"))))
    result = nodes.run(command, timeout=LIMIT, env={"PYTHONPATH": path, **(env or {})}, folder=folder)
    report: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for line in result.stdout.splitlines():
        group, name, outcome = line.split("\t")
        report[group][name] = outcome
    assert "end" in report, f"exit code {result.returncode}, timed out: {result.timed_out}\n{result.stderr}"
    assert result.returncode == 0
    return report


def assert_ok(report: Report, group: str) -> None:
    assert set(report) == {*GROUPS, "library", "end"}
    wrong = [f"{name}: {outcome}" for name, outcome in report[group].items() if outcome != "ok"]
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    """Return the number of ranks on each node."""
    return str(request.param)


@pytest.fixture(scope="module")
def report(shape: str, four_nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return what one job reports of all cases on so many ranks of every node."""
    ranks, number, options = SHAPES[shape]
    program = [sys.executable, "-m", "cluster.training_job", shape, str(number)]
    command = [find_mpirun(), *options, "-n", str(ranks), *program]
    return trained_cases(four_nodes, command, tmp_path_factory.mktemp("job"))


@pytest.mark.parametrize("group", GROUPS)
def test_trainings_between_nodes_equal_those_of_one_process(report: Report, group: str) -> None:
    assert_ok(report, group)
