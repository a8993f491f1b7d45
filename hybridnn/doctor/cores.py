"""Where the ranks run: nodes, slots, the cores they are bound to, and whether they share them.

NumPy's BLAS, and its threads against the cores that the ranks of a node have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from hybridnn.comm.threads import threads_for
from hybridnn.doctor.facts import RankFacts, cores_of_nodes, ranks_by_node
from hybridnn.doctor.finding import Finding
from hybridnn.utils.text import counted, name_numbers


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
                f"{where}, but {name_numbers('rank', narrow)} may run on {counted(bound, 'core')} only",
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


NOT_SET = ("", "0", "false")


def check_nodes(facts: Mapping[int, RankFacts], environment: Mapping[str, str]) -> Finding:
    """How many ranks run on how many nodes, and whether the launcher has a slot for each.

    Parameters
    ----------
    facts : mapping
        Of every rank that reported, by its number.
    environment : mapping
        Variables of rank 0, in which Open MPI gives its slots.
    """
    counts = [len(ranks) for ranks in ranks_by_node(facts).values()]
    per_node = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    what = f"{counted(len(facts), 'rank')} on {counted(len(counts), 'node')}, {per_node} per node"
    if len(counts) == 1:
        what = f"{counted(len(facts), 'rank')} on {facts[min(facts)].host}"
    slots = environment.get("OMPI_UNIVERSE_SIZE", "")
    if slots.isdigit() and int(slots) < len(facts):
        what += f", for which the launcher has {counted(int(slots), 'slot')}"
        return Finding("nodes", "warning", what, "start no more than that, or give hosts more: --host NAME:SLOTS")
    if max(counts) - min(counts) > 1:
        return Finding("nodes", "warning", what, "an even number per node keeps nodes from waiting for the fullest one")
    return Finding("nodes", "ok", what)


def check_binding(facts: Mapping[int, RankFacts]) -> Finding:
    """Whether ranks are bound to the same few cores while the machine has others."""
    for ranks in ranks_by_node(facts).values():
        bound = defaultdict(list)
        for rank in ranks:
            bound[facts[rank].cores].append(rank)
        for cores, sharing in bound.items():
            fact = facts[sharing[0]]
            if len(sharing) > len(cores) and len(cores) < fact.machine_cores:
                return Finding(
                    "binding",
                    "warning",
                    f"{name_numbers('rank', sharing)} on {fact.host} are all bound to {name_numbers('core', cores)}, "
                    f"of {counted(fact.machine_cores, 'core')}",
                    "give each rank its own: mpirun --map-by core --bind-to core (or --bind-to none), "
                    "srun --cpus-per-task=1 --cpu-bind=cores; or ask for more cores",
                )
    widths = {len(fact.cores) for fact in facts.values()}
    if all(len(fact.cores) == fact.machine_cores for fact in facts.values()):
        return Finding("binding", "ok", "ranks are bound to no core: the system moves them as it likes")
    each = str(min(widths)) if len(widths) == 1 else f"{min(widths)} to {max(widths)}"
    return Finding("binding", "ok", f"each rank may run on {each} core{'s' * (widths != {1})}")


def check_cores(facts: Mapping[int, RankFacts], environment: Mapping[str, str], library: str) -> Finding:
    """Whether every rank has a core; ranks that wait keep a core busy, which the others then lack.

    Parameters
    ----------
    facts : mapping
        Of every rank that reported, by its number.
    environment : mapping
        Variables of rank 0: whether waiting ranks yield their core.
    library : str
        Name and version of the MPI library.
    """
    nodes, cores = ranks_by_node(facts), cores_of_nodes(facts)
    for node, ranks in nodes.items():
        if len(ranks) > cores[node]:
            what = f"{len(ranks)} ranks share {counted(cores[node], 'core')} on {facts[node].host}"
            advice = f"start at most {counted(cores[node], 'rank')} there; times measured like this mean little"
            waiting, remedy = _busy_waiting(environment, library)
            return Finding("cores", "warning", f"{what}, {waiting}", advice + remedy)
    first = min(facts)
    what = f"{counted(cores[facts[first].node], 'core')} for {counted(len(nodes[facts[first].node]), 'rank')}"
    return Finding("cores", "ok", what)


def _busy_waiting(environment: Mapping[str, str], library: str) -> tuple[str, str]:
    """What ranks that wait do to the others, and what could be done about it."""
    if "open mpi" in library.lower():
        if environment.get("OMPI_MCA_mpi_yield_when_idle", "") not in NOT_SET:
            return "and those that wait give it up (mpi_yield_when_idle)", ""
        return "and those that wait may keep it busy", "; or export OMPI_MCA_mpi_yield_when_idle=1"
    if environment.get("MPIR_CVAR_ENABLE_HEAVY_YIELD", "") not in NOT_SET:
        return "and those that wait give it up (MPIR_CVAR_ENABLE_HEAVY_YIELD)", ""
    if "mpich" in library.lower():
        remedy = "; or export MPIR_CVAR_ENABLE_HEAVY_YIELD=1, with which each message takes longer"
        return "and those that wait keep it busy", remedy
    return "and those that wait may keep it busy", ""
