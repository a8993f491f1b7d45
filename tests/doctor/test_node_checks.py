"""Checks that nodes are alike: which node differs, ties, and limits of cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hybridnn.doctor.node_checks import (
    NamedFacts,
    NodeFacts,
    check_hardware,
    check_software,
    cpu_limit,
    gather_node_facts,
)

NODE = NodeFacts({"Python": "3.11.7", "numpy": "2.1.0"}, "Xeon", 4, 256 << 30)


def named(*nodes: NodeFacts, ranks: int = 1) -> list[NamedFacts]:
    return [NamedFacts(f"node{number}", facts, ranks) for number, facts in enumerate(nodes, 1)]


def with_numpy(*versions: str) -> list[NamedFacts]:
    return named(*(replace(NODE, software={**NODE.software, "numpy": version}) for version in versions))


@pytest.mark.parametrize(
    ("versions", "what"),
    [
        (["2", "1", "2", "2"], "node2: numpy 1, the other 3 have 2"),
        (["1", "2", "1", "2", "2"], "node1, node3: numpy 1, the other 3 have 2"),
        (["3", "2", "1", "2"], "node1: numpy 3; node3: numpy 1, the other 2 have 2"),
        (["1", "2"], "node1: numpy 1; node2: numpy 2 (no majority)"),
        (["2", "1", "2", "1"], "node1, node3: numpy 2; node2, node4: numpy 1 (no majority)"),
        (["2", "1", "2", "1", "3"], "node1, node3: numpy 2; node2, node4: numpy 1; node5: numpy 3 (no majority)"),
        (["1"] * 5 + ["2"] * 6, "node1, node2, node3, node4, node5: numpy 1, the other 6 have 2"),
    ],
)
def test_nodes_with_another_version_are_named(versions: list[str], what: str) -> None:
    found = check_software(with_numpy(*versions))
    assert (found.verdict, found.what) == ("failure", what)
    assert found.advice


def test_each_difference_is_named() -> None:
    other = replace(NODE, software={"Python": "3.10.2"})
    what = "node2: Python 3.10.2, the other 2 have 3.11.7; node2: numpy missing, the other 2 have 2.1.0"
    assert check_software(named(NODE, other, NODE)).what == what
    # A node may have what the first one lacks.
    what = "node1: Python 3.10.2, the other 2 have 3.11.7; node1: numpy missing, the other 2 have 2.1.0"
    assert check_software(named(other, NODE, NODE)).what == what


def test_hardware_is_compared_per_rank_without_little_differences_of_memory() -> None:
    assert check_software(named(NODE, NODE)).verdict == "ok"
    memories = [256 << 30, 250 << 30, 262 << 30]
    alike = named(*(replace(NODE, memory=memory) for memory in memories))
    assert check_hardware(alike).what == "3 nodes with Xeon, 4 cores, 256 GiB of memory"
    found = check_hardware(named(NODE, replace(NODE, cores=1), NODE))
    assert (found.verdict, found.what) == ("warning", "node2: 1 core, the other 2 have 4 cores")
    found = check_hardware(named(NODE, NODE, replace(NODE, processor="EPYC", memory=192 << 30)))
    memory = "node3: 192 GiB of memory, the other 2 have 256 GiB of memory"
    assert found.what == f"node3: EPYC, the other 2 have Xeon; {memory}"
    # Three ranks on two nodes with a core for each are alike.
    nodes = [NamedFacts("node1", replace(NODE, cores=2), 2), NamedFacts("node2", replace(NODE, cores=1), 1)]
    assert check_hardware(nodes).what == "2 nodes with Xeon, 1 core per rank, 256 GiB of memory"
    nodes[1] = replace(nodes[1], facts=replace(NODE, cores=3))
    assert check_hardware(nodes).what == "node1: 1 core per rank; node2: 3 cores per rank (no majority)"


def test_facts_of_this_node() -> None:
    facts = gather_node_facts({"SLURM_CPUS_ON_NODE": "1"})
    assert facts.cores == 1
    assert facts.memory > 1 << 28
    assert {"Python", "hybridnn", "numpy", "BLAS", "MPI library"} <= set(facts.software)


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
