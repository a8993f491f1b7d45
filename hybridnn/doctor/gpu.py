"""CuPy, the GPUs it finds, and whether MPI takes arrays that lie on a GPU; what may crash runs in a child."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hybridnn.comm.launcher import without_launcher
from hybridnn.diagnostics.device_mpi_trial import try_device_mpi
from hybridnn.doctor.finding import Finding
from hybridnn.utils.processes import ChildResult, run_child
from hybridnn.utils.text import format_bytes

CHILD_SECONDS = 30.0
LITTLE_FREE = 0.1
"""Part of a GPU's memory below which another process surely holds it."""

RunChild = Callable[..., ChildResult]


@dataclass(frozen=True)
class Gpus:
    """What is known of CuPy and the GPUs.

    Attributes
    ----------
    installed : bool
        Whether there is a CuPy to import.
    driver_present : bool
        Whether the system has NVIDIA's driver, and so most likely a GPU.
    problem : str
        Why CuPy could not say more; empty if it could.
    found : mapping
        What `hybridnn.doctor.gpu_devices` says.
    """

    installed: bool
    driver_present: bool
    problem: str
    found: Mapping[str, Any]


def look_for_gpus(environment: Mapping[str, str], run: RunChild = run_child) -> Gpus:
    """Ask CuPy in a child process, unless it is not installed.

    Parameters
    ----------
    environment : mapping
        Of this process: which GPUs it may see.
    run : callable
        As `run_child`.
    """
    driver_present = Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()
    if find_spec("cupy") is None:
        return Gpus(False, driver_present, "", {})
    end = run([sys.executable, "-m", "hybridnn.doctor.gpu_devices"], CHILD_SECONDS, without_launcher(environment))
    if end.code != 0 or end.timed_out:
        return Gpus(True, driver_present, f"a process that only asked CuPy for its devices {end.summary}", {})
    try:
        return Gpus(True, driver_present, "", json.loads(end.output))
    except ValueError:
        return Gpus(True, driver_present, "CuPy's answer cannot be read", {})


def check_cupy(gpus: Gpus) -> Finding:
    """Whether CuPy is there, where there is a GPU for it."""
    install = "pip install 'hybridnn[cuda12]' or 'hybridnn[cuda13]', as nvidia-smi names the version"
    if not gpus.installed:
        if gpus.driver_present:
            return Finding("CuPy", "warning", "not installed, although there is an NVIDIA driver", install)
        return Finding("CuPy", "ok", "not installed; only a GPU needs it", install)
    if gpus.problem:
        return Finding(
            "CuPy", "failure" if gpus.driver_present else "warning", gpus.problem, f"reinstall it: {install}"
        )
    return Finding("CuPy", "ok", f"CuPy {gpus.found['cupy']}, CUDA runtime {_version(gpus.found['runtime'])}")


def check_gpus(gpus: Gpus) -> Finding | None:
    """Which GPUs there are, and whether their memory is free; None where CuPy cannot say."""
    if not gpus.found:
        return None
    driver, devices = gpus.found["driver"], gpus.found["devices"]
    if not driver:
        advice = "install NVIDIA's driver, or ask Slurm for a GPU (--gres=gpu:1)" if gpus.driver_present else ""
        return Finding("GPU", "warning" if gpus.driver_present else "ok", "CuPy finds no driver", advice)
    if not devices:
        advice = "ask Slurm for a GPU (--gres=gpu:1), and see that CUDA_VISIBLE_DEVICES is not empty"
        return Finding("GPU", "warning", f"driver for CUDA {_version(driver)}, but no device", advice)
    named = ", ".join(f"{device['name']} ({format_bytes(device['total'], binary=True)})" for device in devices)
    what = f"{len(devices)}: {named}; driver for CUDA {_version(driver)}"
    full = [str(index) for index, device in enumerate(devices) if device["free"] < LITTLE_FREE * device["total"]]
    if full:
        what += f"; the memory of device {', '.join(full)} is nearly full"
        return Finding("GPU", "warning", what, "another process holds it (nvidia-smi): choose by CUDA_VISIBLE_DEVICES")
    return Finding("GPU", "ok", what)


def check_device_mpi(gpus: Gpus, environment: Mapping[str, str], run: RunChild = run_child) -> Finding | None:
    """Whether MPI sends an array that lies on a GPU; None without a GPU.

    Parameters
    ----------
    gpus : Gpus
    environment : mapping
        Of this process.
    run : callable
        As `run_child`.
    """
    if not gpus.found.get("devices"):
        return None
    trial = try_device_mpi(environment, CHILD_SECONDS, run=run)
    if not trial.problem:
        return Finding("device-aware MPI", "ok", f"messages from GPU memory to GPU memory arrived, {trial.endpoints}")
    advice = "let arrays travel through the host's memory, or use an MPI library built with CUDA"
    return Finding("device-aware MPI", "warning", f"{trial.problem} ({trial.endpoints})", advice)


def _version(number: int) -> str:
    """CUDA's numbers: 13020 is 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"
