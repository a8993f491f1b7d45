"""Nodes: facts that are compared, and the survey of an allocation."""

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hybridnn.doctor.node_checks import (
    MARK,
    NamedFacts,
    NodeFacts,
    allocated_nodes,
    check_allocation,
    check_hardware,
    check_software,
    cpu_limit,
    expand_counts,
    gather_node_facts,
    read_answers,
)
from hybridnn.doctor.report import Finding
from mpi_runner.slowness import deadline

SCONTROL = """#!/bin/sh
printf 'node1\\nnode2\\nnode3\\n'
"""
# Starts the program once for each node, with modules of that node alone.
SRUN = """#!/bin/sh
while [ "$1" != sh ]; do shift; done
for node in $NODES; do
  SLURMD_NODENAME=$node PYTHONPATH=$FOLDER/$node "$@" &
done
wait
[ -z "$ERROR" ] || { echo "srun: error: $ERROR" >&2; exit 1; }
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that has the modules of each node."""
    for name, text in {"scontrol": SCONTROL, "srun": SRUN}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)  # Python searches the working folder first
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-3]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x3)")
    monkeypatch.setenv("NODES", "node3 node2 node1")
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.setenv("ERROR", "")
    return tmp_path


def module(folder: Path, node: str, name: str, text: str) -> None:
    path = folder / node / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def findings(limit: float = 20.0) -> dict[str, Finding]:
    return {finding.name: finding for finding in check_allocation(dict(os.environ), deadline(limit))}


def test_equal_nodes(slurm: Path) -> None:
    found = findings()
    assert [finding.verdict for finding in found.values()] == ["ok", "ok", "ok"]
    assert found["all nodes"].what == "hybridnn works on node1, node2, node3"
    assert found["same software"].what.startswith("3 nodes with the same versions of Python, hybridnn, numpy")


def test_a_node_that_differs_and_one_without_hybridnn(slurm: Path) -> None:
    (slurm / "node2" / "numpy-1.26.4.dist-info").mkdir(parents=True)
    module(slurm, "node2", "numpy-1.26.4.dist-info/METADATA", "Metadata-Version: 2.1\nName: numpy\nVersion: 1.26.4\n")
    module(slurm, "node1", "hybridnn.py", "raise ModuleNotFoundError(\"No module named 'hybridnn'\")\n")
    found = findings()
    assert found["all nodes"].what == "node1: ModuleNotFoundError: No module named 'hybridnn'"
    assert found["all nodes"].verdict == found["same software"].verdict == "failure"
    assert found["same software"].what.startswith("node2: numpy 1.26.4; node3: numpy ")
    assert found["same software"].what.endswith(" (no majority)")


def test_a_node_that_hangs_and_those_that_send_nothing(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODES", "node2")
    monkeypatch.setenv("ERROR", "node3 is down")
    module(slurm, "node2", "hybridnn.py", "import time; time.sleep(3600)\n")
    (found,) = check_allocation(dict(os.environ), 1.0)
    silent = "node1, node3: no answer and srun ended with exit code 1: srun: error: node3 is down"
    assert (found.verdict, found.what) == ("failure", f"node2: no answer within 3 s; {silent}")


def test_python_that_is_missing(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    (found,) = findings().values()
    assert found.what.startswith("node1, node2, node3: timeout: ")
    assert "/no/python" in found.what


def test_a_launcher_that_does_not_end_or_is_missing(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (slurm / "srun").write_text("#!/bin/sh\nsleep 3600\n")
    (found,) = check_allocation(dict(os.environ), 0.1)
    assert found.what == "node1, node2, node3: no answer within 0.4 s"
    monkeypatch.setenv("PATH", "/nothing")
    (found,) = findings().values()
    assert (found.verdict, found.what) == ("warning", "the other nodes are not asked: srun or scontrol is not on PATH")


def test_nodes_of_the_allocation(slurm: Path, tmp_path: Path) -> None:
    slurm_job = {"SLURM_JOB_NODELIST": "node[1-3]", "PATH": os.environ["PATH"]}
    assert allocated_nodes(slurm_job) == {"node1": 1, "node2": 1, "node3": 1}
    assert allocated_nodes({**slurm_job, "SLURM_TASKS_PER_NODE": "2(x2),1"}) == {"node1": 2, "node2": 2, "node3": 1}
    hosts = tmp_path / "hosts"
    hosts.write_text("# nodes\nnode1 slots=2\nnode2:2\n\nnode1\n")
    assert allocated_nodes({"PBS_NODEFILE": str(hosts)}) == {"node1": 1, "node2": 1}
    assert allocated_nodes({"PBS_NODEFILE": str(tmp_path / "none")}) == allocated_nodes({}) == {}


def test_counts_per_node() -> None:
    for text, counts in (("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("1,3(x2)", [1, 3, 3]), ("", []), ("2(x", [])):
        assert expand_counts(text) == counts


def test_answers_have_the_names_of_the_allocation() -> None:
    facts = json.dumps(asdict(NodeFacts({}, "Xeon", 4, 1)))
    output = f"a banner\n{MARK} node2 {facts}\n{MARK} node1 {facts[:20]}\n{MARK} node3\n"
    names = ["node1.site", "node2.site", "node3.site", "node4.site"]
    answers = read_answers(output, names, "no answer")
    assert list(answers) == names
    assert answers.pop("node2.site") == NodeFacts({}, "Xeon", 4, 1)
    assert list(answers.values()) == [facts[:20], "Python printed nothing", "no answer"]
    # Addresses tell nothing about names; as many answers as nodes are enough.
    addresses = read_answers(f"{MARK} node1 {facts}\n{MARK} node2 {facts}\n", ["10.0.0.1", "10.0.0.2"], "no answer")
    assert list(addresses) == ["node1", "node2"]


NODE = NodeFacts({"Python": "3.11.7", "numpy": "2.1.0"}, "Xeon", 4, 256 << 30)


def named(*nodes: NodeFacts, ranks: int = 1) -> list[NamedFacts]:
    return [NamedFacts(f"node{number}", facts, ranks) for number, facts in enumerate(nodes, 1)]


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
    nodes = (replace(NODE, software={**NODE.software, "numpy": version}) for version in versions)
    found = check_software(named(*nodes))
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
def test_limit_of_container_and_allocation(tmp_path, slurm, quota, limit) -> None:
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(f"{quota}\n")
    assert cpu_limit(slurm, file) == limit
