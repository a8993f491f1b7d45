"""The device that trains, the CPU or a GPU of each rank's node, and its engine; `hybridnn.gpu` chooses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from hybridnn.comm.agreement import agree, lowest_rank
from hybridnn.comm.mpi import is_in_process
from hybridnn.errors import SettingError
from hybridnn.nn.kernels import NUMPY, Kernels
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.layout import Layout
from hybridnn.training.config import DeviceOptions, TrainConfig
from hybridnn.training.engine import Engine
from hybridnn.training.layout_choice import choose_sharing, does_not_fit, require_memory

NO_CUPY = "CuPy is not installed; with an NVIDIA GPU: pip install 'hybridnn[cuda12]' or 'hybridnn[cuda13]'"


@dataclass(frozen=True)
class TrainingDevice:
    """A device with compiled kernels, and its transport."""

    kernels: Kernels = field(repr=False)
    kind: str  # the same on every rank
    why: str = field(repr=False)  # name of the device, or the reason for its choice
    transport: str | None = None  # transport of its arrays; None on the CPU, where MPI reads and writes them in place
    transport_why: str = field(default="", repr=False)

    def make_engine(self, config: TrainConfig, grid: ProcessGrid, layout: Layout) -> Engine:
        """Make the engine of a training, with the parameters of `Engine`; collective over the grid.

        Raises `SettingError` on every rank, as `choose_sharing` and `require_memory`.
        """
        layout, sharing = choose_sharing(config, grid, layout, on_host=self.kernels.on_host)
        require_memory(config, grid, layout, self.kernels)

        def make() -> Engine:
            try:
                return self._engine(config, grid, layout, sharing, self.kernels)
            except MemoryError as error:
                raise does_not_fit(config, of_samples=False) from error

        return agree(grid.world, make)

    def _engine(self, *arguments: Any, **options: Any) -> Engine:
        return Engine(*arguments, **options)


def resolve_device(
    device: str | DeviceOptions | TrainingDevice,
    grid: ProcessGrid,
    load: Callable[[], Any] | None = None,
    make: Callable[..., Any] | None = None,
    *,
    class_weight: str | None = None,
) -> TrainingDevice:
    """Choose the device of all ranks and attach its transport to the grid; collective, with no message in flight.

    A name stands for `DeviceOptions` with this name; ``"auto"`` is the CPU if there are class weights. A
    `TrainingDevice` that was chosen for the grid before is returned unchanged: several trainers may share it. With
    NCCL, every call for a grid opens a new connection of the ranks and ends the previous one; `ProcessGrid.disconnect`
    ends the last.

    Raises `EnvironmentProblem` on every rank: a requested device or transport is not available; the message names what
    was found and what to install.
    """
    if isinstance(device, TrainingDevice):
        return device
    options = device if isinstance(device, DeviceOptions) else DeviceOptions(device)
    if options.name == "cpu":
        return TrainingDevice(NUMPY, "cpu", "as requested")
    if options.name == "auto" and class_weight is not None:
        return TrainingDevice(NUMPY, "cpu", "training.class_weight needs the CPU")
    if is_in_process():
        if options.name == "gpu":
            raise SettingError("device.name", options.name, "ranks of one process compute on the CPU: 'auto' or 'cpu'")
        return TrainingDevice(NUMPY, "cpu", "ranks of one process")
    if options.name == "auto" and load is None:
        is_missing = find_spec("cupy") is None
        first = lowest_rank(grid.world, is_missing)
        if first is not None:
            return TrainingDevice(NUMPY, "cpu", NO_CUPY if is_missing else f"rank {first}: {NO_CUPY}")
    from hybridnn.gpu.device_choice import prepare_device  # above this package

    return prepare_device(options, grid, load, make)
