"""Nodes and their ranks: processors, memory, BLAS threads, and the load by others."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from threadpoolctl import threadpool_info, threadpool_limits

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.comm.threads import LARGE_PRODUCT, THREAD_VARIABLES, BlasThreads, limit_blas_threads
from hybridnn.diagnostics import hosts
from hybridnn.diagnostics.hosts import (
    BOOT_ID,
    LoadMeter,
    NodeLoad,
    busy_seconds,
    counters_id,
    describe_binding,
    describe_hosts,
    loads_of,
    node_loads,
)
from hybridnn.in_process import run_ranks
from hybridnn.parallel.grid import all_ranks_group
from hybridnn.utils import memory
from hybridnn.utils.memory import proc_value
from mpi_runner.slowness import deadline


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
        ([(4, [0]), (4, [1])], "1 core per rank: 0; 1"),
        ([(4, [0]), (4, [0])], "1 core per rank: 0"),
        ([(8, [0, 1, 4]), (8, [2, 3, 6])], "3 cores per rank: 0, 1, 4; 2, 3, 6"),
        ([(8, [0, 1]), (8, range(8))], "2-8 cores per rank: 0, 1"),
        ([(16, [n]) for n in range(10)], "1 core per rank: 0; 1; 2; 3; 4; 5; 6; 7; …"),
    ],
)
def test_binding_names_the_cores_of_a_rank(ranks: list[tuple[int, list[int]]], text: str) -> None:
    assert describe_binding(ranks) == text


@pytest.mark.parametrize("version", [1, 2])
def test_available_memory_is_within_the_limits_of_control_groups(version, tmp_path, monkeypatch) -> None:
    root = tmp_path / "memory" if version == 1 else tmp_path
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    line, total = ("7:memory:/job/step", "total_") if version == 1 else ("0::/job/step", "")
    text = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda it, **how: line if it.parts[:2] == ("/", "proc") else text(it, **how))
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "proc_value", lambda path, key: "1000 kB")
    assert memory.available_memory() == 1_024_000
    for folder, limit, used in ((root / "job", "9000", 4000), (root / "job" / "step", "max", 100)):
        folder.mkdir(parents=True)
        for name, value in zip(names, (limit, used), strict=True):
            (folder / name).write_text(f"{value}\n")
        (folder / "memory.stat").write_text(f"anon 5\n{total}inactive_file 700\n{total}active_file 80\n")
    assert memory.available_memory() == 9000 - 4000 + 700 + 80
    monkeypatch.setattr(memory, "proc_value", lambda path, key: "2 kB")
    assert memory.available_memory() == 2048


def test_free_address_space_is_what_limits_leave() -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))\n"
    code += "from hybridnn.utils.memory import free_address_space; print(free_address_space())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 2**32 < float(done.stdout) < 2**33


def test_value_of_a_file_of_proc_is_the_first_one(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: First: 2 GHz\nmodel name\t: Second\n")
    assert proc_value(tmp_path / "cpuinfo", "model name") == "First: 2 GHz"
    assert proc_value(tmp_path / "cpuinfo", "model") == ""
    assert proc_value(tmp_path / "none", "model name") == ""


@pytest.fixture
def no_variable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No setting of the user, and as many BLAS threads as cores; restores the number of threads."""
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with threadpool_limits(limits=len(os.sched_getaffinity(0)), user_api="blas"):
        yield


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.usefixtures("no_variable")
def test_ranks_of_a_node_share_its_cores(comm: MPI.Intracomm) -> None:
    cores = set().union(*comm.allgather(os.sched_getaffinity(0)))
    found = limit_blas_threads(ProcessGrid(comm).node_group, 1 << 40)
    expected = max(1, len(cores) // comm.size)
    assert (found.count, blas_threads()) == (expected, {expected})


@pytest.mark.usefixtures("no_variable")
def test_one_process_uses_one_thread_for_small_products_and_its_cores_for_large_ones() -> None:
    grid, cores = ProcessGrid(), len(os.sched_getaffinity(0))
    for size, expected in ((LARGE_PRODUCT, 1), (LARGE_PRODUCT + 1, cores), (0, 1)):
        found = limit_blas_threads(grid.node_group, size)
        assert (found.count, blas_threads()) == (expected, {expected})
        assert found.why.startswith("small products" if size <= LARGE_PRODUCT else f"large products, {cores} core")


@pytest.mark.usefixtures("no_variable")
def test_threads_follow_from_the_network_and_not_from_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a repeated training would not be bit-identical."""
    seen = []
    for load in (0.0, 99.0):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load,) * 3)
        trainer = Trainer(MLP([16, 64, 4], "relu"), SGD(lr=0.1), batch_size=32)
        seen.append((trainer.threads, blas_threads()))
    assert seen == [(BlasThreads(1, "small products"), {1})] * 2
    wide = Trainer(MLP([1024, 1024, 4], "relu"), SGD(lr=0.1), batch_size=257)
    assert wide.threads.count == len(os.sched_getaffinity(0))
    assert np.isfinite(next(iter(wide.weights().values()))).all()


def test_a_variable_is_given_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    before = blas_threads()
    assert limit_blas_threads(ProcessGrid().node_group).why == "OMP_NUM_THREADS=3"
    assert blas_threads() == before


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
    monkeypatch.setattr("hybridnn.diagnostics.hosts.BOOT_ID", Path("none"))
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
