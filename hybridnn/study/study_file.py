"""The axes of a study: what may vary from cell to cell, and what a value changes in the settings of a run.

The file of a study: a base configuration, and the axes along which it varies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from hybridnn.errors import SettingError
from hybridnn.utils.checks import require_whole
from hybridnn.utils.files import FileError, read_toml
from hybridnn.utils.settings_models import Count, Section, by_dotted_name, setting_error
from hybridnn.utils.text import shown_path

ALL_GRIDS = ("batch", "model", "all")
"""Words in place of a grid: all ranks along one axis, or every grid of batch x model that the ranks allow."""

DEFAULT_HIDDEN = (256, 256)
Values = dict[str, Any]
Apply = Callable[[Values, Any, int], None]


@dataclass(frozen=True)
class Axis:
    """One thing that varies.

    Attributes
    ----------
    name : str
        In the study file, ``"widths"``; a dotted setting has its own name.
    label : str
        In the names of cells and the columns of tables, ``"width"``.
    check : callable
        ``check(value)`` returns the value in one form, or raises `SettingError`.
    apply : callable
        ``apply(settings, value, ranks)`` changes nested plain settings.
    """

    name: str
    label: str
    check: Callable[[Any], Any]
    apply: Apply


def set_value(settings: Values, name: str, value: Any) -> None:
    """Set a dotted name in nested plain settings."""
    *sections, key = name.split(".")
    for section in sections:
        settings = settings.setdefault(section, {})
        if not isinstance(settings, dict):
            raise SettingError(name, value, f"{section} is a value, not a section")
    settings[key] = value


def chosen_grid(value: Any) -> tuple[int, int, int] | str:
    """Ranks along pipeline, batch and model, from any of the forms a study file may use.

    Parameters
    ----------
    value : str, list or table
        ``"2x4"`` or ``[2, 4]`` (batch x model), ``"2x2x1"`` or ``[2, 2, 1]`` (with the pipeline first),
        ``{pipeline = 2, batch = 2}``, or one of `ALL_GRIDS`, which is returned as it is.

    Raises
    ------
    SettingError
        If it is none of these.
    """
    if isinstance(value, str) and value in ALL_GRIDS:
        return value
    sizes: list[Any] = []
    if isinstance(value, str) and re.fullmatch(r"[0-9]+(x[0-9]+){1,2}", value):
        sizes = [int(part) for part in value.split("x")]
    elif isinstance(value, list):
        sizes = value
    elif isinstance(value, Mapping) and set(value) <= {"pipeline", "batch", "model"}:
        sizes = [value.get(axis, 1) for axis in ("pipeline", "batch", "model")]
    if len(sizes) not in (2, 3) or any(type(size) is not int or size < 1 for size in sizes):
        forms = "'2x4' (batch x model), '2x2x1' (pipeline x batch x model), a list or a table of these"
        raise SettingError("axes.grids", value, f"must be {forms}, or one of {', '.join(ALL_GRIDS)}")
    pipeline, batch, model = [1, *sizes] if len(sizes) == 2 else sizes
    return pipeline, batch, model


def value_text(value: Any) -> str:
    """Write the value of an axis for people and for names: ``2x4``, ``512``, ``0.001``."""
    if isinstance(value, tuple):  # a grid
        return "x".join(map(str, value[1:] if value[0] == 1 else value))
    if isinstance(value, bool):
        return str(value).lower()
    return "-".join(map(str, value)) if isinstance(value, list) else str(value)


def axis_of(name: str) -> Axis:
    """Return the axis of a name in ``[axes]``; any dotted name is a setting.

    Raises
    ------
    SettingError
        Listing the known axes.
    """
    if name in AXES:
        return AXES[name]
    if "." not in name:
        raise SettingError(
            "axes", name, f"not an axis; known are {', '.join(AXES)}, and any setting, for example 'optimizer.lr'"
        )
    return Axis(name, name, lambda value: value, lambda settings, value, ranks: set_value(settings, name, value))


def _whole(name: str, least: int = 1) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        require_whole(f"axes.{name}", value, least)
        return value

    return check


def _apply_nothing(settings: Values, value: Any, ranks: int) -> None:
    """Change no setting: the axis says how, or how often, a run is started."""


def _apply_grid(settings: Values, value: Any, ranks: int) -> None:
    parallel = _section(settings, "parallel")
    parallel.pop("stages", None)
    parallel.update(zip(("pipeline", "batch", "model"), value, strict=True))


def _hidden(settings: Values) -> Sequence[Any]:
    model = _section(settings, "model")
    hidden: Any = model.get("hidden", DEFAULT_HIDDEN)
    if not isinstance(hidden, list | tuple) or any(isinstance(width, list | dict) for width in hidden):
        raise SettingError("model.hidden", hidden, "must be a list of widths")
    return hidden


def _section(settings: Values, name: str) -> Values:
    """A section of nested plain settings, made where there is none."""
    section = settings.setdefault(name, {})
    if not isinstance(section, dict):
        raise SettingError(name, section, "must be a section")
    return section


def _apply_depth(settings: Values, value: Any, ranks: int) -> None:
    hidden = _hidden(settings)
    if len(set(hidden)) != 1:
        raise SettingError("model.hidden", list(hidden), "must be layers of one width where depths is an axis")
    set_value(settings, "model.hidden", [hidden[0]] * value)


def _apply_width(settings: Values, value: Any, ranks: int) -> None:
    set_value(settings, "model.hidden", [value] * len(_hidden(settings)))


def _setting(dotted: str) -> Apply:
    return lambda settings, value, ranks: set_value(settings, dotted, value)


def _per_rank(dotted: str) -> Apply:
    return lambda settings, value, ranks: set_value(settings, dotted, value * ranks)


_TABLE = (
    Axis("ranks", "ranks", _whole("ranks"), _apply_nothing),
    Axis("grids", "grid", chosen_grid, _apply_grid),
    Axis("depths", "depth", _whole("depths"), _apply_depth),
    Axis("widths", "width", _whole("widths"), _apply_width),
    Axis("batch_sizes", "batch", _whole("batch_sizes"), _setting("training.batch_size")),
    Axis("batch_per_rank", "batch-per-rank", _whole("batch_per_rank"), _per_rank("training.batch_size")),
    Axis("samples_per_rank", "samples-per-rank", _whole("samples_per_rank"), _per_rank("data.synthetic.samples")),
    Axis("methods", "method", lambda value: value, _setting("parallel.method")),
    Axis("splits", "split", lambda value: value, _setting("parallel.model_split")),
    Axis("dtypes", "dtype", lambda value: value, _setting("training.dtype")),
    Axis("seeds", "seed", _whole("seeds", 0), _setting("training.seed")),
    Axis("repeats", "repeat", _whole("repeats"), _apply_nothing),
)
AXES = {axis.name: axis for axis in _TABLE}
"""In the order in which they are applied and named: a width needs the depth before it."""


VARIANT = "variant"
"""Label of the axis that ``[variants]`` makes."""

Table = dict[str, Any]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class _Reduced(Section):
    """``[reduced]``: what is different where a study must be short."""

    base: Table = Field(default_factory=dict)
    axes: Table = Field(default_factory=dict)


class _StudyFile(Section):
    """The whole file."""

    name: Name
    description: str = ""
    threads: Count = 1
    interrupted: Literal["restart", "resume"] = "restart"
    base: Table = Field(default_factory=dict)
    axes: Table
    variants: dict[Name, Table] = Field(default_factory=dict)
    reduced: _Reduced | None = None


@dataclass(frozen=True)
class Study:
    """A study as it is to run.

    Attributes
    ----------
    name, description : str
    reduced : bool
        Whether ``[reduced]`` has been applied.
    base : mapping
        Nested settings that all cells share.
    axes : tuple of (Axis, list)
        With their checked values, in the order in which cells are named.
    threads : int
        BLAS threads of every rank of every cell.
    interrupted : {"restart", "resume"}
        Whether a cell that did not end begins anew, as one that is timed should, or goes on from its newest checkpoint.
    """

    name: str
    description: str
    reduced: bool
    base: Mapping[str, Any]
    axes: tuple[tuple[Axis, list[Any]], ...]
    threads: int = 1
    interrupted: Literal["restart", "resume"] = "restart"


def ready_studies() -> dict[str, Path]:
    """Return the study files that come with the package, by name."""
    folder = Path(str(files("hybridnn.hpc_jobs"))) / "studies"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_study(name: Path | str, *, reduced: bool = False) -> Study:
    """Read a study.

    Parameters
    ----------
    name : Path or str
        A file, or the name of a ready study.
    reduced : bool
        Apply the file's ``[reduced]``.

    Raises
    ------
    SettingError
        If there is no such study, the file is not TOML, or anything in it is unknown or not allowed.
    """
    path = ready_studies().get(str(name), Path(name))
    values = _read(path)
    try:
        return _study(values, str(name), reduced=reduced)
    except ValidationError as error:
        raise setting_error(error, tuple(_StudyFile.model_fields)).in_file(shown_path(path)) from None
    except SettingError as error:
        raise error.in_file(shown_path(path)) from None


def _study(values: Table, name: str, *, reduced: bool) -> Study:
    file = _StudyFile.model_validate(values)
    base, axes = deepcopy(file.base), file.axes
    if reduced:
        if file.reduced is None:
            raise SettingError("--reduced", name, "this study has no [reduced] settings")
        _merge(base, file.reduced.base)
        axes = {**axes, **file.reduced.axes}
    checked = _ordered(axes, file.variants)
    return Study(file.name, file.description, reduced, base, checked, file.threads, file.interrupted)


def _read(path: Path) -> Table:
    try:
        return read_toml(path)
    except FileError as error:
        ready = f"; ready studies: {', '.join(ready_studies())}" if error.is_missing else ""
        raise SettingError("study", str(path), error.reason + ready) from error


def _ordered(axes: Table, variants: Mapping[str, Table]) -> tuple[tuple[Axis, list[Any]], ...]:
    """Check the axes; variants come first, then the known axes, settings and at last the repeats."""
    given = by_dotted_name(axes)  # optimizer.lr may be written with or without quotes
    found: list[tuple[Axis, list[Any]]] = []
    chosen = given.pop("variants", list(variants))
    if chosen or variants:
        found.append((_variant_axis(variants), _values("variants", chosen)))
    for name, values in given.items():
        axis = axis_of(name)
        is_count = name == "repeats"
        found.append((axis, list(range(1, axis.check(values) + 1)) if is_count else _values(name, values)))
    checked = [(axis, [axis.check(value) for value in values]) for axis, values in found]
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

    return Axis("variants", VARIANT, check, lambda settings, value, ranks: _merge(settings, variants[value]))


def _merge(into: Table, changes: Mapping[str, Any]) -> None:
    """Replace values of nested tables, without sharing any of them."""
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = deepcopy(value)


def _position(axis: Axis) -> tuple[int, str]:
    """Sort key: variants, the known axes, settings by name, repeats."""
    known = list(AXES)
    if axis.name == "repeats":
        return len(known) + 1, ""
    if axis.name == "variants":
        return -1, ""
    return (known.index(axis.name), "") if axis.name in AXES else (len(known), axis.name)
