"""Where CI has a browser, the tests of pages cannot be skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mpi_runner.slowness import deadline

SCRIPT = Path(__file__).resolve().parents[1] / ".ci/browser"


def answer(folder: Path, **programs: str) -> tuple[str, str]:
    """What the script prints where only these programs are installed, given by their text."""
    for name in ("bash", "timeout", "cat", "chmod"):
        (folder / name).symlink_to(shutil.which(name) or name)
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    done = subprocess.run(
        ["bash", str(SCRIPT)],
        env={**os.environ, "PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=deadline(60),
        check=True,
    )
    return done.stdout, done.stderr


INSTALLS = """echo "$@" >> "{log}"
if [[ $1 == install ]]; then printf '#!/bin/bash\\n' > "{folder}/chromium"; chmod +x "{folder}/chromium"; fi"""


def test_a_browser_that_is_there_is_required(tmp_path: Path) -> None:
    assert answer(tmp_path, chromium="", id="echo 1000") == ("required\n", "")


def test_root_installs_one_and_it_is_required(tmp_path: Path) -> None:
    folder, log = tmp_path / "bin", tmp_path / "log"
    folder.mkdir()
    programs = {"apt-get": INSTALLS.format(log=log, folder=folder), "id": "echo 0"}
    assert answer(folder, **programs) == ("required\n", "")
    assert log.read_text() == "update -qq\ninstall -y -qq --no-install-recommends chromium\n"


@pytest.mark.parametrize(
    ("user", "apt", "reason"),
    [
        ("0", "echo 'Unable to locate package chromium' >&2; exit 100", "Unable to locate package chromium"),
        ("1000", "exit 1", ""),
    ],
)
def test_where_none_can_be_installed_none_is_required(tmp_path: Path, user: str, apt: str, reason: str) -> None:
    assert answer(tmp_path, **{"apt-get": apt, "id": f"echo {user}"}) == (
        "",
        f"no Chromium: {reason}\n" if reason else "",
    )
