"""The installed packages as wheels, so that Gradescope grades with exactly this version."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import hybridnn
import hybridnn_course
from hybridnn._version import __version__
from hybridnn.errors import EnvironmentProblem
from hybridnn.utils.files import shipped_folder
from hybridnn_course.work_folder import make_archive

DISTRIBUTIONS = {
    "hybridnn": {
        "hybridnn": Path(hybridnn.__file__).parent,
        "hybridnn/datasets": shipped_folder("datasets"),
        "hybridnn/hpc_jobs": shipped_folder("hpc_jobs"),
    },
    "hybridnn_course": {"hybridnn_course": Path(hybridnn_course.__file__).parent},
    "hybridnn_course_staff": {"hybridnn_course_staff": Path(__file__).parent},
}
"""Folders of each distribution, by their places in its wheel."""

WHEEL = "Wheel-Version: 1.0\nGenerator: hybridnn\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def installed_wheels() -> dict[str, bytes]:
    """Wheels of this installation, by their names; equal files make equal bytes."""
    wheels = (_wheel(name, folders) for name, folders in DISTRIBUTIONS.items())
    return {f"{name}-{__version__}-py3-none-any.whl": wheel for name, wheel in zip(DISTRIBUTIONS, wheels, strict=True)}


def _wheel(name: str, folders: Mapping[str, Path]) -> bytes:
    try:
        installed = distribution(name)
        metadata = installed.read_text("METADATA") or installed.read_text("PKG-INFO")  # the second: beside the sources
    except PackageNotFoundError:
        metadata = None
    if metadata is None:
        raise EnvironmentProblem(f"{name} is not installed by pip here: name what Gradescope installs instead")
    lines = [f"Version: {__version__}" if line.startswith("Version: ") else line for line in metadata.split("\n")]
    files = dict(sorted(_files(folders)))
    info = f"{name}-{__version__}.dist-info"
    files |= {
        f"{info}/METADATA": "\n".join(lines).encode(),
        f"{info}/WHEEL": WHEEL.encode(),
        f"{info}/entry_points.txt": (installed.read_text("entry_points.txt") or "").encode(),
    }
    record = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    return make_archive(files)


def _files(folders: Mapping[str, Path]) -> Iterator[tuple[str, bytes]]:
    for place, root in folders.items():
        for folder, children, names in os.walk(root, followlinks=True):
            children[:] = sorted(name for name in children if name != "__pycache__")
            for name in names:
                path = Path(folder, name)
                if path.suffix != ".pyc":
                    yield f"{place}/{path.relative_to(root).as_posix()}", path.read_bytes()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
