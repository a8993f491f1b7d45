"""The cells of a study: one run for each combination of its axes, and the combinations that cannot be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from math import prod
from typing import Any

from hybridnn.config.build import describe_data, make_model
from hybridnn.config.settings import Settings, settings_from, with_stages
from hybridnn.errors import GridError, HybridnnError, SettingError
from hybridnn.parallel.layer_split import split_layers
from hybridnn.parallel.placement import fitting_grids, resolve_axes, resolve_stages
from hybridnn.pipeline.partition.stage_partition import check_stages
from hybridnn.pipeline.schedules.methods import METHODS, too_few_stages
from hybridnn.study.study_file import Study, value_text

LONGEST_ID = 150
Combination = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes
    ----------
    id : str
        Its axes and values, ``ranks-4_grid-2x2_width-512_seed-0``: the same for the same values, and fit for a folder.
    ranks : int
    values : dict
        Value of every axis by its label; grids as text.
    settings : Settings
        Complete but for the folder.
    """

    id: str
    ranks: int
    values: dict[str, Any]
    settings: Settings


@dataclass(frozen=True)
class SkippedCell:
    """A combination that cannot run, and why."""

    id: str
    reason: str


@dataclass(frozen=True)
class CellPlan:
    """All combinations of a study's axes."""

    cells: tuple[Cell, ...]
    skipped: tuple[SkippedCell, ...]


def make_cells(study: Study) -> CellPlan:
    """Form every combination of the axes.

    What does not fit together (a grid and another number of ranks, more model ranks than neurons, settings that
    exclude each other) is skipped with the reason.

    Raises
    ------
    SettingError
        If a value is refused in all its combinations, two combinations have one name, or nothing is left to run.
    """
    cells: dict[str, Cell] = {}
    skipped: dict[str, HybridnnError] = {}
    fates: dict[tuple[str, str], list[SettingError | None]] = {}
    for combination in _combinations(study):
        name = _name(combination)
        fate: SettingError | None = None
        try:
            cell = _cell(study, combination, name)
            if cell != cells.setdefault(name, cell):
                raise SettingError("axes", name, "two cells have this name; give their values other names")
        except _RefusedSettings as refusal:
            fate = refusal.error
            skipped[name] = fate
        except GridError as error:
            skipped[name] = error
        for label, value in combination.items():
            fates.setdefault((label, value_text(value)), []).append(fate)
    for outcomes in fates.values():
        # A value that never works is a mistake of its own; one that works somewhere just does not go with the others.
        if outcomes[0] is not None and all(outcomes):
            raise outcomes[0]
    if not cells:
        reason = str(next(iter(skipped.values()), "it has no axes"))
        raise SettingError("axes", study.name, f"no cell of this study can run: {reason}")
    return CellPlan(tuple(cells.values()), tuple(SkippedCell(name, str(error)) for name, error in skipped.items()))


class _RefusedSettings(Exception):  # noqa: N818 - says what happened; never leaves this file
    """The settings of a cell are refused as such, whatever the ranks."""

    def __init__(self, error: SettingError) -> None:
        super().__init__(str(error))
        self.error = error


def _combinations(study: Study) -> Iterator[Combination]:
    """The product of the axes, with words for grids replaced by the grids that they mean."""
    labels = [axis.label for axis, _ in study.axes]
    for values in product(*(values for _, values in study.axes)):
        combination = dict(zip(labels, values, strict=True))
        word = combination.get("grid")
        if not isinstance(word, str):
            yield combination
            continue
        if "ranks" not in combination:
            raise SettingError("axes.grids", word, "needs the axis ranks, or grids with numbers, for example '2x4'")
        ranks = combination["ranks"]
        grids = {"batch": [(ranks, 1)], "model": [(1, ranks)], "all": fitting_grids(ranks)}[word]
        for batch, model in grids:
            yield {**combination, "grid": (1, batch, model)}


def _name(combination: Combination) -> str:
    text = "_".join(
        f"{label}-{re.sub(r'[^A-Za-z0-9.+-]+', '-', value_text(value))}" for label, value in combination.items()
    )
    if len(text) <= LONGEST_ID:
        return text or "base"
    return f"{text[:LONGEST_ID]}-{sha256(text.encode()).hexdigest()[:8]}"


def _cell(study: Study, combination: Combination, name: str) -> Cell:
    values = deepcopy(dict(study.base))
    ranks = combination.get("ranks")
    if ranks is None and "grid" in combination:
        ranks = prod(combination["grid"])
    try:
        if ranks is None:
            ranks = _ranks_of(settings_from(_applied(study, combination, values, 1)))
        settings = settings_from(_applied(study, combination, values, ranks))
    except SettingError as error:
        raise _RefusedSettings(error) from error
    settings = _with_stages(settings, ranks, named="method" in combination)
    _require_possible(settings, ranks)
    plain = {label: value_text(value) if label == "grid" else value for label, value in combination.items()}
    return Cell(name, ranks, plain, settings)


def _applied(study: Study, combination: Combination, base: dict[str, Any], ranks: int) -> dict[str, Any]:
    values = deepcopy(base)
    for axis, _ in study.axes:
        axis.apply(values, combination[axis.label], ranks)
    return values


def _ranks_of(settings: Settings) -> int:
    """Ranks that the grid of the settings asks for, without an axis that says it."""
    parallel = settings.parallel
    if parallel.stages:
        return sum(stage.batch * stage.model for stage in parallel.stages)
    return parallel.pipeline * (parallel.batch or 1) * parallel.model


def _with_stages(settings: Settings, ranks: int, *, named: bool) -> Settings:
    """Settle the stages of a method, as the run would.

    Raises
    ------
    GridError
        If it is left with one stage, where it would not be what the cell is `named` after.
    """
    try:
        parallel = with_stages(settings.parallel, ranks)
        stages = len(parallel.stages) or parallel.pipeline
        if stages == 1 and (named or not METHODS[parallel.method].exact) and parallel.method != "sequential":
            raise too_few_stages(parallel.method)
    except SettingError as error:
        raise GridError(str(error)) from error
    return settings.model_copy(update={"parallel": parallel})


def _require_possible(settings: Settings, ranks: int) -> None:
    """Refuse with `GridError` what the run would refuse only once it has begun."""
    parallel = settings.parallel
    if parallel.stages:
        resolve_stages(ranks, [(stage.batch, stage.model) for stage in parallel.stages])
        stages = len(parallel.stages)
    else:
        stages, _, _ = resolve_axes(ranks, parallel.pipeline, parallel.batch, parallel.model)
    if settings.data.file is not None:  # only the run opens it
        return
    shape = describe_data(settings.data)
    network = make_model(settings.model, shape.features, shape.outputs, shape.task)
    if stages == 1:
        split_layers(network.layers, parallel.model_split, parallel.model, 0)
        return
    try:  # which layers a stage has, and so how they are split, is settled by the run
        check_stages(len(network.layers), stages)
    except SettingError as error:
        raise GridError(str(error)) from error
