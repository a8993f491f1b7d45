"""Axes of a study: their names and values, layouts with their families, and the settings that a value changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any, NamedTuple

from hybridnn.comm.launcher import BINDINGS
from hybridnn.errors import GridError, SettingError
from hybridnn.parallel.grid import fitting_grids
from hybridnn.pipeline.schedules.methods import METHODS, find_method
from hybridnn.utils.checks import require_choice, require_whole
from hybridnn.utils.settings_models import by_dotted_name

# -- layouts -----------------------------------------------------------------------------------------------------------

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


# -- axes --------------------------------------------------------------------------------------------------------------

MOST_REPEATS = 1000  # a number with a digit too many would be a list that fills the memory

DEFAULT_HIDDEN = (256, 256)
BATCH_SIZE = "training.batch_size"

REPEATED = ("repeat", "seed")
"""Labels of the axes of repetitions, over which results are summarized. They vary slowest, so that every combination of
the others runs once in each round: drift of a machine then spreads over all of them."""

Table = dict[str, Any]
Apply = Callable[[Table, Any, int], None]


@dataclass(frozen=True)
class Axis:
    """One axis of a study.

    `name` is that in the study file: ``"widths"``, or the dotted name of a setting; `label` is that in the names of
    cells and the columns of tables: ``"width"``. ``apply(settings, value, ranks)`` changes nested plain settings;
    ``check(value)`` returns the value in its standard form, or raises `SettingError`; `description` is that of the
    reference.
    """

    name: str
    label: str
    apply: Apply
    check: Callable[[Any], Any] = lambda value: value
    description: str = ""


def _set_value(settings: Table, name: str, value: Any) -> None:
    """Set a dotted name in nested plain settings."""
    *sections, key = name.split(".")
    for section in sections:
        settings = settings.setdefault(section, {})
        if not isinstance(settings, dict):
            raise SettingError(name, value, f"{section} is a value, not a section")
    settings[key] = value


def format_value(value: Any) -> str:
    """The value of an axis as text for tables and names: ``2x4``, ``512``, ``0.001``."""
    if isinstance(value, LayoutChoice):
        return value.text if value.grid is None else format_value(value.grid)
    if isinstance(value, tuple):  # a grid
        return "x".join(map(str, value[1:] if value[0] == 1 else value))
    if isinstance(value, bool):
        return str(value).lower()
    return "-".join(map(str, value)) if isinstance(value, list) else str(value)


def _find_axis(name: str) -> Axis:
    """The axis of a name in ``[axes]``; any dotted name is a setting."""
    if name in AXES:
        return AXES[name]
    if "." not in name:
        raise SettingError(
            "axes", name, f"not an axis; known are {', '.join(AXES)}, and any setting, for example 'optimizer.lr'"
        )
    return Axis(name, name, _setting(name))


def _apply_nothing(settings: Table, value: Any, ranks: int) -> None:
    """Change no setting, for axes of ranks, their placement, and repetitions."""


def _apply_grid(settings: Table, value: Any, ranks: int) -> None:
    for key, size in zip(("pipeline", "batch", "model"), value, strict=True):
        _set_value(settings, f"parallel.{key}", size)
    for key in ("stages", "method"):  # a layout without stages has no method either
        settings["parallel"].pop(key, None)


def _apply_method(settings: Table, value: Any, ranks: int) -> None:
    if value != NO_METHOD:
        _set_value(settings, "parallel.method", value)


def _hidden(settings: Table) -> Sequence[Any]:
    model = settings.get("model", {})
    hidden: Any = model.get("hidden", DEFAULT_HIDDEN) if isinstance(model, dict) else None
    if not isinstance(hidden, list | tuple) or any(isinstance(width, list | dict) for width in hidden):
        raise SettingError("model.hidden", hidden, "must be a list of widths")
    return hidden


def _apply_depth(settings: Table, value: Any, ranks: int) -> None:
    hidden = _hidden(settings)
    if len(set(hidden)) != 1:
        raise SettingError("model.hidden", list(hidden), "must be layers of one width where depths is an axis")
    _set_value(settings, "model.hidden", [hidden[0]] * value)


def _apply_width(settings: Table, value: Any, ranks: int) -> None:
    _set_value(settings, "model.hidden", [value] * len(_hidden(settings)))


def _setting(dotted: str, *, per_rank: bool = False) -> Apply:
    return lambda settings, value, ranks: _set_value(settings, dotted, value * ranks if per_rank else value)


def _numbers(
    name: str, label: str, description: str, apply: Apply = _apply_nothing, least: int = 1, most: int | None = None
) -> Axis:
    """An axis of whole numbers."""
    return Axis(name, label, apply, lambda value: require_whole(f"axes.{name}", value, least, most), description)


_KNOWN_AXES = (
    _numbers("ranks", "ranks", "Ranks of a run."),
    _numbers("nodes", "nodes", "Nodes on which the ranks are; with `ranks_per_node`, `ranks` may be left out."),
    _numbers("ranks_per_node", "ranks-per-node", "Ranks on a node; the last node may have fewer."),
    Axis(
        "layouts",
        "grid",
        _apply_grid,
        parse_layout,
        "Process grids with the methods of their pipelines: `'2x4'` (batch x model), `'2x2x1:1f1b'` (pipeline x batch "
        "x model), `'4x1x1:gpipe,ddg'` (a cell for each method), `'4x1x1:stale'` (for all asynchronous ones). "
        "Families stand for layouts of every number of ranks: "
        "`'batch'` or `'model'`, all ranks along one axis; `'grid'`, several along both; `'pipeline:1f1b'`, every "
        "number of stages, with all other ranks along batch; `'all'`, these with every exact method but `sequential`. "
        "In names and tables, the method is a label of its own, `-` without stages.",
    ),
    _numbers("depths", "depth", "Hidden layers, all of the width in `base.model.hidden`.", _apply_depth),
    _numbers("widths", "width", "Width of every hidden layer.", _apply_width),
    _numbers("batch_sizes", "batch", "Samples of a minibatch over all ranks.", _setting(BATCH_SIZE)),
    _numbers(
        "batch_per_rank", "batch-per-rank", "Samples of a minibatch for each rank.", _setting(BATCH_SIZE, per_rank=True)
    ),
    _numbers(
        "samples_per_rank", "samples-per-rank", "Training samples for each rank.", _setting("data.rows", per_rank=True)
    ),
    Axis("splits", "split", _setting("parallel.model_split"), description="Values of `parallel.model_split`."),
    Axis("dtypes", "dtype", _setting("training.dtype"), description="Values of `training.dtype`."),
    _numbers("threads", "threads", "BLAS threads of every rank, in place of the key `threads`."),
    Axis(
        "binding",
        "binding",
        _apply_nothing,
        lambda value: require_choice("axes.binding", value, BINDINGS),
        "Cores to which the launcher binds a rank: `'core'`, one for each of its threads; `'socket'`; `'none'`.",
    ),
    _numbers("seeds", "seed", "Values of `training.seed`.", _setting("training.seed"), least=0),
    _numbers("repeats", "repeat", "Number of repetitions, not a list.", most=MOST_REPEATS),
)
AXES = {axis.name: axis for axis in _KNOWN_AXES}
"""The known axes, in the order in which they are applied and named: a width needs the depth before it."""

METHOD = Axis("layouts", "method", _apply_method, check_method)
"""The methods of layouts, which have a label of their own in names, tables and statements."""

ChosenAxes = Sequence[tuple[Axis, list[Any]]]
"""The axes of a study with their checked values."""


def check_axes(axes: Table, variants: Mapping[str, Table]) -> ChosenAxes:
    """Check the axes and sort them: variants, the known axes, settings by name, repeats."""
    given = by_dotted_name(axes)  # optimizer.lr may be written with or without quotes
    found: list[tuple[Axis, list[Any]]] = []
    chosen = given.pop("variants", list(variants))
    if chosen or variants:
        found.append((_variant_axis(variants), _values("variants", chosen)))
    for name, values in given.items():
        axis = _find_axis(name)
        is_count = name == "repeats"
        found.append((axis, list(range(1, axis.check(values) + 1)) if is_count else _values(name, values)))
    checked = [(axis, [axis.check(value) for value in values]) for axis, values in found]
    checked += [(METHOD, methods_of(values)) for axis, values in checked if axis.label == "grid"]
    return tuple(sorted(checked, key=lambda pair: _position(pair[0])))


def _values(name: str, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise SettingError(f"axes.{name}", values, "must be a list with at least one value")
    return values


def _variant_axis(variants: Mapping[str, Table]) -> Axis:
    def check(value: Any) -> Any:
        if not isinstance(value, str) or value not in variants:
            raise SettingError("axes.variants", value, f"known in [variants]: {', '.join(variants) or 'none'}")
        return value

    return Axis("variants", "variant", lambda settings, value, ranks: merge(settings, variants[value]), check)


def merge(into: Table, changes: Mapping[str, Any]) -> None:
    """Replace values of nested tables by copies."""
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = deepcopy(value)


def _position(axis: Axis) -> tuple[int, str]:
    """Sort key of an axis."""
    if axis.name in AXES and axis.name != "repeats":
        return list(AXES).index(axis.name), ""
    return {"variants": (-1, ""), "repeats": (len(AXES) + 1, "")}.get(axis.name, (len(AXES), axis.name))


def chosen_axis(name: str, axes: ChosenAxes, key: str, value: Any) -> tuple[Axis, list[Any]]:
    """The axis of a study by its label, or its name in the file; repetitions are none.

    Raises `SettingError` for the setting `key` with this value.
    """
    known = [(axis, values) for axis, values in axes if axis.label not in REPEATED]
    for axis, values in known:
        if name in (axis.label, axis.name):
            return axis, values
    labels = ", ".join(axis.label for axis, _ in known)
    raise SettingError(key, value, f"not an axis of this study: {labels or 'none'}")


def values_as_text(key: str, wanted: Table, axes: ChosenAxes) -> dict[str, list[str]]:
    """Values of a study's axes as text, by label; one value, or a list of them, for each label or name in `wanted`.

    Raises `SettingError` for a value that no cell has, and names it with `key`.
    """
    found: dict[str, list[str]] = {}
    for name, given in by_dotted_name(wanted).items():
        axis, values = chosen_axis(name, axes, f"{key}.{name}", given)
        texts = [format_value(value) for value in values]
        found[axis.label] = []
        for value in given if isinstance(given, list) else [given]:
            is_grid = axis.label == "grid"
            is_name = is_grid and value in list(NAMED_GRIDS)
            text = value if is_name else format_value((parse_grid if is_grid else axis.check)(value))
            # Families have other grids with every number of ranks, one rank among them; whether a cell has a grid is
            # checked later.
            if text not in texts and not is_grid:
                raise SettingError(f"{key}.{name}", value, f"not a value of this axis: {', '.join(texts)}")
            found[axis.label].append(text)
    return found


def has_value(values: Mapping[str, Any], label: str, text: str) -> bool:
    """Whether a cell with these values of its axes, by label, has a value; grids may be one of `NAMED_GRIDS`."""
    found = format_value(values.get(label))
    if label == "grid" and text in NAMED_GRIDS:
        return re.fullmatch(NAMED_GRIDS[text], found) is not None
    return found == text


def has_values(values: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Whether a cell with these values of its axes has all values of a baseline."""
    return all(has_value(values, label, text) for label, text in wanted.items())
