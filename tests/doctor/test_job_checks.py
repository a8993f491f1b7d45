"""Checks of a job: nodes, slots, binding, cores, threads, clocks and speed of messages, on constructed facts."""

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
    check_clocks_agree,
    check_cores,
    check_job,
    check_nodes,
    check_ping_pong,
    check_threads,
    gather_facts,
)
from hybridnn.doctor.node_checks import NodeFacts

NODE = NodeFacts({"numpy": "2.1.0"}, "Xeon", 4, 256 << 30)
ONE = RankFacts(0, "n1", (0, 1, 2, 3), 4, None, 1, "", 1.8e9, NODE)
OPEN_MPI, MPICH = "Open MPI v5.0.11", "MPICH Version: 5.0.2"


def job(ranks: int, **changes: Any) -> JobFacts:
    return JobFacts({rank: replace(ONE, **changes) for rank in range(ranks)})


def with_rank(facts: JobFacts, rank: int, **changes: Any) -> JobFacts:
    return replace(facts, ranks={**facts.ranks, rank: replace(ONE, **changes)})


def bound(*cores: tuple[int, ...]) -> JobFacts:
    return JobFacts({rank: replace(ONE, cores=own) for rank, own in enumerate(cores)})


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
    assert check_nodes(job(3)).what == "3 ranks on n1"
    spread = with_rank(job(2), 2, node=2, host="n2")
    assert check_nodes(spread).what == "3 ranks on 2 nodes, 1 to 2 per node"
    assert check_nodes(spread).verdict == "ok"
    assert check_nodes(with_rank(job(3), 3, node=3)).verdict == "warning"
    assert check_nodes(replace(job(3), environment={"OMPI_UNIVERSE_SIZE": "3"})).verdict == "ok"
    crowded = check_nodes(replace(job(3), environment={"OMPI_UNIVERSE_SIZE": "2"}))
    assert crowded.verdict == "warning"
    assert "2 slots" in crowded.what


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
    ],
)
def test_binding(facts: JobFacts, verdict: str, text: str) -> None:
    found = check_binding(facts)
    assert found.verdict == verdict
    assert text in found.what


def test_the_same_core_of_two_nodes_is_not_shared() -> None:
    assert check_binding(with_rank(job(1, cores=(0,)), 1, node=1, cores=(0,))).verdict == "ok"


def crowded(library: str, **environment: str) -> JobFacts:
    return replace(job(5), library=library, environment=environment)


def test_more_ranks_than_cores() -> None:
    assert check_cores(job(4)).verdict == "ok"
    found = check_cores(crowded(OPEN_MPI))
    assert found.verdict == "warning"
    assert "5 ranks share 4 cores on n1" in found.what
    assert "at most 4 ranks" in found.advice
    assert "OMPI_MCA_mpi_yield_when_idle=1" in found.advice
    yielding = check_cores(crowded(OPEN_MPI, OMPI_MCA_mpi_yield_when_idle="1"))
    assert yielding.verdict == "warning"
    assert "yield" not in yielding.advice
    assert "OMPI" in check_cores(crowded(OPEN_MPI, OMPI_MCA_mpi_yield_when_idle="0")).advice
    assert "MPIR_CVAR_ENABLE_HEAVY_YIELD=1" in check_cores(crowded(MPICH)).advice
    assert "HEAVY" not in check_cores(crowded(MPICH, MPIR_CVAR_ENABLE_HEAVY_YIELD="1")).advice
    assert "1 core" in check_cores(job(2, cpu_limit=1.0)).what


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        (job(4, threads=4), "ok"),  # nobody asked for four each: training takes one
        (job(1, threads=4), "ok"),
        (job(1, threads=8), "warning"),
        (job(1, threads=4, cpu_limit=2.0), "warning"),
        (job(4, threads=1, threads_set_by="OMP_NUM_THREADS=1"), "ok"),
        (job(2, threads=4, threads_set_by="OMP_NUM_THREADS=4"), "warning"),
        (job(2, threads=2, threads_set_by="OMP_NUM_THREADS=2"), "ok"),
        (job(9, threads=1, threads_set_by="OMP_NUM_THREADS=1"), "ok"),  # too many ranks, not too many threads
    ],
)
def test_threads_against_cores(facts: JobFacts, verdict: str) -> None:
    assert check_threads(facts).verdict == verdict


def test_the_advised_number_of_threads_fits() -> None:
    found = check_threads(job(2, threads=4, threads_set_by="OMP_NUM_THREADS=4"))
    assert "OPENBLAS_NUM_THREADS=2" in found.advice


def test_more_threads_than_cores_that_a_rank_is_bound_to() -> None:
    def two_threads(*cores: tuple[int, ...]) -> JobFacts:
        own = replace(ONE, threads=2, threads_set_by="OMP_NUM_THREADS=2")
        return JobFacts({rank: replace(own, cores=bound_to) for rank, bound_to in enumerate(cores)})

    assert check_threads(two_threads((0, 1), (2, 3))).verdict == "ok"
    found = check_threads(two_threads((0,), (1, 2, 3)))
    assert found.verdict == "warning"
    assert "rank 0 may run on 1 core only" in found.what


def test_dates_of_the_ranks() -> None:
    assert check_clocks_agree(job(1)) is None
    found = check_clocks_agree(job(3))
    assert found is not None
    assert found.verdict == "ok"
    found = check_clocks_agree(with_rank(job(3), 1, wall_clock=1.8e9 + 60))
    assert found is not None
    assert found.verdict == "warning"
    assert "rank 1 up to 60 s away" in found.what


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
    found = check_ping_pong(name, timed(name, seconds))
    assert found is not None
    assert found.verdict == verdict
    assert advice in found.advice
    crowded = check_ping_pong(name, timed(name, seconds, crowded=True))
    assert crowded is not None
    assert ("share cores" in crowded.advice) is (verdict == "warning")


def test_text_of_a_ping_pong() -> None:
    found = check_ping_pong(PING_PONG, timed(PING_PONG, [2e-6, 2e-5, 1e-3]))
    assert found is not None
    assert found.what == "8 B 2 us, 64 KiB 20 us, 4 MiB 1 ms one way, 4.19 GB/s"


def test_all_reduce() -> None:
    # Two ranks send and receive the array once: 4 MiB in 2 ms is 2.1 GB/s.
    found = check_all_reduce(timed(ALL_REDUCE, [2e-6, 2e-5, 2e-3]))
    assert found is not None
    assert found.verdict == "ok"
    assert "2.1 GB/s per rank" in found.what
    for crowded, advice in ((False, "ping-pong"), (True, "share cores")):
        slow = check_all_reduce(timed(ALL_REDUCE, [0.1, 0.1, 0.2], crowded=crowded))
        assert slow is not None
        assert slow.verdict == "warning"
        assert advice in slow.advice


def test_without_timings_there_are_no_findings() -> None:
    assert check_ping_pong(PING_PONG, job(2)) is None
    assert check_all_reduce(job(2)) is None


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


def test_ranks_of_a_node_with_different_software_are_compared_one_by_one() -> None:
    old = replace(NODE, software={"numpy": "1.26.4"})
    found = alike(on_nodes((0, NODE), (0, old), (0, NODE)), "same software")
    assert found == ["rank 1 on n0: numpy 1.26.4, the other 2 have 2.1.0"]
