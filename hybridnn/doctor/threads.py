"""NumPy's BLAS, and its threads against the cores that the ranks of a node have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybridnn.comm.threads import threads_for
from hybridnn.doctor.facts import RankFacts, cores_of_nodes, ranks_by_node
from hybridnn.doctor.finding import Finding
from hybridnn.doctor.words import counted, rank_names

__all__ = ["check_blas", "check_threads"]


def check_blas(pools: Sequence[Mapping[str, Any]]) -> Finding:
    """Which BLAS multiplies NumPy's matrices.

    Parameters
    ----------
    pools : sequence of mapping
        Thread pools, as threadpoolctl tells of them.
    """
    blas = sorted({f"{pool['internal_api']} {pool['version']}" for pool in pools if pool["user_api"] == "blas"})
    if not blas:
        advice = "if products of matrices are slow, install NumPy from PyPI or conda, which bring OpenBLAS or MKL"
        return Finding("BLAS", "warning", "NumPy uses no BLAS that is known here", advice)
    return Finding("BLAS", "ok", f"NumPy multiplies with {', '.join(blas)}")


def check_threads(facts: Mapping[int, RankFacts]) -> Finding:
    """Whether the BLAS threads of all ranks of a node fit its cores, as training will set them.

    Parameters
    ----------
    facts : mapping
        Of every rank that reported, by its number.
    """
    nodes, cores = ranks_by_node(facts), cores_of_nodes(facts)
    for node, ranks in nodes.items():
        planned = {rank: _planned(facts[rank], len(ranks), cores[node]) for rank in ranks}
        total, most = sum(planned.values()), max(planned.values())
        where = f"{facts[node].host}: {counted(len(ranks), 'rank')} with up to {counted(most, 'BLAS thread')} each"
        fitting = max(1, cores[node] // len(ranks))
        if total > max(cores[node], len(ranks)):
            return Finding(
                "threads",
                "warning",
                f"{where} on {counted(cores[node], 'core')}",
                f"they slow each other: export OPENBLAS_NUM_THREADS={fitting} OMP_NUM_THREADS={fitting}",
            )
        narrow = [rank for rank in ranks if planned[rank] > len(facts[rank].cores)]
        if narrow:
            bound = len(facts[narrow[0]].cores)
            return Finding(
                "threads",
                "warning",
                f"{where}, but {rank_names(narrow)} may run on {counted(bound, 'core')} only",
                f"export OPENBLAS_NUM_THREADS={bound}, or bind each rank to as many cores as it has threads "
                "(mpirun --map-by slot:PE=N, srun --cpus-per-task=N)",
            )
    first = facts[min(facts)]
    own = first.threads_set_by or "no variable of yours; training sets that for large products, 1 for small ones"
    threads = _planned(first, len(nodes[first.node]), cores[first.node])
    what = f"{counted(threads, 'BLAS thread')} per rank, {counted(cores[first.node], 'core')} on the node ({own})"
    return Finding("threads", "ok", what)


def _planned(fact: RankFacts, ranks_on_node: int, cores: int) -> int:
    """Threads of a rank in training, which limits them where ranks share a node and the user has not."""
    if ranks_on_node == 1 or fact.threads_set_by:
        return fact.threads
    return threads_for(ranks_on_node, cores, len(fact.cores))
