"""Search for a failed node, with stand-ins for srun and sinfo."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hybridnn.hpc_jobs.lost_node import NOTICE_SECONDS, find_lost_node
from hybridnn.utils.processes import ChildResult

JOB = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[1-2]"}


class Slurm:
    """Stand-in for Slurm, whose list of nodes is the next of `lists`, and then the last."""

    def __init__(self, trial: ChildResult, *lists: str) -> None:
        self.trial, self.lists, self.calls, self.now = trial, list(lists), list[list[str]](), 0.0

    def run(self, command: list[str], seconds: float, environment: Mapping[str, str]) -> ChildResult:
        self.calls.append(command)
        if command[0] == "srun":
            return self.trial
        return ChildResult(0, self.lists.pop(0) if len(self.lists) > 1 else self.lists[0], "", False)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def find(self, environment: Mapping[str, str] = JOB) -> str | None:
        return find_lost_node(environment, self.run, self.sleep, lambda: self.now)


WORKS = ChildResult(0, "", "", False)
FAILS = ChildResult(1, "", "srun: error: node2: unable to connect", False)
HANGS = ChildResult(-9, "", "", True)
FINE = "node1 allocated\nnode2 allocated\n"


def test_without_a_failed_node_slurm_is_not_asked() -> None:
    slurm = Slurm(WORKS, "node2 down*\n")
    assert slurm.find() is None
    assert [call[:3] for call in slurm.calls] == [["srun", "--mpi=none", "--nodes=2"]]


@pytest.mark.parametrize("environment", [{}, {**JOB, "SLURM_JOB_NUM_NODES": "1"}])
def test_one_node_is_not_searched(environment: Mapping[str, str]) -> None:
    slurm = Slurm(FAILS, "node1 down*\n")
    assert slurm.find(environment) is None
    assert slurm.calls == []


@pytest.mark.parametrize("trial", [FAILS, HANGS])
@pytest.mark.parametrize("state", ["allocated*", "completing*", "down", "down*", "failing", "error"])
def test_node_is_lost_when_slurm_says_so(trial: ChildResult, state: str) -> None:
    slurm = Slurm(trial, FINE, "", FINE, f"node1 allocated\nnode2 {state}\n")
    assert slurm.find() == f"node2 ({state})"
    assert slurm.calls[1] == ["sinfo", "--noheader", "--Node", "--nodes=node[1-2]", "--format=%N %T"]


def test_trial_that_fails_for_another_reason_loses_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    slurm = Slurm(FAILS, FINE)
    assert slurm.find() is None
    assert slurm.now >= NOTICE_SECONDS
    assert "all 2 nodes ended with exit code 1: srun: error: node2: unable to connect" in capsys.readouterr().err


def test_without_slurm_no_node_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    def missing(command: list[str], seconds: float, environment: Mapping[str, str]) -> ChildResult:
        raise FileNotFoundError(2, "No such file or directory", command[0])

    assert find_lost_node(JOB, missing) is None
    assert capsys.readouterr().err == "srun: No such file or directory\n"
