"""Trainings on the emulated GPU, against the references and the CPU."""

from dataclasses import replace
from typing import Any

from mpi4py import MPI

from hybridnn import ProcessGrid
from hybridnn.gpu.device import Device
from hybridnn.gpu.engine import GpuDevice, StepCapture
from hybridnn.gpu.setup import TransportFactory
from hybridnn.nn.activations import ACTIVATIONS
from hybridnn.training.device import TrainingDevice
from reference.cases import OPTIMIZERS, Case, assert_arrays_close, check_against_reference, run
from reference.emulated_device import EmulatedCupy

CHUNK_BYTES = 200
"""Small, so that most arrays travel in several pieces."""


def emulated(
    grid: ProcessGrid,
    transport: Any = "staging",
    comm: MPI.Intracomm | None = None,
    free: int = 1 << 40,
    *,
    graphs: bool | str = False,
) -> GpuDevice:
    """A device for the ranks of a grid. NCCL can connect the ranks of `comm` if the grid has one axis."""
    cupy = EmulatedCupy(comm, free)
    device = Device(cupy, CHUNK_BYTES)
    grid.attach_device(TransportFactory(transport, device))
    kernels = cupy.kernels(progress=device.progress if grid.size > 1 else None)
    capture = StepCapture(kernels.record, required=graphs is True) if graphs else None
    return GpuDevice(kernels, "gpu", "emulated", transport, "requested", capture)


def cupy_of(device: TrainingDevice) -> EmulatedCupy:
    cupy: EmulatedCupy = device.kernels._cupy  # type: ignore[attr-defined]
    return cupy


EXACTLY = 1e-12
CLIPPED = Case(clip_norm=0.05)
CASES = {
    **{name: Case(optimizer=name, schedule="cosine") for name in OPTIMIZERS},
    **{name: Case(classification=False, optimizer="adam", activation=name) for name in ACTIVATIONS},
    "clipped": CLIPPED,
    "clipped adamw": Case(optimizer="adamw", schedule="warmup-linear", clip_norm=0.05),
    "residual": Case((6, 6, 6, 4), residual=True, optimizer="nesterov", activation="relu"),
    "residual selu": Case((6, 8, 8, 8, 4), residual=True, activation="selu", clip_norm=0.05),
    "one output": Case((5, 3, 1), classification=False, optimizer="dampened", schedule="step", samples=41),
}
SPLIT = replace(CASES["residual"], model_split="alternating")


def check(case: Case, grid: ProcessGrid, device: TrainingDevice) -> None:
    """The reference says what is right; the CPU does the same to the last digits."""
    trainer = check_against_reference(case, grid, device=device)
    on_cpu = run(replace(case, shared_replicas=False), grid, device="cpu")
    assert_arrays_close(trainer.weights(), on_cpu.weights(), str(case), EXACTLY)
