"""Cells of a study: one run for each combination of its axes, and the combinations that cannot run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import product
from math import prod
from typing import Any

from hybridnn.comm.launcher import ANYWHERE, Placement
from hybridnn.config.settings import Settings, settings_from, with_stages
from hybridnn.cost import find_machine
from hybridnn.cost.machine import Machine
from hybridnn.cost.machine_file import read_machine
from hybridnn.cost.prediction.predict import predict
from hybridnn.diagnostics.hosts import processor_name
from hybridnn.errors import GridError, HybridnnError, SettingError
from hybridnn.pipeline.schedules.methods import METHODS, too_few_stages
from hybridnn.runs.workload import layout_from_settings, require_fitting_layout, workload_from_settings
from hybridnn.study.axes import (
    FAMILIES,
    METHOD,
    NO_METHOD,
    ONE_RANK,
    REPEATED,
    LayoutChoice,
    StudyLayout,
    format_value,
    has_values,
)
from hybridnn.study.study_file import Study, conclusions_module

LONGEST_ID = 150  # characters of an id before it is cut and a hash appended
Combination = dict[str, Any]  # value of every axis by its label


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    id: str  # labels and values of the axes, ``ranks-4_grid-2x2_width-512_seed-0``; also the name of the cell's folder
    ranks: int
    values: dict[str, Any]  # value of every axis by its label; grids as text
    settings: Settings  # complete but for the folder
    placement: Placement = ANYWHERE


@dataclass(frozen=True)
class CellPlan:
    """All combinations of a study's axes: the cells, and for the ids of the others the reasons why they cannot run.

    The cells are in the order in which they run, round by round: all of the first repeat, then all of the second.
    """

    cells: tuple[Cell, ...]
    skipped: dict[str, str]
    conclusions: dict[str, Any] = field(default_factory=dict)  # of the study, checked

    @property
    def left_out(self) -> list[str]:
        """A line for each reason, with the number of skipped combinations and the first of them."""
        names: dict[str, list[str]] = {}
        for name, reason in self.skipped.items():
            names.setdefault(reason, []).append(name)
        return [
            f"{len(found)} left out: {reason} ({found[0]}{f' and {len(found) - 1} more' * (len(found) > 1)})"
            for reason, found in names.items()
        ]


def make_cells(study: Study) -> CellPlan:
    """Form every combination of the axes.

    Combinations whose values exclude each other (a layout and another number of ranks, more model ranks than neurons,
    contradictory settings) are skipped with the reason. Raises `SettingError` if a value is not allowed in any of its
    combinations, two combinations have one name, no cell can run, or none is the baseline.
    """
    cells: dict[str, Cell] = {}
    skipped: dict[str, HybridnnError] = {}
    errors_by_value: dict[tuple[str, str], list[SettingError | None]] = {}
    for combination in _combinations(study):
        name = _name(combination)
        refusal: SettingError | None = None
        try:
            cell = _cell_of(study, name, combination)
        except GridError as error:
            skipped[name] = error
        except SettingError as error:
            skipped[name] = refusal = error
        else:
            if cell != cells.setdefault(name, cell):
                raise SettingError("axes", name, "two cells have this name; give their values other names")
        for label, value in combination.items():
            errors_by_value.setdefault((label, format_value(value)), []).append(refusal)
        if combination.get("repeat", 1) != 1:
            skipped.pop(name, None)  # named once: what cannot run cannot be repeated
    for errors in errors_by_value.values():
        # A value without any valid combination is a mistake; otherwise only its combination with others is.
        if errors[0] is not None and all(errors):
            raise errors[0]
    if not cells:
        reason = str(next(iter(skipped.values()), "it has no axes"))
        raise SettingError("axes", study.keys.name, f"no cell of this study can run: {reason}")
    if not any(has_values(cell.values, study.baseline) for cell in cells.values()):
        wanted = ", ".join(f"{label} = {value}" for label, value in study.baseline.items())
        raise SettingError("baseline", wanted, "no cell of this study has these values")
    reasons = {name: _reason(error) for name, error in skipped.items()}
    return CellPlan(tuple(cells.values()), reasons, _conclusions(study, tuple(cells.values())))


def _reason(error: HybridnnError) -> str:
    """The error without the value, so that several combinations have the same reason."""
    return f"{error.setting}: {error.allowed}" if isinstance(error, SettingError) else str(error)


def _conclusions(study: Study, cells: tuple[Cell, ...]) -> dict[str, Any]:
    keys = study.keys
    if not keys.given and not (keys.reduced and keys.reduced.given):
        return {}
    try:
        checked: dict[str, Any] = conclusions_module().check(study, cells)
    except SettingError as error:
        raise error.in_file(study.path) from None
    return checked


def _combinations(study: Study) -> Iterator[Combination]:
    """The product of the axes, repetitions slowest, with all layouts; the base of the speed-ups, one rank, is first."""
    used, unused = set[str](), dict[str, GridError]()
    axes = [(axis, values) for axis, values in study.axes if axis is not METHOD]
    labels, first = [axis.label for axis, _ in axes], {axis.label: values[0] for axis, values in axes}
    slowest_first = sorted(axes, key=lambda pair: (*REPEATED, pair[0].label).index(pair[0].label))
    needs_base = study.keys.compares == "times" and not study.baseline and not {"nodes", "ranks-per-node"} & {*labels}
    for values in product(*(values for _, values in slowest_first)):
        by_label = dict(zip((axis.label for axis, _ in slowest_first), values, strict=True))
        combination = {label: by_label[label] for label in labels}
        choice = combination.get("grid")
        if choice is None:
            yield combination
            continue
        others = [label for label in ("ranks", "grid") if label in labels]
        if needs_base and all(combination[label] == first[label] for label in others):
            one = {label: 1 if label == "ranks" else value for label, value in combination.items()}
            yield _with_layout(one, ONE_RANK)
        try:
            layouts = choice.layouts(_ranks_of(combination))
        except GridError as error:
            unused[choice.text] = error
            yield combination  # with the choice, which has no layout of so many ranks
        else:
            used.add(choice.text)
            for layout in layouts:
                yield _with_layout(combination, layout)
    for text, reason in unused.items():
        if text not in used and not (used and text in FAMILIES):
            raise SettingError("axes.layouts", text, f"no layout of this study: {reason}")


def _with_layout(combination: Combination, layout: StudyLayout) -> Combination:
    """The combination with a layout in place of the choice, and its method after it."""
    found: Combination = {}
    for label, value in combination.items():
        found |= {"grid": layout.grid, "method": layout.method} if label == "grid" else {label: value}
    return found


def _name(combination: Combination) -> str:
    """The id; the first repeat has the name of a cell that is not repeated, so that repeats can be added later."""
    text = "_".join(
        f"{label}-{re.sub(r'[^A-Za-z0-9.+-]+', '-', format_value(value))}"
        for label, value in combination.items()
        if (label, value) not in (("repeat", 1), ("method", NO_METHOD))
    )
    if len(text) <= LONGEST_ID:
        return text or "base"
    return f"{text[:LONGEST_ID]}-{sha256(text.encode()).hexdigest()[:8]}"


def _settings_of(study: Study, combination: Combination) -> tuple[int, Settings]:
    """Number of ranks and settings of a combination."""
    ranks = _ranks_of(combination)
    if ranks is None:  # those of the grid in the settings
        parallel = settings_from(_apply_axes(study, combination, 1)).parallel
        grid = parallel.pipeline * (parallel.batch or 1) * parallel.model
        ranks = sum(stage.batch * stage.model for stage in parallel.stages) or grid
    return ranks, settings_from(_apply_axes(study, combination, ranks))


def _ranks_of(combination: Combination) -> int | None:
    """Ranks by the axes of ranks, grids with numbers, or nodes and ranks per node; None without any of them."""
    if "ranks" in combination:
        return int(combination["ranks"])
    if isinstance(grid := combination.get("grid"), tuple):
        return prod(grid)
    if "nodes" in combination and "ranks-per-node" in combination:
        return int(combination["nodes"] * combination["ranks-per-node"])
    return None


def _placement(study: Study, combination: Combination, ranks: int) -> Placement:
    """Nodes, cores and threads; raises `GridError` where so many ranks do not fill the nodes."""
    nodes, per_node = combination.get("nodes"), combination.get("ranks-per-node")
    if nodes is not None and nodes > ranks:
        raise GridError(f"{ranks} ranks are too few for {nodes} nodes")
    if nodes is not None and per_node is not None and -(-ranks // per_node) != nodes:
        raise GridError(f"{ranks} ranks do not fill {nodes} nodes with {per_node} ranks each")
    if nodes is None and per_node is not None:
        nodes = -(-ranks // per_node)
    elif nodes is not None and per_node is None:
        per_node = -(-ranks // nodes)
    return Placement(nodes, per_node, combination.get("threads", study.keys.threads), combination.get("binding"))


def _cell_of(study: Study, name: str, combination: Combination) -> Cell:
    """The cell of a combination; raises `GridError` where the run itself would refuse it only after its start."""
    choice = combination.get("grid")
    if isinstance(choice, LayoutChoice):
        choice.layouts(_ranks_of(combination))  # raises the reason why there is none
    ranks, settings = _settings_of(study, combination)
    placement = _placement(study, combination, ranks)
    try:
        settings = _with_stages(settings, ranks)
        require_fitting_layout(settings, ranks)
    except SettingError as error:
        raise GridError(_reason(error)) from error
    values = {label: format_value(value) if label == "grid" else value for label, value in combination.items()}
    return Cell(name, ranks, values, settings, placement)


def _apply_axes(study: Study, combination: Combination, ranks: int) -> dict[str, Any]:
    values = deepcopy(dict(study.keys.base))
    for axis, _ in study.axes:
        axis.apply(values, combination[axis.label], ranks)
    return values


def _with_stages(settings: Settings, ranks: int) -> Settings:
    """Resolve the stages as the run does; refuse one stage for a method that is not exact."""
    parallel = with_stages(settings.parallel, ranks)
    stages = len(parallel.stages) or parallel.pipeline
    if stages == 1 and not METHODS[parallel.method].exact:
        raise too_few_stages(parallel.method)
    return settings.model_copy(update={"parallel": parallel})


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


def require_own_processor(study: Study) -> None:
    """Raise `SettingError` if the study names a machine file of another processor than that of this node."""
    if study.keys.machine is None:
        return
    processor, own = read_machine(study.keys.machine).processor, processor_name()
    if processor and processor != own:
        problem = f"the machine file is of another processor, {processor}, and this node has {own}"
        raise SettingError("machine", study.keys.machine, f"{problem}: name one of this machine, or none")
