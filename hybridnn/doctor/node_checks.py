"""Checks that the nodes of a job are alike: versions of the software, processor, cores and memory."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from statistics import median_low

from hybridnn._version import __version__
from hybridnn.comm.hosts import blas_library, processor_name
from hybridnn.comm.threads import own_cores
from hybridnn.doctor.mpi_calls import load_mpi
from hybridnn.doctor.report import Finding, failure, ok, warning
from hybridnn.errors import EnvironmentProblem
from hybridnn.utils.files import memory_bytes
from hybridnn.utils.text import counted, format_bytes

LEAST_MAJOR: Mapping[str, int] = {"numpy": 2, "scipy": 1, "mpi4py": 4, "pydantic": 2}
"""First major versions of packages that hybridnn works with."""

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
MEMORY_TOLERANCE = 0.1  # relative difference up to which nodes have the same memory: a kernel reserves some
MOST_NAMES = 4  # nodes that are named one by one


@dataclass(frozen=True)
class NodeFacts:
    """Software and hardware that a process finds on its node."""

    software: Mapping[str, str]  # versions, by name
    processor: str  # model
    cores: float  # cores that the process may use
    memory: int  # physical memory in bytes


@dataclass(frozen=True)
class NamedFacts:
    """Facts of a node, or of one rank where the ranks of a node differ."""

    name: str
    facts: NodeFacts
    ranks: int = 1  # that share the cores


def gather_node_facts(environment: Mapping[str, str]) -> NodeFacts:
    """Facts about the node of this process; loads NumPy and the MPI library, without starting MPI."""
    return NodeFacts(software_versions(), processor_name(), usable_cores(environment), memory_bytes())


def software_versions() -> dict[str, str]:
    """Versions of Python, hybridnn, its packages, the BLAS and the MPI library, by name."""
    found = {"Python": platform.python_version(), "hybridnn": __version__}
    found |= {name: version or "missing" for name, version in package_versions().items()}
    try:
        library = load_mpi()
    except (EnvironmentProblem, OSError, RuntimeError):
        library = "missing"
    return found | {"BLAS": blas_library(), "MPI library": library}


def package_versions(version_of: Callable[[str], str] = metadata.version) -> dict[str, str | None]:
    """Installed versions of the packages in `LEAST_MAJOR`; None for a missing one."""
    found: dict[str, str | None] = {}
    for name in LEAST_MAJOR:
        try:
            found[name] = version_of(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def usable_cores(environment: Mapping[str, str]) -> float:
    """Cores that this process may use, as far as affinity, container and allocation limit them."""
    return min(filter(None, (len(own_cores()), cpu_limit(environment, CPU_QUOTA))))


def cpu_limit(environment: Mapping[str, str], quota: Path) -> float | None:
    """Processors of this node that may be used at a time; None without a limit.

    Slurm's allocation is in the environment; `quota` is the control group's file with the share of a container, in
    microseconds per period, or ``max``.
    """
    limits = []
    allocated = environment.get("SLURM_CPUS_ON_NODE", "")
    if allocated.isdigit():
        limits.append(float(allocated))
    try:
        share, period = quota.read_text(encoding="ascii").split()[:2]
        if share != "max":
            limits.append(int(share) / int(period))
    except (OSError, ValueError):
        pass  # not Linux, or an older one
    return min(limits, default=None)


# -- comparison --------------------------------------------------------------------------------------------------------


def check_software(nodes: Sequence[NamedFacts]) -> Finding:
    """Whether all nodes have the same versions; those that differ are named."""
    found = []
    for name in dict.fromkeys(name for node in nodes for name in node.facts.software):
        versions = [(node.name, node.facts.software.get(name, "missing")) for node in nodes]
        found.append(_difference(f"{name} ", versions))
    if differences := [text for text in found if text]:
        return failure("; ".join(differences), "use one environment on all nodes, in a folder that all of them see")
    return ok(f"{len(nodes)} nodes with the same versions of {', '.join(nodes[0].facts.software)}")


def check_hardware(nodes: Sequence[NamedFacts]) -> Finding:
    """Whether all nodes have the same processor, cores per rank and memory; those that differ are named."""
    usual_memory = median_low(node.facts.memory for node in nodes)

    def memory(node: NamedFacts) -> str:
        is_usual = abs(node.facts.memory - usual_memory) <= MEMORY_TOLERANCE * usual_memory
        return f"{format_bytes(usual_memory if is_usual else node.facts.memory, binary=True)} of memory"

    evenly = len({node.ranks for node in nodes}) == 1
    values: list[Callable[[NamedFacts], str]] = [
        lambda node: node.facts.processor,
        lambda node: _cores(node.facts.cores) if evenly else f"{_cores(node.facts.cores / node.ranks)} per rank",
        memory,
    ]
    found = [_difference("", [(node.name, value(node)) for node in nodes]) for value in values]
    if differences := [text for text in found if text]:
        return warning("; ".join(differences), "every step waits for the slowest node: ask for nodes of one kind")
    return ok(f"{len(nodes)} nodes with {', '.join(value(nodes[0]) for value in values)}")


def _cores(number: float) -> str:
    return counted(1, "core") if number == 1 else f"{number:.3g} cores"


def _difference(label: str, values: Sequence[tuple[str, str]]) -> str:
    """``node2: numpy 1.26.4, the other 3 have 2.1.0``; empty if the value is the same on all nodes.

    Where no value is more frequent than all others, every node is named.
    """
    names: dict[str, list[str]] = {}
    for name, value in values:
        names.setdefault(value, []).append(name)
    if len(names) == 1:
        return ""
    usual = max(names, key=lambda value: len(names[value]))
    is_tie = sum(len(group) == len(names[usual]) for group in names.values()) > 1
    parts = [f"{listed(group)}: {label}{value}" for value, group in names.items() if is_tie or value != usual]
    return ", ".join(parts) + (" (no majority)" if is_tie else f", the other {len(names[usual])} have {usual}")


def listed(names: Sequence[str]) -> str:
    """``node1``, ``node1 and node2``, ``node1, node2, node3 and 13 more``."""
    shown = [*names] if len(names) <= MOST_NAMES else [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


if __name__ == "__main__":
    print(json.dumps(asdict(gather_node_facts(os.environ))))
