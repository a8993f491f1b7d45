"""Load by others: made-up counters of the system and shares of ranks, a real busy loop, and ranks in one process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hybridnn.comm import hosts
from hybridnn.comm.hosts import BOOT_ID, LoadMeter, NodeLoad, busy_seconds, counters_id, loads_of, node_loads
from hybridnn.in_process import run_ranks
from hybridnn.parallel.grid import all_ranks_group
from mpi_runner.slowness import deadline

STAT = """cpu  1000 20 300 9000 50 6 7 40 0 0
cpu0 600 10 200 4000 20 6 7 30 5 0
cpu7 400 10 100 5000 30 0 0 10 0 0
intr 12 0 0
ctxt 12
"""


def test_busy_seconds_are_those_of_programs_the_kernel_and_other_virtual_machines() -> None:
    assert busy_seconds(STAT, 100) == {0: 8.4, 7: 5.2}
    assert busy_seconds("cpu0 1 2 3\n\nnothing\n", 100) == {}


def test_meter_counts_the_time_since_its_last_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, own = iter([10.0, 12.0, 14.0, 14.5]), iter([1.0, 2.5, 2.5, 2.5])
    monkeypatch.setattr(hosts.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(hosts.time, "process_time", lambda: next(own))
    monkeypatch.setattr(hosts.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(hosts, "CPU_COUNTERS", tmp_path / "stat")
    (tmp_path / "stat").write_text(STAT)
    meter = LoadMeter()
    (tmp_path / "stat").write_text(STAT.replace("cpu0 600", "cpu0 780").replace("cpu7 400 10", "cpu7 400 60"))
    busy, of_this_process = meter.read()
    assert (busy, of_this_process) == ({0: pytest.approx(0.895), 7: pytest.approx(0.245)}, 0.75), "less a unit"
    assert meter.read() == ({0: 0.0, 7: 0.0}, 0.0)
    (tmp_path / "stat").unlink()
    assert meter.read() == ({}, 0.0)


@pytest.mark.skipif(not hosts.CPU_COUNTERS.exists(), reason="the system does not count the time of its cores")
def test_a_busy_loop_is_seen() -> None:
    core = min(os.sched_getaffinity(0))
    loop = subprocess.Popen(
        [sys.executable, "-c", "while True: pass"], preexec_fn=lambda: os.sched_setaffinity(0, {core})
    )
    try:
        end = time.monotonic() + deadline(20)
        meter, busy = LoadMeter(), 0.0
        while busy < 0.7 and time.monotonic() < end:
            time.sleep(0.5)
            shares, own = meter.read()
            busy = shares[core]
        assert busy >= 0.7
        assert own < 0.5
    finally:
        loop.kill()
        loop.wait()


def _rank(counters: str, own: float, cores: list[int], busy: dict[str, float] | None = None) -> dict[str, Any]:
    return {"counters": counters, "own": own, "cores": cores, "threads": 1, "busy": busy or {}}


def test_others_are_the_busy_cores_less_those_of_the_ranks() -> None:
    first = _rank("a", 0.5, [0], {"0": 1.0, "1": 0.75, "2": 1.0})
    loads = loads_of([first, _rank("a", 0.75, [1]), _rank("b", 1.25, [0, 1], {"0": 0.5, "1": 0.5})])
    assert loads == (NodeLoad(0.5, 2, 2), NodeLoad(0.0, 2, 1))
    assert loads_of([first, _rank("b", 1.0, [0])]) == ()


def test_ranks_on_other_nodes_of_a_kernel_are_none_of_the_others() -> None:
    """As on nodes made of namespaces, where the first rank of each reads the same counters."""
    busy = {"0": 1.0, "1": 1.0}
    (load,) = loads_of([_rank("a", 0.5, [0, 1], busy) for _ in range(4)])
    assert load == NodeLoad(0.0, 2, 4)


@pytest.mark.skipif(not BOOT_ID.exists(), reason="the system has no identity of its kernel")
def test_nodes_with_other_names_have_the_counters_of_their_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    before = counters_id()
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    assert counters_id() == before
    monkeypatch.setattr("hybridnn.comm.hosts.BOOT_ID", Path("none"))
    assert counters_id() == "another"


@pytest.mark.parametrize(
    ("load", "disturbance"),
    [
        (NodeLoad(1.0, cores=2, threads=2), 0.5),
        (NodeLoad(1.0, cores=2, threads=1), 0.0),  # the others have a core of their own
        (NodeLoad(1.5, cores=2, threads=1), 0.5),
        (NodeLoad(0.0, cores=2, threads=4), 0.0),  # the ranks disturb each other
        (NodeLoad(0.5, cores=2, threads=4), 0.25),
    ],
)
def test_others_disturb_where_they_take_more_than_the_free_cores(load: NodeLoad, disturbance: float) -> None:
    assert load.disturbance == disturbance


def test_ranks_in_one_process_have_no_load_of_their_own() -> None:
    def load(comm: Any) -> object:
        group = all_ranks_group(comm)
        return node_loads(group, group, LoadMeter(), 1)

    assert run_ranks(2, load).results == ((), ())
