"""The distribution hybridnn-course-staff: solutions and grading of the class kit, of the same version as hybridnn."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent


def version() -> str:
    """Return the version of hybridnn in the checkout; in a source archive, that of the archive."""
    source = HERE.parents[1] / "hybridnn" / "_version.py"
    path, pattern = (source, r'^__version__ = "(.+)"$') if source.exists() else (HERE / "PKG-INFO", r"^Version: (.+)$")
    found = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{path} holds no version")
    return found.group(1)


setup(
    name="hybridnn-course-staff",
    version=version(),
    description="Solutions, known mistakes and grading of the assignments of hybridnn-course",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="the hybridnn authors",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=find_packages(include=["hybridnn_course_staff", "hybridnn_course_staff.*"]),
    package_dir={"": "."},  # so that an editable install is a .pth file, which type checkers follow
    package_data={"": ["py.typed", "guide.toml", "handout.md", "mistakes.toml", "templates/*", "right/*/*"]},
    install_requires=[f"hybridnn-course=={version()}"],
    entry_points={"hybridnn_course.commands": ["staff = hybridnn_course_staff.cli.commands:add_commands"]},
    zip_safe=False,
)
