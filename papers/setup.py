"""The distribution hybridnn-papers: formulas and maps of the papers, of the same version as hybridnn."""

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
    name="hybridnn-papers",
    version=version(),
    description="The formulas of the papers behind hybridnn, and maps of the best process grid",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="the hybridnn authors",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=find_packages(include=["hybridnn_papers"]),
    install_requires=[f"hybridnn=={version()}"],
    entry_points={"hybridnn.commands": ["formulas = hybridnn_papers.commands:app"]},
    zip_safe=False,
)
