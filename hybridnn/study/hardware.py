"""Hardware and software on which the cells of a study ran, and warnings where cells that are compared differ in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from hybridnn.runs.records import RunHeader, crowding_text
from hybridnn.runs.run_files import RunRecord
from hybridnn.study.cells import Cell
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
