"""The distribution hybridnn-papers: formulas, maps and studies of the papers, of the same version as hybridnn."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup

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
    description="The papers behind hybridnn: their formulas, maps of the best process grid, and studies",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="the hybridnn authors",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=["hybridnn_papers"],
    package_dir={"": "."},  # so that an editable install is a .pth file, which type checkers follow
    package_data={"hybridnn_papers": ["py.typed", "*.toml", "studies/*.toml"]},
    install_requires=[f"hybridnn=={version()}"],
    entry_points={
        "hybridnn.commands": ["formulas = hybridnn_papers.commands:app"],
        "hybridnn.studies": ["papers = hybridnn_papers"],
    },
    zip_safe=False,
)
