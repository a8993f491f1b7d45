"""Hosts of a job: gathered from the ranks, with their binding as text."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

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


def test_value_of_a_file_of_proc_is_the_first_one(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: First: 2 GHz\nmodel name\t: Second\n")
    assert proc_value(tmp_path / "cpuinfo", "model name") == "First: 2 GHz"
    assert proc_value(tmp_path / "cpuinfo", "model") == ""
    assert proc_value(tmp_path / "none", "model name") == ""
