"""Checks of a job: binding, cores, threads, nodes and all-reduces, on constructed facts and on ranks of one process."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.comm.recorder import Recorder
from hybridnn.doctor import job_checks
from hybridnn.doctor.job_checks import (
    SIZES,
    JobNode,
    RankFacts,
    check_all_reduce,
    check_common_folder,
    check_cores,
    check_job,
    check_threads,
    gather_facts,
    judge_all_reduce,
)
from hybridnn.doctor.node_checks import NodeFacts
from hybridnn.in_process import run_ranks
from hybridnn.parallel.grid import ProcessGrid
from reference.findings import expect

NODE = NodeFacts({"numpy": "2.1.0"}, "Xeon", 4, 256 << 30)
ONE = RankFacts(0, "n1", (0, 1, 2, 3), 4, None, 1, "", NODE)


def job(ranks: int, **changes: Any) -> list[JobNode]:
    return [JobNode({rank: replace(ONE, **changes) for rank in range(ranks)})]


def bound(*cores: tuple[int, ...], **changes: Any) -> list[JobNode]:
    return [JobNode({rank: replace(ONE, cores=own, **changes) for rank, own in enumerate(cores)})]


def test_facts_of_this_process() -> None:
    facts = gather_facts(3, {"OMP_NUM_THREADS": "2"})
    assert (facts.node, facts.threads_set_by) == (3, "OMP_NUM_THREADS=2")
    assert facts.threads >= 1
    assert asdict(facts)["found"]["software"]["hybridnn"]


def test_cores_of_a_node() -> None:
    assert [node.cores for node in (*job(2), *bound((0,), (1,)), *bound((0,), (0,)))] == [4, 2, 1]
    assert job(2, cpu_limit=2.5)[0].cores == 2
    assert job(1, cpu_limit=0.5)[0].cores == 1


@pytest.mark.parametrize(
    ("nodes", "verdict", "text"),
    [
        (job(4), "ok", "4 ranks on n1; binding: none"),
        (bound((0,), (1,), (2,)), "ok", "binding: 1 core per rank: 0; 1; 2"),
        (bound((0,)) + bound((0,)), "ok", "2 ranks on 2 nodes"),  # the same number on another node
        (bound((0,), (1,), (0,)), "warning", "ranks 0, 2 on n1 are all bound to core 0, of 4 cores"),
        (bound((0, 1), (0, 1), (0, 1)), "warning", "ranks 0-2 on n1 are all bound to cores 0, 1"),
        (job(5), "warning", "5 ranks share 4 cores on n1"),  # too many ranks, but not by binding
        (job(2, cpu_limit=1.0), "warning", "2 ranks share 1 core"),
    ],
)
def test_cores_and_binding(nodes: list[JobNode], verdict: str, text: str) -> None:
    expect(check_cores(nodes), verdict, text)


@pytest.mark.parametrize(
    ("nodes", "verdict", "text"),
    [
        (job(4, threads=4), "ok", ""),  # nobody asked for four each: training takes one
        (job(1, threads=4), "ok", ""),
        (job(1, threads=8), "warning", ""),
        (job(1, threads=4, cpu_limit=2.0), "warning", ""),
        (job(4, threads=1, threads_set_by="OMP_NUM_THREADS=1"), "ok", ""),
        (job(2, threads=4, threads_set_by="OMP_NUM_THREADS=4"), "warning", "OPENBLAS_NUM_THREADS=2"),
        (job(2, threads=2, threads_set_by="OMP_NUM_THREADS=2"), "ok", ""),
        (job(9, threads=1, threads_set_by="OMP_NUM_THREADS=1"), "ok", ""),  # too many ranks, not too many threads
        (bound((0, 1), (2, 3), threads=2, threads_set_by="OMP_NUM_THREADS=2"), "ok", ""),
        (bound((0,), (1, 2, 3), threads=2, threads_set_by="OMP_NUM_THREADS=2"), "warning", "rank 0 may run on 1 core"),
    ],
)
def test_threads_against_cores(nodes: list[JobNode], verdict: str, text: str) -> None:
    found = check_threads(nodes)
    assert found.verdict == verdict
    assert text in f"{found.what} {found.advice}"


@pytest.mark.parametrize(
    ("latency", "bandwidth", "verdict"), [(1e-6, 1e10, "ok"), (1e-2, 1e10, "warning"), (1e-6, 1e7, "warning")]
)
def test_times_of_an_all_reduce(latency: float, bandwidth: float, verdict: str) -> None:
    seconds = [max(latency, nbytes / bandwidth) for nbytes in SIZES]
    expect(judge_all_reduce(seconds, SIZES, 2), verdict, "over 2 ranks", "fast network" if verdict == "warning" else "")
    # Two ranks send and receive the array once: 4 MiB in 2 ms is 2.1 GB/s.
    expect(
        judge_all_reduce([2e-6, 2e-5, 2e-3], SIZES, 2),
        "ok",
        "8 B 2 us, 64 KiB 20 us, 4 MiB 2 ms over 2 ranks, 2.1 GB/s",
    )


class WrongSums(Group):
    """A group whose sums lack all ranks but the first."""

    def allreduce(self, array: NDArray[Any], operation: str = "sum") -> None:
        array *= self.rank == 0
        super().allreduce(array, operation)


def test_sums_of_all_ranks_are_checked() -> None:
    for kind, verdict, text in ((Group, "", "the sums are right"), (WrongSums, "failure", "8 bytes gave a wrong sum")):
        found = run_ranks(3, lambda comm, kind=kind: check_all_reduce(kind(comm, "world", Recorder()), (8, 1 << 16)))
        for finding in found.results:
            assert text in finding.what
            assert finding.verdict == verdict or not verdict


def test_a_folder_that_a_node_does_not_see_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for missing, verdict, what in (
        ([], "ok", "all nodes see"),
        (["n2"], "failure", "a file of rank 0 is not there on n2"),
    ):
        monkeypatch.setattr(job_checks, "nodes_without", lambda *arguments, missing=missing: missing)
        for found in run_ranks(2, lambda comm: check_common_folder(ProcessGrid(comm), tmp_path)).results:
            expect(found, verdict, what)


def test_nodes_of_ranks_are_compared() -> None:
    old = replace(NODE, software={"numpy": "1.26.4"})

    def alike(*ranks: tuple[int, NodeFacts]) -> list[str]:
        """What the comparison of nodes finds for ranks with the lowest rank of their node."""
        facts = [replace(ONE, node=node, host=f"n{node}", found=own) for node, own in ranks]
        return [finding.what for finding in check_job(facts) if finding.name.startswith("same ")]

    assert alike((0, NODE), (0, NODE)) == []
    hardware = "2 nodes with Xeon, 4 cores, 256 GiB of memory"
    assert alike((0, NODE), (0, NODE), (2, NODE), (2, NODE)) == ["2 nodes with the same versions of numpy", hardware]
    assert alike((0, NODE), (1, old), (2, NODE))[0] == "n1: numpy 1.26.4, the other 2 have 2.1.0"
