"""Layouts of a study: grids with their methods, and families that stand for those of every number of ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from hybridnn.errors import GridError, SettingError
from hybridnn.parallel.grid import fitting_grids
from hybridnn.pipeline.schedules.methods import METHODS, find_method
from hybridnn.utils.text import to_json

Grid = tuple[int, int, int]
"""Ranks along pipeline, batch and model."""

NO_METHOD = "-"  # of a layout without stages

FAMILIES = ("batch", "model", "grid", "pipeline", "all")
"""Names in place of a grid: all ranks along one axis, several along batch and model, stages with all other ranks along
batch, and all of these with every exact method that lets stages work at once."""

STALE = "stale"
"""Name in place of methods: all asynchronous ones, those of installed packages too."""

FORMS = "'batch', 'model', 'grid', 'pipeline:1f1b', 'all', '2x4' (batch x model) or '2x2x1:1f1b' (with stages first)"

NAMED_GRIDS = {"batch": r"[0-9]+x1", "model": r"1x[0-9]+", "mixed": r"(?!1x)[0-9]+x(?!1$)[0-9]+"}
"""Names of grids in a baseline and in statements: all ranks along one axis, or several along both; grids as text."""

NEW = """\
name = {name}
description = "Which layout is fastest"
base = {base}               # the settings of the training, without its layout
# machine = "machine.toml"  # of hybridnn calibrate: adds predictions

[axes]
ranks = [{ranks}]
# One rank is always there. Others: "grid" (batch x model), "pipeline:gpipe,zb-h1", "2x1x1:1f1b", or "all".
layouts = ["batch", "model", "grid", "pipeline:1f1b"]
repeats = 5                 # 3 or more for intervals
"""
"""Text of a study file to edit."""


class StudyLayout(NamedTuple):
    """A process grid, and the method of its pipeline; `NO_METHOD` with one stage."""

    grid: Grid
    method: str = NO_METHOD


ONE_RANK = StudyLayout((1, 1, 1))


@dataclass(frozen=True)
class LayoutChoice:
    """A value of the axis ``layouts``: a grid or one of `FAMILIES`, with methods where it has stages."""

    text: str
    grid: Grid | None  # None: a family
    methods: tuple[str, ...]

    @property
    def is_one(self) -> bool:
        """Whether it stands for at most one layout of a number of ranks."""
        return len(self.methods) < 2 and (self.grid is not None or self.text in ("batch", "model"))

    def layouts(self, ranks: int | None) -> list[StudyLayout]:
        """The layouts of so many ranks, None for those of the grid; raises `GridError` where there is none.

        One rank has one layout, which belongs to every family.
        """
        if self.grid is not None:
            if ranks not in (None, prod(self.grid)):
                raise GridError("the layout has another number of ranks")
            return [StudyLayout(self.grid, method) for method in self.methods or (NO_METHOD,)]
        if ranks is None:
            raise SettingError("axes.layouts", self.text, "needs the axis ranks, or a grid with numbers, such as '2x4'")
        if ranks == 1:
            return [ONE_RANK]
        found = list(self._of_family(ranks))
        if not found:
            raise GridError("a grid of several batch and model ranks needs a number of ranks that is not prime")
        return found

    def _of_family(self, ranks: int) -> Iterator[StudyLayout]:
        name = self.text.partition(":")[0]
        for batch, model in fitting_grids(ranks):
            kind = "batch" if model == 1 else "model" if batch == 1 else "grid"
            if name in (kind, "all"):
                yield StudyLayout((1, batch, model))
        for stages in range(ranks, 1, -1):
            if ranks % stages == 0:
                yield from (StudyLayout((stages, ranks // stages, 1), method) for method in self.methods)


def parse_grid(value: Any) -> Grid:
    """Return the grid of ``"2x4"`` (batch x model) or ``"2x2x1"`` (with the stages first)."""
    if not isinstance(value, str) or not re.fullmatch(r"[1-9][0-9]*(x[1-9][0-9]*){1,2}", value):
        raise SettingError("grid", value, "must be '2x4' (batch x model) or '2x2x1' (pipeline x batch x model)")
    sizes = [int(part) for part in value.split("x")]
    pipeline, batch, model = [1, *sizes] if len(sizes) == 2 else sizes
    return pipeline, batch, model


def parse_layout(value: Any) -> LayoutChoice:
    """Return a value of the axis; raises `SettingError` for another form, an unknown method, or one without stages."""
    name, colon, names = value.partition(":") if isinstance(value, str) else ("", "", "")
    grid = None
    if name not in FAMILIES:
        try:
            grid = parse_grid(name)
        except SettingError:
            raise SettingError("axes.layouts", value, f"must be {FORMS}") from None
    has_stages = name == "pipeline" if grid is None else grid[0] > 1
    if has_stages != bool(colon):
        problem = "needs a method, such as" if has_stages else "has no stages, and so no method; allowed are"
        raise SettingError("axes.layouts", value, f"{problem} {f'{name}:1f1b' if has_stages else FORMS}")
    if name == "all":
        methods = tuple(method.name for method in METHODS.values() if method.exact and method.name != "sequential")
    else:
        methods = tuple(dict.fromkeys(chain.from_iterable(map(_named, names.split(","))))) if has_stages else ()
    return LayoutChoice(value, grid, methods)


def _named(text: str) -> list[str]:
    """The methods of a name, which may be `STALE`."""
    if text.strip() == STALE:
        return [method.name for method in METHODS.values() if not method.exact]
    return [find_method(text.strip()).name]


def check_method(value: Any) -> str:
    """Return the method of a cell, which may be `NO_METHOD`."""
    return NO_METHOD if value == NO_METHOD else find_method(value).name


def methods_of(choices: Sequence[LayoutChoice]) -> list[str]:
    """The methods of the cells of some choices, each once."""
    has_others = any(choice.grid is None or not choice.methods for choice in choices)
    return [*dict.fromkeys(method for choice in choices for method in choice.methods), *[NO_METHOD] * has_others]


def new_study(name: str, settings: Path, ranks: str) -> str:
    """Return the text of a study file that compares the layouts of a training; `ranks` are numbers with commas."""
    if not re.fullmatch(r"[1-9][0-9]*(,[1-9][0-9]*)*", ranks):
        raise SettingError("--ranks", ranks, "must be numbers of ranks, such as 1,2,4")
    return NEW.format(name=to_json(name), base=to_json(str(settings)), ranks=ranks.replace(",", ", "))
