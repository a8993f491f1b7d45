"""The environment of the tests does not depend on the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hermetic import LAUNCHERS, isolate, needs_the_machine, path_without_launchers


def _programs(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\necho {name} of {folder}\n")
        (folder / name).chmod(0o755)
    return folder


def test_launchers_of_the_machine_are_not_found_and_other_programs_are(tmp_path: Path) -> None:
    own = _programs(tmp_path / "env", "mpirun")
    machine = _programs(tmp_path / "machine with blanks", "srun", "sinfo", "mpirun", "sed")
    plain = _programs(tmp_path / "plain", "awk")
    path = path_without_launchers(f"{machine}:{plain}:{tmp_path}/none:{own}", _programs(tmp_path / "links"), own)
    assert shutil.which("mpirun", path=path) == str(own / "mpirun")
    assert [shutil.which(name, path=path) for name in ("srun", "sinfo")] == [None, None]
    assert shutil.which("awk", path=path) == str(plain / "awk")
    said = subprocess.run(["sed"], env={"PATH": path}, capture_output=True, text=True, check=True).stdout
    assert said == f"sed of {machine}\n"


def test_the_home_folder_is_empty_and_no_job_surrounds_the_tests(tmp_path: Path) -> None:
    environment = {"HOME": "/home/someone", "PATH": os.defpath, "SLURM_JOB_ID": "7", "XDG_CONFIG_HOME": "/etc"}
    isolate(environment, tmp_path)
    assert list(Path(environment["HOME"]).iterdir()) == []
    assert not {"SLURM_JOB_ID", "XDG_CONFIG_HOME"} & set(environment)
    assert environment["PIP_CACHE_DIR"] == "/home/someone/.cache/pip"


@pytest.mark.parametrize(
    ("markers", "needed"),
    [("slurm", True), ("cluster or x", True), ("not slow and not gpu", False), ("", False)],
)
def test_the_machine_is_needed_where_a_marker_asks_for_it(markers: str, needed: bool) -> None:
    assert needs_the_machine(markers) is needed


def test_this_process_finds_no_launcher_but_its_own(pytestconfig: pytest.Config) -> None:
    if needs_the_machine(pytestconfig.option.markexpr):
        pytest.skip("the tests of Slurm and of nodes use the machine's launchers")
    found = {name: path for name in LAUNCHERS if (path := shutil.which(name)) is not None}
    assert {Path(path).parent for path in found.values()} <= {Path(sys.executable).parent}
