"""Axes of a study: their names and values, and the settings that a value changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from hybridnn.comm.launcher import BINDINGS
from hybridnn.errors import SettingError
from hybridnn.study.layouts import (
    NAMED_GRIDS,
    NO_METHOD,
    LayoutChoice,
    check_method,
    methods_of,
    parse_grid,
    parse_layout,
)
from hybridnn.utils.checks import must_be_one_of, require_whole
from hybridnn.utils.settings_models import by_dotted_name

MOST_REPEATS = 1000  # a number with a digit too many would be a list that fills the memory

DEFAULT_HIDDEN = (256, 256)

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


def _whole_axis(name: str, label: str, apply: Apply, description: str, least: int = 1, most: int | None = None) -> Axis:
    """An axis of whole numbers."""

    def check(value: Any) -> Any:
        return require_whole(f"axes.{name}", value, least, most)

    return Axis(name, label, apply, check, description)


def _check_binding(value: Any) -> Any:
    if value not in BINDINGS:
        raise SettingError("axes.binding", value, must_be_one_of(BINDINGS))
    return value


def _apply_nothing(settings: Table, value: Any, ranks: int) -> None:
    """Change no setting, for axes of ranks, their placement, and repetitions."""


def _apply_grid(settings: Table, value: Any, ranks: int) -> None:
    parallel = _section(settings, "parallel")
    for key in ("stages", "method"):  # a layout without stages has no method either
        parallel.pop(key, None)
    parallel.update(zip(("pipeline", "batch", "model"), value, strict=True))


def _apply_method(settings: Table, value: Any, ranks: int) -> None:
    if value != NO_METHOD:
        _set_value(settings, "parallel.method", value)


def _hidden(settings: Table) -> Sequence[Any]:
    model = _section(settings, "model")
    hidden: Any = model.get("hidden", DEFAULT_HIDDEN)
    if not isinstance(hidden, list | tuple) or any(isinstance(width, list | dict) for width in hidden):
        raise SettingError("model.hidden", hidden, "must be a list of widths")
    return hidden


def _section(settings: Table, name: str) -> Table:
    """A section of nested plain settings, created if it is missing."""
    section = settings.setdefault(name, {})
    if not isinstance(section, dict):
        raise SettingError(name, section, "must be a section")
    return section


def _apply_depth(settings: Table, value: Any, ranks: int) -> None:
    hidden = _hidden(settings)
    if len(set(hidden)) != 1:
        raise SettingError("model.hidden", list(hidden), "must be layers of one width where depths is an axis")
    _set_value(settings, "model.hidden", [hidden[0]] * value)


def _apply_width(settings: Table, value: Any, ranks: int) -> None:
    _set_value(settings, "model.hidden", [value] * len(_hidden(settings)))


def _setting(dotted: str) -> Apply:
    return lambda settings, value, ranks: _set_value(settings, dotted, value)


def _per_rank(dotted: str) -> Apply:
    return lambda settings, value, ranks: _set_value(settings, dotted, value * ranks)


_KNOWN_AXES = (
    _whole_axis("ranks", "ranks", _apply_nothing, "Ranks of a run."),
    _whole_axis(
        "nodes",
        "nodes",
        _apply_nothing,
        "Nodes on which the ranks are; with `ranks_per_node`, `ranks` may be left out.",
    ),
    _whole_axis("ranks_per_node", "ranks-per-node", _apply_nothing, "Ranks on a node; the last node may have fewer."),
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
    _whole_axis("depths", "depth", _apply_depth, "Hidden layers, all of the width in `base.model.hidden`."),
    _whole_axis("widths", "width", _apply_width, "Width of every hidden layer."),
    _whole_axis("batch_sizes", "batch", _setting("training.batch_size"), "Samples of a minibatch over all ranks."),
    _whole_axis(
        "batch_per_rank", "batch-per-rank", _per_rank("training.batch_size"), "Samples of a minibatch for each rank."
    ),
    _whole_axis("samples_per_rank", "samples-per-rank", _per_rank("data.rows"), "Training samples for each rank."),
    Axis("splits", "split", _setting("parallel.model_split"), description="Values of `parallel.model_split`."),
    Axis("dtypes", "dtype", _setting("training.dtype"), description="Values of `training.dtype`."),
    _whole_axis("threads", "threads", _apply_nothing, "BLAS threads of every rank, in place of the key `threads`."),
    Axis(
        "binding",
        "binding",
        _apply_nothing,
        _check_binding,
        "Cores to which the launcher binds a rank: `'core'`, one for each of its threads; `'socket'`; `'none'`.",
    ),
    _whole_axis("seeds", "seed", _setting("training.seed"), "Values of `training.seed`.", least=0),
    _whole_axis("repeats", "repeat", _apply_nothing, "Number of repetitions, not a list.", most=MOST_REPEATS),
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
