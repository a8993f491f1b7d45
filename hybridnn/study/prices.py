"""Prices of cells before they run: seconds and core-hours of training, as a machine file predicts them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hybridnn.comm.hosts import processor_name
from hybridnn.cost.machine import Machine
from hybridnn.cost.machine_file import read_machine
from hybridnn.cost.machine_lookup import find_machine
from hybridnn.cost.prediction.predict import predict
from hybridnn.errors import HybridnnError, SettingError
from hybridnn.runs.workload import layout_from_settings, workload_from_settings
from hybridnn.study.cells import Cell
from hybridnn.study.hardware import machine_warnings
from hybridnn.study.study_file import Study


@dataclass(frozen=True)
class CellPrice:
    """Predicted cost of a cell's training, without its start and evaluations."""

    seconds: float
    cores: int  # a core for each thread of each rank

    @property
    def core_hours(self) -> float:
        """Hours of all cores together."""
        return self.seconds * self.cores / 3600


@dataclass(frozen=True)
class StudyPrices:
    """Prices by the ids of cells; a text is the reason why a cell has none."""

    machine: Machine
    cells: dict[str, CellPrice | str]

    @property
    def known(self) -> list[CellPrice]:
        """The prices of the cells that have one."""
        return [price for price in self.cells.values() if isinstance(price, CellPrice)]

    @property
    def total_text(self) -> str:
        """All cells together, one after another, and the number of those without a price."""
        seconds = sum(price.seconds for price in self.known)
        hours = sum(price.core_hours for price in self.known)
        unknown = len(self.cells) - len(self.known)
        missing = f"; {unknown} of {len(self.cells)} cells have no prediction" if unknown else ""
        return f"predicted by {self.machine.name}: {seconds:.4g} s of training, {hours:.3g} core-hours{missing}"


def price_cells(study: Study, cells: Iterable[Cell]) -> StudyPrices | None:
    """Predict the cost of cells by the machine file of the study, or else that of ``hybridnn train``; None without one.

    Raises `DataError` if the machine file is missing or invalid.
    """
    source = find_machine(study.keys.machine)
    if source is None:
        return None
    machine = read_machine(source)
    return StudyPrices(machine, {cell.id: _price(study, cell, machine) for cell in cells})


def _price(study: Study, cell: Cell, machine: Machine) -> CellPrice | str:
    settings, placement = cell.settings, cell.placement
    if study.keys.in_process:
        return "its ranks take turns in one process"
    if settings.parallel.auto:
        return "parallel.auto chooses its layout when it runs"
    if settings.device.name == "gpu":
        return "machine files do not describe GPUs"
    if (placement.nodes or 1) > 1 and machine.between_nodes is None:
        return f"the machine file {machine.name} has no between_nodes"
    try:
        placed = machine.placed(cell.ranks, placement.nodes or -(-cell.ranks // machine.ranks_per_node))
        workload = workload_from_settings(settings)
        layout = layout_from_settings(settings, cell.ranks, workload.model, placed)
        predicted = predict(workload, layout, placed)
    except HybridnnError as error:
        return str(error)
    return CellPrice(predicted.seconds_per_epoch * settings.training.epochs, cell.ranks * placement.threads)


def price_warnings(machine: Machine, cells: Sequence[Cell]) -> list[str]:
    """Sentences on a machine file that is doubtful, of fewer ranks than the cells have, or of another processor."""
    most_ranks = max(cell.ranks for cell in cells)
    found = machine_warnings(machine.name, machine.processor, machine.calibrated_ranks, most_ranks, [processor_name()])
    return [*filter(None, [machine.doubt]), *found]


def require_own_processor(study: Study) -> None:
    """Raise `SettingError` if the study names a machine file of another processor than that of this node."""
    if study.keys.machine is None:
        return
    processor, own = read_machine(study.keys.machine).processor, processor_name()
    if processor and processor != own:
        problem = f"the machine file is of another processor, {processor}, and this node has {own}"
        raise SettingError("machine", study.keys.machine, f"{problem}: name one of this machine, or none")
