"""Trainings on ranks of several nodes equal those of one process, on every axis and with every method."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cluster.nodes import Nodes
from cluster.selection import half, settings_of
from hybridnn.pipeline.schedules.methods import METHODS
from mpi_runner.launch import find_mpirun
from reference.sweeps import DISTRIBUTIONS, SPLITS

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

BOTH = ("True", "False")
VALUES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "grids": {"overlap": BOTH, "residual": BOTH, "model_split": SPLITS, "distribution": DISTRIBUTIONS},
    "messages": {"overlap": BOTH, "model_split": SPLITS, "bucket_bytes": ("1", "700"), "few_outputs": BOTH},
    "pipelines": {"overlap": BOTH, "model_split": SPLITS},
}
"""Values of options that some case of every grid has, by group."""

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


def test_half_of_the_cases_have_every_value_on_every_grid() -> None:
    """Values that only one case of a grid has, in the same order on all grids, are kept in every draw."""
    settings = ["overlap=False", "residual=True", "model_split='alternating'", "method=1f1b", *["seed=4"] * 16]
    names = [f"{grid} | seed={number}, Case({it})" for grid in "abc" for number, it in enumerate(settings)]
    for seed in range(20):
        chosen = half(dict.fromkeys(names, 0), f"{seed}")
        assert len(names) // 2 <= len(chosen) < 2 * len(names) // 3
        assert list(chosen) == [name for name in names if name in chosen]
        assert {name for name in names if "seed=4" not in name and "method" not in name} <= chosen.keys()
        assert any("method=1f1b" in name for name in chosen)


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    """Return the number of ranks on each node."""
    return str(request.param)


@pytest.fixture(scope="module")
def report(shape: str, four_nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return what one job reports of all cases on so many ranks of every node."""
    ranks, options = SHAPES[shape]
    program = [find_mpirun(), *options, "-n", str(ranks), sys.executable, "-m", "cluster.training_job", shape]
    return trained_cases(four_nodes, program, tmp_path_factory.mktemp("job"))


@pytest.mark.parametrize("group", GROUPS)
def test_trainings_between_nodes_equal_those_of_one_process(report: Report, shape: str, group: str) -> None:
    assert set(report) == {*GROUPS, "library", "end"}
    assert_ok(report[group], least=2)
    settings: defaultdict[str, list[Mapping[str, str]]] = defaultdict(list)
    for name in report[group]:
        settings[name.partition(" | ")[0]].append(settings_of(name))
    for option, values in VALUES.get(group, {}).items():
        for grid, of_grid in settings.items():
            assert {it[option] for it in of_grid} == set(values), (grid, option)
    if group == "pipelines":
        assert {it["method"] for of_grid in settings.values() for it in of_grid} == set(METHODS)
        ranks = sum(map(int, shape.split(",")))
        assert f"{{'pipeline': {ranks}, 'batch': 1, 'model': 1}}" in settings
