"""Machines of a study: warnings where cells that are compared ran on different ones, and prices by machine files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hybridnn.comm.hosts import processor_name
from hybridnn.cost import find_machine
from hybridnn.cost.machine import Machine
from hybridnn.cost.machine_file import read_machine
from hybridnn.cost.prediction.predict import predict
from hybridnn.errors import HybridnnError, SettingError
from hybridnn.runs.records import RunHeader, crowding_text
from hybridnn.runs.run_files import RunRecord
from hybridnn.runs.workload import layout_from_settings, workload_from_settings
from hybridnn.study.cells import Cell
from hybridnn.study.study_file import Study
from hybridnn.utils.text import counted


def host_values(header: RunHeader, name: str) -> list[str]:
    """The values of an attribute of `Hosts` as texts; empty where they were not recorded."""
    found = () if header.hosts is None else getattr(header.hosts, name)
    return [found] if isinstance(found, str) else list(map(str, found))


CONDITIONS: Mapping[str, Callable[[RunHeader], str]] = {
    "processors": lambda header: ", ".join(host_values(header, "processors")),
    "numbers of cores on a node": lambda header: ", ".join(host_values(header, "cores")),
    "MPI libraries": lambda header: header.versions.get("MPI", ""),
    "BLAS libraries": lambda header: ", ".join(host_values(header, "blas")),
    "versions of hybridnn": lambda header: header.versions.get("hybridnn", ""),
}
"""What the cells of a curve must have in common; an empty text is not known."""


def hardware_warnings(curves: Iterable[Sequence[RunRecord]]) -> list[str]:
    """Sentences on the `CONDITIONS` in which the cells of a curve differ."""
    found: dict[str, Counter[str]] = {}
    for curve in curves:
        for name, value in CONDITIONS.items():
            values = Counter(text for run in curve if (text := value(run.header)))
            if len(values) > 1:
                found.setdefault(name, Counter()).update(values)
    return [
        f"cells of one curve ran with different {name}: {_list(found[name])}" for name in CONDITIONS if name in found
    ]


def _list(values: Counter[str]) -> str:
    return "; ".join(f"{text} ({counted(number, 'cell')})" for text, number in values.items())


def crowding_warnings(runs: Iterable[RunRecord]) -> list[str]:
    """Sentences on runs whose ranks had fewer cores than threads, so that they took turns."""
    return list(dict.fromkeys(text for run in runs for text in run.header.crowded))


def planned_crowding(cells: Iterable[Cell], cores: int) -> str:
    """The sentence on the cell with the most threads on this node of so many cores, if these are too few."""
    here = [cell for cell in cells if cell.placement.nodes in (None, 1)]
    most = max(here, key=lambda cell: cell.ranks * cell.placement.threads, default=None)
    if most is None or most.ranks * most.placement.threads <= cores:
        return ""
    return crowding_text(most.ranks, most.placement.threads, cores)


def prediction_warnings(runs: Sequence[RunRecord]) -> list[str]:
    """Sentences on machine files that are doubtful, of fewer ranks than they predict, or of another processor."""
    of_machine: dict[str, list[RunRecord]] = {}
    for run in runs:
        if run.prediction is not None:
            of_machine.setdefault(run.prediction.machine, []).append(run)
    warnings: list[str] = []
    for name, predicted in of_machine.items():
        machine = predicted[0].prediction
        assert machine is not None  # by the grouping
        doubts = dict.fromkeys(run.prediction.doubt for run in predicted if run.prediction is not None)
        warnings += filter(None, doubts)
        processors = [text for run in predicted if run.header.hosts for text in run.header.hosts.processors]
        most_ranks = max(run.header.ranks for run in predicted)
        warnings += machine_warnings(name, machine.processor, machine.calibrated_ranks, most_ranks, processors)
    return warnings


def machine_warnings(
    name: str, processor: str, calibrated_ranks: int | None, most_ranks: int, processors: Iterable[str]
) -> list[str]:
    """Sentences on a machine file for runs of up to `most_ranks` ranks on `processors`; it may not state its own."""
    warnings = []
    if calibrated_ranks is not None and calibrated_ranks < most_ranks:
        measured = f"was calibrated on {counted(calibrated_ranks, 'rank')}"
        warnings.append(f"the machine file {name} {measured}: predictions for {most_ranks} are extrapolated")
    others = ", ".join(dict.fromkeys(text for text in processors if text != processor))
    if processor and others:
        warnings.append(f"the machine file {name} is of another processor: {processor}, not {others}")
    return warnings


# -- prices of cells before they run -----------------------------------------------------------------------------------


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
