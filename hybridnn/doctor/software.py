"""Python and the packages hybridnn stands on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import metadata

from hybridnn._version import __version__
from hybridnn.doctor.finding import Finding, Verdict

__all__ = ["check_packages", "check_python"]

LEAST_PYTHON = (3, 10)
LEAST_MAJOR: Mapping[str, int] = {"numpy": 2, "scipy": 1, "mpi4py": 4, "pydantic": 2}
"""Packages whose versions matter, with the first major version that hybridnn works with."""


def check_python(version: tuple[int, ...] = sys.version_info[:3], executable: str = sys.executable) -> Finding:
    """Whether this Python is new enough, and which one it is."""
    what = f"{'.'.join(map(str, version))} ({executable})"
    if version < LEAST_PYTHON:
        return Finding("python", "failure", what, "hybridnn needs Python 3.10 or newer")
    return Finding("python", "ok", what)


def check_packages(version_of: Callable[[str], str] = metadata.version) -> Finding:
    """Whether the packages are there and new enough.

    Parameters
    ----------
    version_of : callable
        Gives the version of a package by its name, or raises ``PackageNotFoundError``.
    """
    found, missing, old = [f"hybridnn {__version__}"], [], []
    for name, least in LEAST_MAJOR.items():
        try:
            version = version_of(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        found.append(f"{name} {version}")
        major = version.split(".")[0]
        if major.isdigit() and int(major) < least:
            old.append(f"'{name}>={least}'")
    if missing or old:
        what = "; ".join(filter(None, [", ".join(found), f"missing: {', '.join(missing)}" if missing else ""]))
        verdict: Verdict = "warning" if [*missing, *old] == ["mpi4py"] else "failure"  # one process needs no MPI
        return Finding("packages", verdict, what, f"pip install --upgrade {' '.join([*missing, *old])}")
    return Finding("packages", "ok", ", ".join(found))
