"""Checks of a job: nodes, slots, binding, cores, threads and speed of messages, on constructed facts."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from hybridnn.doctor.job_checks import (
    ALL_REDUCE,
    PING_PONG,
    PING_PONG_BETWEEN_NODES,
    SIZES,
    JobFacts,
    RankFacts,
    check_all_reduce,
    check_binding,
    check_cores,
    check_job,
    check_nodes,
    check_ping_pong,
    check_threads,
    gather_facts,
)
from hybridnn.doctor.node_checks import NodeFacts
from reference.findings import expect

NODE = NodeFacts({"numpy": "2.1.0"}, "Xeon", 4, 256 << 30)
ONE = RankFacts(0, "n1", (0, 1, 2, 3), 4, None, 1, "", NODE)
OPEN_MPI, MPICH = "Open MPI v5.0.11", "MPICH Version: 5.0.2"


def job(ranks: int, **changes: Any) -> JobFacts:
    return JobFacts({rank: replace(ONE, **changes) for rank in range(ranks)})


def with_rank(facts: JobFacts, rank: int, **changes: Any) -> JobFacts:
    return replace(facts, ranks={**facts.ranks, rank: replace(ONE, **changes)})


def bound(*cores: tuple[int, ...], **changes: Any) -> JobFacts:
    return JobFacts({rank: replace(ONE, cores=own, **changes) for rank, own in enumerate(cores)})


def test_facts_survive_json() -> None:
    facts = gather_facts(3, {"OMP_NUM_THREADS": "2"}, [{"user_api": "blas", "num_threads": 5}])
    assert RankFacts.from_json(asdict(facts)) == facts
    assert (facts.node, facts.threads, facts.threads_set_by) == (3, 5, "OMP_NUM_THREADS=2")


def test_nodes_and_their_cores() -> None:
    facts = with_rank(job(2), 2, node=2, host="n2", cores=(0,))
    facts = with_rank(facts, 3, node=2, host="n2", cores=(1,))
    assert facts.nodes == {0: [0, 1], 2: [2, 3]}
    assert facts.cores == {0: 4, 2: 2}
    assert job(2, cpu_limit=2.5).cores == {0: 2}
    assert job(1, cpu_limit=0.5).cores == {0: 1}


def test_ranks_per_node_and_slots() -> None:
    expect(check_nodes(job(3)), "ok", "3 ranks on n1")
    expect(check_nodes(with_rank(job(2), 2, node=2, host="n2")), "ok", "3 ranks on 2 nodes, 1 to 2 per node")
    expect(check_nodes(with_rank(job(3), 3, node=3)), "warning")
    expect(check_nodes(replace(job(3), environment={"OMPI_UNIVERSE_SIZE": "3"})), "ok")
    expect(check_nodes(replace(job(3), environment={"OMPI_UNIVERSE_SIZE": "2"})), "warning", "2 slots")


@pytest.mark.parametrize(
    ("facts", "verdict", "text"),
    [
        (job(4), "ok", "bound to no core"),
        (job(9), "ok", "bound to no core"),  # too many ranks, but not by binding
        (bound((0,), (1,), (2,)), "ok", "1 core"),
        (bound((0, 1), (2, 3)), "ok", "2 cores"),
        (bound((0,), (1, 2)), "ok", "1 to 2 cores"),
        (bound((0,), (1,), (0,)), "warning", "ranks 0, 2 on n1 are all bound to core 0, of 4 cores"),
        (bound((0, 1), (0, 1), (0, 1)), "warning", "ranks 0-2 on n1 are all bound to cores 0, 1"),
        (with_rank(job(1, cores=(0,)), 1, node=1, cores=(0,)), "ok", "1 core"),  # the same number on another node
    ],
)
def test_binding(facts: JobFacts, verdict: str, text: str) -> None:
    expect(check_binding(facts), verdict, text)


def crowded(library: str, **environment: str) -> JobFacts:
    return replace(job(5), library=library, environment=environment)


def test_more_ranks_than_cores() -> None:
    expect(check_cores(job(4)), "ok")
    expect(check_cores(crowded(OPEN_MPI)), "warning", "5 ranks share 4 cores on n1", "at most 4 ranks")
    expect(check_cores(job(2, cpu_limit=1.0)), "warning", "1 core")
    # Advice that is followed is not given.
    for library, variable in ((OPEN_MPI, "OMPI_MCA_mpi_yield_when_idle"), (MPICH, "MPIR_CVAR_ENABLE_HEAVY_YIELD")):
        for environment, is_advised in (({}, True), ({variable: "0"}, True), ({variable: "1"}, False)):
            found = check_cores(crowded(library, **environment))
            assert found.verdict == "warning"
            assert (f"{variable}=1" in found.advice) == is_advised


@pytest.mark.parametrize(
    ("facts", "verdict", "text"),
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
def test_threads_against_cores(facts: JobFacts, verdict: str, text: str) -> None:
    found = check_threads(facts)
    assert found.verdict == verdict
    assert text in f"{found.what} {found.advice}"


def timed(name: str, seconds: list[float], *, crowded: bool = False) -> JobFacts:
    return replace(job(9 if crowded else 2), timings={name: seconds})


@pytest.mark.parametrize(
    ("latency", "bandwidth", "name", "verdict", "advice"),
    [
        (1e-6, 1e10, PING_PONG, "ok", ""),
        (1e-3, 1e10, PING_PONG, "warning", "shared memory"),
        (1e-6, 1e8, PING_PONG, "warning", "shared memory"),
        (2e-4, 1e9, PING_PONG_BETWEEN_NODES, "ok", ""),
        (1e-6, 1e7, PING_PONG_BETWEEN_NODES, "warning", "network"),
    ],
)
def test_ping_pong(latency: float, bandwidth: float, name: str, verdict: str, advice: str) -> None:
    seconds = [max(latency, nbytes / bandwidth) for nbytes in SIZES]
    expect(check_ping_pong(name, timed(name, seconds)), verdict, "", advice)
    crowded = check_ping_pong(name, timed(name, seconds, crowded=True))
    expect(crowded, verdict)
    assert crowded is not None
    assert ("share cores" in crowded.advice) is (verdict == "warning")
    what = "8 B 2 us, 64 KiB 20 us, 4 MiB 1 ms one way, 4.19 GB/s"
    expect(check_ping_pong(name, timed(name, [2e-6, 2e-5, 1e-3])), "ok", what)
    assert check_ping_pong(name, job(2)) is None


def test_all_reduce() -> None:
    assert check_all_reduce(job(2)) is None
    # Two ranks send and receive the array once: 4 MiB in 2 ms is 2.1 GB/s.
    expect(check_all_reduce(timed(ALL_REDUCE, [2e-6, 2e-5, 2e-3])), "ok", "2.1 GB/s per rank")
    for crowded, advice in ((False, "ping-pong"), (True, "share cores")):
        expect(check_all_reduce(timed(ALL_REDUCE, [0.1, 0.1, 0.2], crowded=crowded)), "warning", "", advice)


def alike(facts: JobFacts, name: str) -> list[str]:
    """What a comparison of nodes finds; empty where there is none."""
    return [finding.what for finding in check_job(facts) if finding.name == name]


def on_nodes(*ranks: tuple[int, NodeFacts]) -> JobFacts:
    """Ranks with the lowest rank of their node."""
    facts = {rank: replace(ONE, node=node, host=f"n{node}", found=own) for rank, (node, own) in enumerate(ranks)}
    return JobFacts(facts)


def test_nodes_of_ranks_are_compared() -> None:
    old = replace(NODE, software={"numpy": "1.26.4"})
    assert alike(on_nodes((0, NODE), (0, NODE)), "same software") == []
    hardware = alike(on_nodes((0, NODE), (0, NODE), (2, NODE), (2, NODE)), "same hardware")
    assert hardware == ["2 nodes with Xeon, 4 cores, 256 GiB of memory"]
    found = alike(on_nodes((0, NODE), (1, old), (2, NODE), (0, NODE)), "same software")
    assert found == ["n1: numpy 1.26.4, the other 2 have 2.1.0"]
    # Ranks of a node with different software are compared one by one.
    found = alike(on_nodes((0, NODE), (0, old), (0, NODE)), "same software")
    assert found == ["rank 1 on n0: numpy 1.26.4, the other 2 have 2.1.0"]
