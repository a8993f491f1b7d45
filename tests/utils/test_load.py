"""Load of a node: made-up counters of the system, and a real busy loop."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hybridnn.utils import load
from hybridnn.utils.load import LoadMeter, busy_seconds
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
    monkeypatch.setattr(load.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(load.time, "process_time", lambda: next(own))
    monkeypatch.setattr(load.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(load, "CPU_COUNTERS", tmp_path / "stat")
    (tmp_path / "stat").write_text(STAT)
    meter = LoadMeter()
    (tmp_path / "stat").write_text(STAT.replace("cpu0 600", "cpu0 780").replace("cpu7 400 10", "cpu7 400 60"))
    busy, of_this_process = meter.read()
    assert (busy, of_this_process) == ({0: pytest.approx(0.895), 7: pytest.approx(0.245)}, 0.75), "less a unit"
    assert meter.read() == ({0: 0.0, 7: 0.0}, 0.0)
    (tmp_path / "stat").unlink()
    assert meter.read() == ({}, 0.0)


@pytest.mark.skipif(not load.CPU_COUNTERS.exists(), reason="the system does not count the time of its cores")
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
