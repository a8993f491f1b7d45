"""Settings of Open MPI in a single process."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys

import pytest

from hybridnn.comm.mpi import COMMUNICATION, LAUNCHED, set_rank_settings, single_process_settings
from mpi_runner.slowness import deadline

BTL = "OMPI_MCA_btl"


def settings(environment: dict[str, str]) -> dict[str, str]:
    """The environment in which MPI is initialized."""
    before = dict(environment)
    with single_process_settings(environment):
        found = dict(environment)
    assert environment == before
    return found


def test_shared_memory_is_excluded_without_a_launcher() -> None:
    own = {BTL: COMMUNICATION[BTL]}
    assert settings(own) == {BTL: "^ofi,sm"}
    assert settings({BTL: "tcp,self"}) == {BTL: "tcp,self"}
    assert settings({}) == {}
    for name in LAUNCHED:
        assert settings(own | {name: "0"}) == own | {name: "0"}


def test_the_variable_is_restored_after_an_error() -> None:
    environment = {BTL: COMMUNICATION[BTL]}
    with pytest.raises(ImportError), single_process_settings(environment):
        raise ImportError
    assert environment == {BTL: COMMUNICATION[BTL]}


def test_home_is_set_also_for_a_user_whom_the_system_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    for known, expected in ((True, pwd.getpwuid(os.getuid()).pw_dir), (False, "/")):
        if not known:
            monkeypatch.setattr("os.path.expanduser", lambda path: path)
        environment: dict[str, str] = {}
        set_rank_settings(environment)
        assert environment["HOME"] == expected


PROGRAM = """
import os
from hybridnn import ProcessGrid
assert ProcessGrid().size == 1
print([line.split()[-1] for line in open("/proc/self/maps") if "/dev/shm/" in line])
print(os.environ["OMPI_MCA_btl"])
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="this system does not list what a process maps")
@pytest.mark.parametrize("home", [{}, {"HOME": "/none/such"}])
def test_a_single_process_needs_no_home_and_maps_no_file_of_shared_memory(home: dict[str, str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in (*LAUNCHED, BTL, "HOME")} | home
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=deadline(60),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[]\n^ofi\n"
