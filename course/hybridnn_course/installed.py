"""The installed packages as wheels, so that Gradescope grades with exactly this version."""

from __future__ import annotations

import base64
import hashlib
import importlib
import os
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from hybridnn._version import __version__
from hybridnn.errors import EnvironmentProblem
from hybridnn_course.work_folder import make_archive

DISTRIBUTIONS = {
    "hybridnn": ("hybridnn", "hybridnn.datasets", "hybridnn.hpc_jobs"),
    "hybridnn_course": ("hybridnn_course",),
}
"""Packages of each distribution, whose folders need not lie inside each other."""

WHEEL = "Wheel-Version: 1.0\nGenerator: hybridnn\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def installed_wheels() -> dict[str, bytes]:
    """Wheels of this installation, by their names; equal files make equal bytes."""
    wheels = (_wheel(name, packages) for name, packages in DISTRIBUTIONS.items())
    return {f"{name}-{__version__}-py3-none-any.whl": wheel for name, wheel in zip(DISTRIBUTIONS, wheels, strict=True)}


def _wheel(name: str, packages: Sequence[str]) -> bytes:
    try:
        installed = distribution(name)
        metadata = installed.read_text("METADATA") or installed.read_text("PKG-INFO")  # the second: beside the sources
    except PackageNotFoundError:
        metadata = None
    if metadata is None:
        raise EnvironmentProblem(f"{name} is not installed by pip here: name what Gradescope installs instead")
    lines = [f"Version: {__version__}" if line.startswith("Version: ") else line for line in metadata.split("\n")]
    files = dict(sorted(_files(packages)))
    info = f"{name}-{__version__}.dist-info"
    files |= {
        f"{info}/METADATA": "\n".join(lines).encode(),
        f"{info}/WHEEL": WHEEL.encode(),
        f"{info}/entry_points.txt": (installed.read_text("entry_points.txt") or "").encode(),
    }
    record = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    return make_archive(files)


def _files(packages: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for package in packages:
        for root in importlib.import_module(package).__path__:
            for folder, folders, names in os.walk(root, followlinks=True):
                folders[:] = sorted(name for name in folders if name != "__pycache__")
                for name in names:
                    path = Path(folder, name)
                    if path.suffix != ".pyc":
                        inside = path.relative_to(root).as_posix()
                        yield f"{package.replace('.', '/')}/{inside}", path.read_bytes()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
