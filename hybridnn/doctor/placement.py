"""Where the ranks run: nodes, slots, the cores they are bound to, and whether they share them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from hybridnn.doctor.facts import RankFacts, cores_of_nodes, ranks_by_node
from hybridnn.doctor.finding import Finding
from hybridnn.doctor.words import core_names, counted, rank_names

__all__ = ["check_binding", "check_cores", "check_nodes"]

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
                    f"{rank_names(sharing)} on {fact.host} are all bound to {core_names(cores)}, "
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
