"""Nodes, slots, binding, cores, threads and clocks, on constructed jobs."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hybridnn.doctor.clock import check_clock, check_clocks_agree
from hybridnn.doctor.cores import check_binding, check_blas, check_cores, check_nodes, check_threads
from hybridnn.doctor.facts import RankFacts, cores_of_nodes, cpu_limit, gather_facts, ranks_by_node

ONE = RankFacts(0, "n1", (0, 1, 2, 3), 4, None, 1, "", 1.8e9)
OPEN_MPI, MPICH = "Open MPI v5.0.11", "MPICH Version: 5.0.2"


def job(ranks: int, **changes: Any) -> dict[int, RankFacts]:
    return {rank: replace(ONE, **changes) for rank in range(ranks)}


def bound(*cores: tuple[int, ...]) -> dict[int, RankFacts]:
    return {rank: replace(ONE, cores=own) for rank, own in enumerate(cores)}


def test_facts_survive_their_journey() -> None:
    facts = gather_facts(3, {"OMP_NUM_THREADS": "2"}, [{"user_api": "blas", "num_threads": 5}])
    assert RankFacts.from_json(asdict(facts)) == facts
    assert (facts.node, facts.threads, facts.threads_set_by) == (3, 5, "OMP_NUM_THREADS=2")


def test_nodes_and_their_cores() -> None:
    facts = job(2) | {2: replace(ONE, node=2, host="n2", cores=(0,)), 3: replace(ONE, node=2, host="n2", cores=(1,))}
    assert ranks_by_node(facts) == {0: [0, 1], 2: [2, 3]}
    assert cores_of_nodes(facts) == {0: 4, 2: 2}
    assert cores_of_nodes(job(2, cpu_limit=2.5)) == {0: 2}
    assert cores_of_nodes(job(1, cpu_limit=0.5)) == {0: 1}


@pytest.mark.parametrize(
    ("slurm", "quota", "limit"),
    [({}, None, None), ({}, "max 100000", None), ({}, "150000 100000", 1.5), ({"SLURM_CPUS_ON_NODE": "8"}, None, 8.0)],
)
def test_limit_of_container_and_allocation(
    tmp_path: Path, slurm: dict[str, str], quota: str | None, limit: float | None
) -> None:
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(f"{quota}\n")
    assert cpu_limit(slurm, file) == limit


def test_ranks_per_node_and_slots() -> None:
    assert check_nodes(job(3), {}).what == "3 ranks on n1"
    spread = job(2) | {2: replace(ONE, node=2, host="n2")}
    assert check_nodes(spread, {}).what == "3 ranks on 2 nodes, 1 to 2 per node"
    assert check_nodes(spread, {}).verdict == "ok"
    assert check_nodes(job(3) | {3: replace(ONE, node=3)}, {}).verdict == "warning"
    assert check_nodes(job(3), {"OMPI_UNIVERSE_SIZE": "3"}).verdict == "ok"
    crowded = check_nodes(job(3), {"OMPI_UNIVERSE_SIZE": "2"})
    assert crowded.verdict == "warning"
    assert "2 slots" in crowded.what


@pytest.mark.parametrize(
    ("facts", "verdict", "words"),
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
def test_binding(facts: dict[int, RankFacts], verdict: str, words: str) -> None:
    found = check_binding(facts)
    assert found.verdict == verdict
    assert words in found.what


def test_the_same_core_of_two_nodes_is_not_shared() -> None:
    assert check_binding({0: replace(ONE, cores=(0,)), 1: replace(ONE, node=1, cores=(0,))}).verdict == "ok"


def test_more_ranks_than_cores() -> None:
    assert check_cores(job(4), {}, OPEN_MPI).verdict == "ok"
    found = check_cores(job(5), {}, OPEN_MPI)
    assert found.verdict == "warning"
    assert "5 ranks share 4 cores on n1" in found.what
    assert "at most 4 ranks" in found.advice
    assert "OMPI_MCA_mpi_yield_when_idle=1" in found.advice
    yielding = check_cores(job(5), {"OMPI_MCA_mpi_yield_when_idle": "1"}, OPEN_MPI)
    assert yielding.verdict == "warning"
    assert "yield" not in yielding.advice
    assert "OMPI" in check_cores(job(5), {"OMPI_MCA_mpi_yield_when_idle": "0"}, OPEN_MPI).advice
    assert "MPIR_CVAR_ENABLE_HEAVY_YIELD=1" in check_cores(job(5), {}, MPICH).advice
    assert "HEAVY" not in check_cores(job(5), {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}, MPICH).advice
    assert "1 core" in check_cores(job(2, cpu_limit=1.0), {}, MPICH).what


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
def test_threads_against_cores(facts: dict[int, RankFacts], verdict: str) -> None:
    assert check_threads(facts).verdict == verdict


def test_the_advised_number_of_threads_fits() -> None:
    found = check_threads(job(2, threads=4, threads_set_by="OMP_NUM_THREADS=4"))
    assert "OPENBLAS_NUM_THREADS=2" in found.advice


def test_more_threads_than_cores_that_a_rank_is_bound_to() -> None:
    own = {"threads": 2, "threads_set_by": "OMP_NUM_THREADS=2"}
    found = check_threads({rank: replace(ONE, cores=(2 * rank, 2 * rank + 1), **own) for rank in range(2)})
    assert found.verdict == "ok"
    narrow = {0: replace(ONE, cores=(0,), **own), 1: replace(ONE, cores=(1, 2, 3), **own)}
    found = check_threads(narrow)
    assert found.verdict == "warning"
    assert "rank 0 may run on 1 core only" in found.what


def test_blas() -> None:
    pool = {"user_api": "blas", "internal_api": "openblas", "version": "0.3.30", "num_threads": 2}
    assert "openblas 0.3.30" in check_blas([pool, {"user_api": "openmp"}]).what
    assert check_blas([{"user_api": "openmp"}]).verdict == "warning"


def ticking(step: float, nap: float) -> tuple[Any, Any]:
    """A clock that goes on by `step` at each reading, and by `nap` in a nap."""
    now = [0.0]

    def tick() -> float:
        now[0] += step
        return now[0]

    def doze(seconds: float) -> None:
        now[0] += nap

    return tick, doze


@pytest.mark.parametrize(
    ("step", "nap", "date", "verdict"),
    [
        (1e-7, 0.02, 1.8e9, "ok"),
        (-1e-7, 0.02, 1.8e9, "failure"),
        (1e-7, 0.0, 1.8e9, "failure"),
        (1e-3, 0.02, 1.8e9, "warning"),
        (1e-7, 0.02, 3600.0, "warning"),
    ],
)
def test_clock(step: float, nap: float, date: float, verdict: str) -> None:
    tick, doze = ticking(step, nap)
    assert check_clock(tick, lambda: date, doze).verdict == verdict


def test_the_clock_of_this_machine() -> None:
    assert check_clock().verdict == "ok"


def test_dates_of_the_ranks() -> None:
    assert check_clocks_agree(job(1)) is None
    found = check_clocks_agree(job(3))
    assert found is not None
    assert found.verdict == "ok"
    found = check_clocks_agree(job(3) | {1: replace(ONE, wall_clock=1.8e9 + 60)})
    assert found is not None
    assert found.verdict == "warning"
    assert "rank 1 up to 60 s away" in found.what
