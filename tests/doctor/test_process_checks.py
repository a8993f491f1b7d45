"""Checks of one process: software, folders, and GPUs as constructed outputs of the child process."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from hybridnn.comm.launcher import without_launcher
from hybridnn.doctor import process_checks
from hybridnn.doctor.process_checks import (
    OTHER_CACHE,
    OTHER_FOLDER,
    GpuFacts,
    check_blas,
    check_cupy,
    check_folder,
    check_gpus,
    check_packages,
    check_python,
    check_shared_memory,
    find_gpus,
)
from hybridnn.doctor.report import Finding
from hybridnn.utils.processes import ChildResult, run_child
from mpi_runner.slowness import deadline
from reference.findings import expect

MUCH, LITTLE = 1 << 40, 1 << 20


def test_folders_and_free_space(tmp_path: Path) -> None:
    """The text is the same while other programs write."""
    found = check_folder(tmp_path, OTHER_FOLDER, lambda path: MUCH)
    expect(found, "ok", "1 TiB free")
    assert found.advice == ""
    expect(check_folder(tmp_path / "not" / "yet", OTHER_FOLDER, lambda path: MUCH), "ok")
    assert list(tmp_path.iterdir()) == []
    for check in (lambda *where: check_folder(where[0], OTHER_FOLDER, where[1]), check_shared_memory):
        one, other = (check(tmp_path, lambda path, room=room: room) for room in (23_500_000_000, 23_400_000_000))
        assert one == other
        expect(one, "ok", "at least 16 GiB free")
    assert "at least 0 B free" in check_folder(tmp_path, OTHER_FOLDER, lambda path: 0).what
    expect(check_folder(tmp_path, OTHER_FOLDER, lambda path: LITTLE), "warning", "1 MiB free")
    # Containers have 64 MiB of shared memory unless asked.
    expect(check_shared_memory(tmp_path, lambda path: 64 << 20), "warning")
    assert check_shared_memory(tmp_path / "none") is None


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


def test_python_and_packages() -> None:
    assert check_python((3, 9, 18)).verdict == "failure"
    assert check_python((3, 10, 0)).verdict == "ok"
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


def test_blas() -> None:
    pool = {"user_api": "blas", "internal_api": "openblas", "version": "0.3.30", "num_threads": 2}
    assert "openblas 0.3.30" in check_blas([pool, {"user_api": "openmp"}]).what
    assert check_blas([{"user_api": "openmp"}]).verdict == "warning"


DEVICE = {"name": "H200", "free": 100 << 30, "total": 139 << 30}
FOUND = {"cupy": "14.2.0", "driver": 13000, "runtime": 13020, "devices": [DEVICE]}


def gpus(driver: bool = True, **changes: Any) -> GpuFacts:
    return GpuFacts(True, driver, "", FOUND | changes)


def ends(code: int = 0, output: str = "", errors: str = "", timed_out: bool = False) -> Any:
    return lambda *arguments: ChildResult(code, output, errors, timed_out)


def test_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_checks, "find_spec", lambda name: None)
    looked = find_gpus(os.environ, run=lambda *arguments: pytest.fail("nothing to ask"))
    assert not looked.installed
    expect(check_cupy(GpuFacts(False, False, "", {})), "ok", "", "pip install 'hybridnn[cuda12]'")
    expect(check_cupy(GpuFacts(False, True, "", {})), "warning")
    assert check_gpus(looked) is None


def test_output_of_the_child_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_checks, "find_spec", lambda name: object())
    assert find_gpus({}, ends(output=json.dumps(FOUND))).found == FOUND
    for end, text in (
        (ends(code=-11), "SIGSEGV"),
        (ends(code=1, errors="ImportError: libcuda"), "ImportError: libcuda"),
        (ends(timed_out=True, code=-9), "in time"),
        (ends(output="no JSON"), "cannot be read"),
    ):
        looked = find_gpus({}, end)
        found = check_cupy(looked)
        assert found.verdict != "ok"
        assert text in found.what
        assert check_gpus(looked) is None
    expect(check_cupy(gpus()), "ok", "CuPy 14.2.0, CUDA runtime 13.2")


@pytest.mark.parametrize(
    ("found", "verdict", "text"),
    [
        (gpus(), "ok", "1: H200 (139 GiB)"),
        (gpus(devices=[DEVICE, DEVICE | {"free": 1 << 30}]), "warning", "device 1 is nearly full"),
        (gpus(devices=[]), "warning", "no device"),
        (gpus(driver=False, devices=[]), "warning", "no device"),
        (GpuFacts(True, False, "", FOUND | {"driver": 0, "devices": []}), "ok", "no driver"),
        (GpuFacts(True, True, "", FOUND | {"driver": 0, "devices": []}), "warning", "no driver"),
    ],
)
def test_gpus(found: GpuFacts, verdict: str, text: str) -> None:
    expect(check_gpus(found), verdict, text)


def test_the_program_of_the_child_reports_a_missing_cupy() -> None:
    module = "hybridnn.doctor.process_checks"
    code = f"import sys; sys.modules['cupy'] = None; import runpy; runpy.run_module({module!r}, run_name='__main__')"
    end = run_child([sys.executable, "-c", code], 60, without_launcher(os.environ))
    assert end.code == 1
    assert "cupy" in (end.output + end.errors).splitlines()[-1]
