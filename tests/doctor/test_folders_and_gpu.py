"""Folders, children, figures of messages, and GPUs that are described, not there."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hybridnn.comm.launcher import without_launcher
from hybridnn.doctor import gpu
from hybridnn.doctor.communication import SIZES, judge_all_reduce, judge_ping_pong
from hybridnn.doctor.node import check_cache_folder, check_shared_memory_room, check_working_folder
from hybridnn.doctor.probes import Timing
from hybridnn.utils.processes import ChildResult, run_child
from mpi_runner.slowness import deadline

MUCH, LITTLE = 1 << 40, 1 << 20


def test_folders_that_can_be_written_to(tmp_path: Path) -> None:
    found = check_working_folder(tmp_path, lambda path: MUCH)
    assert (found.verdict, found.advice) == ("ok", "")
    assert "1 TiB free" in found.what
    later = tmp_path / "not" / "yet"
    assert check_cache_folder(later, lambda path: MUCH).verdict == "ok"
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_look_while_others_write_find_the_same(tmp_path: Path) -> None:
    for check in (check_working_folder, check_cache_folder, check_shared_memory_room):
        one, other = (check(tmp_path, lambda path, room=room: room) for room in (23_500_000_000, 23_400_000_000))
        assert one == other
        assert one is not None
        assert "at least 16 GiB free" in one.what
    assert "at least 0 B free" in check_working_folder(tmp_path, lambda path: 0).what


def test_a_full_disk(tmp_path: Path) -> None:
    found = check_working_folder(tmp_path, lambda path: LITTLE)
    assert found.verdict == "warning"
    assert "1 MiB free" in found.what


def test_folders_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/1")):
        found = check_cache_folder(folder)
        assert found.verdict == "failure"
        assert str(folder) in found.what
        assert "HYBRIDNN_CACHE" in found.advice


def test_room_in_shared_memory(tmp_path: Path) -> None:
    assert check_shared_memory_room(tmp_path / "none") is None
    for free, verdict in ((MUCH, "ok"), (64 << 20, "warning")):  # containers have 64 MiB unless asked
        found = check_shared_memory_room(tmp_path, lambda path, free=free: free)  # type: ignore[misc]
        assert found is not None
        assert found.verdict == verdict


def test_children_end_as_they_end() -> None:
    end = run_child(["/bin/sh", "-c", "echo out; echo why >&2; exit 4"], 30, {})
    assert (end.code, end.output, end.errors, end.timed_out) == (4, "out\n", "why\n", False)
    assert end.summary == "ended with exit code 4: why"
    assert run_child(["/bin/sh", "-c", "kill -SEGV $$"], 30, {}).summary == "was ended by SIGSEGV"


def test_a_child_that_hangs_is_killed_with_its_children() -> None:
    start = time.monotonic()
    end = run_child(["/bin/sh", "-c", "sleep 3600 & sleep 3600"], 0.2, {"PATH": "/usr/bin:/bin"})
    assert time.monotonic() - start < deadline(30)
    assert end.timed_out
    assert end.summary == "did not end in time"


def test_a_child_is_no_rank() -> None:
    environment = {"PMI_RANK": "1", "OMPI_COMM_WORLD_RANK": "1", "SLURM_PROCID": "1", "PMIX_RANK": "1", "HOME": "/r"}
    kept = {"OMPI_MCA_btl": "^ofi", "CUDA_VISIBLE_DEVICES": "1"}
    assert without_launcher(environment | kept) == {"HOME": "/r"} | kept


def timings(latency: float, bandwidth: float) -> list[Timing]:
    return [Timing(nbytes, max(latency, nbytes / bandwidth)) for nbytes in SIZES]


@pytest.mark.parametrize(
    ("latency", "bandwidth", "within", "verdict", "advice"),
    [
        (1e-6, 1e10, True, "ok", ""),
        (1e-3, 1e10, True, "warning", "shared memory"),
        (1e-6, 1e8, True, "warning", "shared memory"),
        (2e-4, 1e9, False, "ok", ""),
        (1e-6, 1e7, False, "warning", "network"),
    ],
)
def test_ping_pong(latency: float, bandwidth: float, within: bool, verdict: str, advice: str) -> None:
    found = judge_ping_pong(timings(latency, bandwidth), within, crowded=False)
    assert found.verdict == verdict
    assert advice in found.advice
    if verdict == "warning":
        assert "share cores" in judge_ping_pong(timings(latency, bandwidth), within, crowded=True).advice


def test_figures_of_a_ping_pong() -> None:
    found = judge_ping_pong([Timing(8, 2e-6), Timing(1 << 22, 1e-3)], True, crowded=False)
    assert "8 B 2 us, 4 MiB 1 ms one way, 4.19 GB/s" in found.what


def test_all_reduce() -> None:
    # Two ranks send and receive the array once: 4 MiB in 2 ms is 2.1 GB/s.
    found = judge_all_reduce([Timing(8, 2e-6), Timing(1 << 22, 2e-3)], 2, crowded=False)
    assert found.verdict == "ok"
    assert "2.1 GB/s per rank" in found.what
    slow = [Timing(8, 0.1), Timing(1 << 22, 0.2)]
    assert "ping-pong" in judge_all_reduce(slow, 2, crowded=False).advice
    crowded = judge_all_reduce(slow, 2, crowded=True)
    assert crowded.verdict == "warning"
    assert "share cores" in crowded.advice


DEVICE = {"name": "H200", "free": 100 << 30, "total": 139 << 30}
FOUND = {"cupy": "14.2.0", "driver": 13000, "runtime": 13020, "devices": [DEVICE]}


def gpus(driver: bool = True, **changes: Any) -> gpu.Gpus:
    return gpu.Gpus(True, driver, "", FOUND | changes)


def ends(code: int = 0, output: str = "", errors: str = "", timed_out: bool = False) -> Any:
    return lambda *arguments: ChildResult(code, output, errors, timed_out)


def test_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    looked = gpu.look_for_gpus(os.environ, run=lambda *arguments: pytest.fail("nothing to ask"))
    assert not looked.installed
    found = gpu.check_cupy(gpu.Gpus(False, False, "", {}))
    assert found.verdict == "ok"
    assert "pip install 'hybridnn[cuda12]'" in found.advice
    assert gpu.check_cupy(gpu.Gpus(False, True, "", {})).verdict == "warning"
    assert gpu.check_gpus(looked) is None
    assert gpu.check_device_mpi(looked, {}) is None


def test_what_cupy_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: object())
    assert gpu.look_for_gpus({}, ends(output=json.dumps(FOUND))).found == FOUND
    for end, words in (
        (ends(code=-11), "SIGSEGV"),
        (ends(code=1, errors="ImportError: libcuda"), "ImportError: libcuda"),
        (ends(timed_out=True, code=-9), "in time"),
        (ends(output="no JSON"), "cannot be read"),
    ):
        looked = gpu.look_for_gpus({}, end)
        found = gpu.check_cupy(looked)
        assert found.verdict in ("warning", "failure")
        assert words in found.what
        assert gpu.check_gpus(looked) is None
    assert "CuPy 14.2.0, CUDA runtime 13.2" in gpu.check_cupy(gpus()).what


@pytest.mark.parametrize(
    ("looked", "verdict", "words"),
    [
        (gpus(), "ok", "1: H200 (139 GiB)"),
        (gpus(devices=[DEVICE, DEVICE | {"free": 1 << 30}]), "warning", "device 1 is nearly full"),
        (gpus(devices=[]), "warning", "no device"),
        (gpus(driver=False, devices=[]), "warning", "no device"),
        (gpu.Gpus(True, False, "", FOUND | {"driver": 0, "devices": []}), "ok", "no driver"),
        (gpu.Gpus(True, True, "", FOUND | {"driver": 0, "devices": []}), "warning", "no driver"),
    ],
)
def test_gpus(looked: gpu.Gpus, verdict: str, words: str) -> None:
    found = gpu.check_gpus(looked)
    assert found is not None
    assert found.verdict == verdict
    assert words in found.what


def test_device_aware_mpi_may_crash() -> None:
    for end, verdict, words in (
        (ends(), "ok", "arrived"),
        (ends(code=-11), "warning", "SIGSEGV"),
        (ends(code=1, errors="other values"), "warning", "other values"),
        (ends(code=-9, timed_out=True), "warning", "in time"),
    ):
        found = gpu.check_device_mpi(gpus(), {}, end)
        assert found is not None
        assert found.verdict == verdict
        assert words in found.what
    assert gpu.check_device_mpi(gpus(devices=[]), {}, ends()) is None


def test_the_programs_of_the_children_exist_and_say_that_cupy_is_missing() -> None:
    for module in ("hybridnn.doctor.gpu_devices", "hybridnn.diagnostics.device_mpi_probe"):
        code = (
            f"import sys; sys.modules['cupy'] = None; import runpy; runpy.run_module({module!r}, run_name='__main__')"
        )
        end = run_child([sys.executable, "-c", code, "50"], 60, without_launcher(os.environ))
        assert end.code == 1
        assert "cupy" in (end.output + end.errors).splitlines()[-1]
