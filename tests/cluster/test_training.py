"""Trainings on ranks of several nodes equal those of one process, on every axis and with every method."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cluster.nodes import Nodes
from hybridnn.pipeline.schedules.methods import METHODS
from mpi_runner.launch import find_mpirun

LIMIT = 600.0
"""Seconds of a job of all cases; its six ranks share the cores with all that other programs do."""

pytestmark = pytest.mark.timeout(1.5 * LIMIT)

TESTS = str(Path(__file__).parents[1])

SHAPES: Mapping[str, tuple[int, Sequence[str]]] = {
    "2,2": (4, ()),
    "1,1,1,1": (4, ("--map-by", "node")),
    "2,2,2": (6, ()),
    "2,1": (3, ()),
}
"""Ranks and options of mpirun, by the number of ranks on each node."""

GROUPS = (
    "grids",
    "messages",
    "pipelines",
    "pipeline options",
    "shared replicas",
    "rounded gradients",
    "checkpoints",
)
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


def assert_ok(cases: Mapping[str, str], least: int) -> None:
    """See that there are at least so many cases, and nothing is wrong."""
    wrong = [f"{name}: {outcome}" for name, outcome in cases.items() if outcome != "ok"]
    assert not wrong, "\n".join(wrong)
    assert len(cases) >= least


@pytest.fixture(scope="module", params=SHAPES)
def report(request: pytest.FixtureRequest, four_nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return what one job reports of all cases on so many ranks of every node."""
    ranks, options = SHAPES[request.param]
    program = [find_mpirun(), *options, "-n", str(ranks), sys.executable, "-m", "cluster.training_job", request.param]
    return trained_cases(four_nodes, program, tmp_path_factory.mktemp("job"))


@pytest.mark.parametrize("group", GROUPS)
def test_trainings_between_nodes_equal_those_of_one_process(report: Report, group: str) -> None:
    assert set(report) == {*GROUPS, "library", "end"}
    assert_ok(report[group], least=2)
    if group == "pipelines":
        assert not [method for method in METHODS if not any(f"}}, {method}," in name for name in report[group])]
