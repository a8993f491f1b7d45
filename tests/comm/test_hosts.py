"""Hosts of a job: gathered from the ranks, with their binding as text."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hybridnn.comm import hosts
from hybridnn.comm.hosts import describe_binding, describe_hosts, proc_value
from hybridnn.in_process import run_ranks
from hybridnn.parallel.grid import all_ranks_group


def test_hosts_of_several_ranks_are_one_node_with_its_processor() -> None:
    found = run_ranks(3, lambda comm: describe_hosts(all_ranks_group(comm))).results
    assert found[0].names == (socket.gethostname(),)
    assert found[0].ranks == (3,)
    assert found[0].cores == (os.cpu_count(),)
    assert len(found[0].processors) == 1
    assert found[0].launcher == "one process"
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([(4, [0, 1, 2, 3])], "none"),
        ([(4, None), (4, None)], "none"),
        ([(4, [0]), (4, [1])], "1 core per rank: 0; 1"),
        ([(4, [0]), (4, [0])], "1 core per rank: 0"),
        ([(8, [0, 1, 4]), (8, [2, 3, 6])], "3 cores per rank: 0, 1, 4; 2, 3, 6"),
        ([(8, [0, 1]), (8, range(8))], "2-8 cores per rank: 0, 1"),
        ([(16, [n]) for n in range(10)], "1 core per rank: 0; 1; 2; 3; 4; 5; 6; 7; …"),
    ],
)
def test_binding_names_the_cores_of_a_rank(ranks: list[tuple[int, list[int] | None]], text: str) -> None:
    assert describe_binding(ranks) == text


@pytest.mark.parametrize("version", [1, 2])
def test_available_memory_is_within_the_limits_of_control_groups(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "memory" if version == 1 else tmp_path
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    line, total = ("7:memory:/job/step", "total_") if version == 1 else ("0::/job/step", "")
    text = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda it, **how: line if it.parts[:2] == ("/", "proc") else text(it, **how))
    monkeypatch.setattr(hosts, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(hosts, "proc_value", lambda path, key: "1000 kB")
    assert hosts.available_memory() == 1_024_000
    for folder, limit, used in ((root / "job", "9000", 4000), (root / "job" / "step", "max", 100)):
        folder.mkdir(parents=True)
        for name, value in zip(names, (limit, used), strict=True):
            (folder / name).write_text(f"{value}\n")
        (folder / "memory.stat").write_text(f"anon 5\n{total}inactive_file 700\n{total}active_file 80\n")
    assert hosts.available_memory() == 9000 - 4000 + 700 + 80
    monkeypatch.setattr(hosts, "proc_value", lambda path, key: "2 kB")
    assert hosts.available_memory() == 2048


def test_free_address_space_is_what_limits_leave() -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))\n"
    code += "from hybridnn.comm.hosts import free_address_space; print(free_address_space())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 2**32 < float(done.stdout) < 2**33


def test_value_of_a_file_of_proc_is_the_first_one(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: First: 2 GHz\nmodel name\t: Second\n")
    assert proc_value(tmp_path / "cpuinfo", "model name") == "First: 2 GHz"
    assert proc_value(tmp_path / "cpuinfo", "model") == ""
    assert proc_value(tmp_path / "none", "model name") == ""
