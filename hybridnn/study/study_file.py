"""The file of a study: a base configuration, and the axes along which it varies."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from hybridnn.errors import SettingError
from hybridnn.settings_errors import setting_error
from hybridnn.settings_types import Count, Section, by_dotted_name
from hybridnn.small_files import FileError, read_toml, shown_path
from hybridnn.study.axes import AXES, Axis, axis_of

__all__ = ["VARIANT", "Study", "load_study", "ready_studies"]

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
