"""Trainings and runs on several nodes under MPICH, which mpi4py loads in place of Open MPI."""

import sys
from pathlib import Path

import pytest

from cluster.conftest import Mpich
from cluster.nodes import Nodes
from cluster.test_training import GROUPS, LIMIT, assert_ok, trained_cases
from reference.command_line import assert_same_weights, records_of

TRAIN = ["train", "--data", "digits", "--hidden", "20,18,16", "--set", "training.dtype=float64", "--batch", "2"]


@pytest.mark.timeout(1.5 * LIMIT)
@pytest.mark.parametrize("shape", ["2,2", "1,1,1,1"])
def test_trainings_between_nodes_equal_those_of_one_process(shape, mpich, four_nodes, tmp_path) -> None:
    program = [sys.executable, "-m", "cluster.training_job", shape, "40"]
    report = trained_cases(
        four_nodes, [mpich.mpirun, "-ppn", shape[0], "-n", "4", *program], tmp_path, mpich.environment
    )
    assert next(iter(report["library"])).startswith("MPICH")
    for group in GROUPS:
        assert_ok(report, group)


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
