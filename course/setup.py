"""The distribution hybridnn-course: the class kit, of the same version as hybridnn."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent


def version() -> str:
    """Return the version of hybridnn in the checkout; in a source archive, that of the archive."""
    source = HERE.parent / "hybridnn" / "_version.py"
    path, pattern = (source, r'^__version__ = "(.+)"$') if source.exists() else (HERE / "PKG-INFO", r"^Version: (.+)$")
    found = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{path} holds no version")
    return found.group(1)


setup(
    name="hybridnn-course",
    version=version(),
    description="Assignments for a class on parallel training, checked and graded with hybridnn",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="the hybridnn authors",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=find_packages(include=["hybridnn_course", "hybridnn_course.*"]),
    package_dir={"": "."},  # so that an editable install is a .pth file, which type checkers follow
    package_data={"hybridnn_course": ["py.typed"]},
    install_requires=[f"hybridnn=={version()}"],
    entry_points={"hybridnn.commands": ["course = hybridnn_course.cli.app:app"]},
    zip_safe=False,
)
