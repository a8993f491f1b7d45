"""Study files: a base configuration, and the axes along which it varies.

A cell is one combination of the axes' values. Every axis checks its values and applies them to the settings of a run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from hybridnn.comm.placement import BINDINGS
from hybridnn.errors import SettingError
from hybridnn.utils.checks import Count, must_be_one_of, require_whole
from hybridnn.utils.files import FileError, read_toml
from hybridnn.utils.settings_models import Section, by_dotted_name, setting_error
from hybridnn.utils.text import shown_path

ALL_GRIDS = ("batch", "model", "all")
"""Names in place of a grid: all ranks along one axis, or every grid of batch x model that the ranks allow."""

BATCH_OR_MODEL = {"batch": r"[0-9]+x1", "model": r"1x[0-9]+"}  # the grids of a name, as text

DEFAULT_HIDDEN = (256, 256)

REPEATED = ("repeat", "seed")
"""Labels of the axes of repetitions, over which results are summarized. They vary slowest, so that every combination of
the others runs once in each round: drift of a machine then spreads over all of them."""

TIMED = frozenset({"ranks", "nodes", "ranks_per_node", "grids", "methods", "splits", "threads", "binding"})
"""Axes that change the time of a run but, with exact methods, not its training; as those of ``parallel.``"""

DEFAULT_REPEATS = 5  # of studies that compare times
Values = dict[str, Any]
Apply = Callable[[Values, Any, int], None]


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


def _set_value(settings: Values, name: str, value: Any) -> None:
    """Set a dotted name in nested plain settings."""
    *sections, key = name.split(".")
    for section in sections:
        settings = settings.setdefault(section, {})
        if not isinstance(settings, dict):
            raise SettingError(name, value, f"{section} is a value, not a section")
    settings[key] = value


def _parse_grid(value: Any) -> tuple[int, int, int] | str:
    """Ranks along pipeline, batch and model.

    `value` is ``"2x4"`` or ``[2, 4]`` (batch x model), ``"2x2x1"`` or ``[2, 2, 1]`` (with the pipeline first),
    ``{pipeline = 2, batch = 2}``, or one of `ALL_GRIDS`, which is returned unchanged.
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


def format_value(value: Any) -> str:
    """The value of an axis as text for tables and names: ``2x4``, ``512``, ``0.001``."""
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


def _whole_axis(name: str, label: str, apply: Apply, description: str, least: int = 1) -> Axis:
    """An axis of whole numbers."""

    def check(value: Any) -> Any:
        require_whole(f"axes.{name}", value, least)
        return value

    return Axis(name, label, apply, check, description)


def _check_binding(value: Any) -> Any:
    if value not in BINDINGS:
        raise SettingError("axes.binding", value, must_be_one_of(BINDINGS))
    return value


def _apply_nothing(settings: Values, value: Any, ranks: int) -> None:
    """Change no setting, for axes of ranks, their placement, and repetitions."""


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
    """A section of nested plain settings, created if it is missing."""
    section = settings.setdefault(name, {})
    if not isinstance(section, dict):
        raise SettingError(name, section, "must be a section")
    return section


def _apply_depth(settings: Values, value: Any, ranks: int) -> None:
    hidden = _hidden(settings)
    if len(set(hidden)) != 1:
        raise SettingError("model.hidden", list(hidden), "must be layers of one width where depths is an axis")
    _set_value(settings, "model.hidden", [hidden[0]] * value)


def _apply_width(settings: Values, value: Any, ranks: int) -> None:
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
        "grids",
        "grid",
        _apply_grid,
        _parse_grid,
        "Process grids: `'2x4'` (batch x model), `'2x2x1'` (pipeline x batch x model), a list or a table of these; "
        "`'batch'` or `'model'`, all ranks along one axis; `'all'`, every grid of batch x model that the ranks allow.",
    ),
    _whole_axis("depths", "depth", _apply_depth, "Hidden layers, all of the width in `base.model.hidden`."),
    _whole_axis("widths", "width", _apply_width, "Width of every hidden layer."),
    _whole_axis("batch_sizes", "batch", _setting("training.batch_size"), "Samples of a minibatch over all ranks."),
    _whole_axis(
        "batch_per_rank", "batch-per-rank", _per_rank("training.batch_size"), "Samples of a minibatch for each rank."
    ),
    _whole_axis(
        "samples_per_rank",
        "samples-per-rank",
        _per_rank("data.synthetic.samples"),
        "Samples of generated data for each rank.",
    ),
    Axis("methods", "method", _setting("parallel.method"), description="Values of `parallel.method`."),
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
    _whole_axis("repeats", "repeat", _apply_nothing, "Number of repetitions, not a list."),
)
AXES = {axis.name: axis for axis in _KNOWN_AXES}
"""The known axes, in the order in which they are applied and named: a width needs the depth before it."""

Table = dict[str, Any]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class _Reduced(Section):
    """``[reduced]``: changes for the short form of a study."""

    base: Table = Field(default_factory=dict, description="Settings in place of those in `base`.")
    axes: Table = Field(default_factory=dict, description="Axes in place of those in `axes`.")


class StudyFile(Section):
    """Schema of a study file; the descriptions of its keys are those of the reference."""

    name: Name = Field(description="Name of the study, and of its folder: letters, digits, `.`, `_` and `-`.")
    description: str = Field("", description="One line for lists and reports.")
    threads: Count = Field(1, description="BLAS threads of every rank of every cell.")
    interrupted: Literal["restart", "resume"] = Field(
        "restart",
        description="How a cell runs again that did not end: `'restart'` from the beginning, so that its times are "
        "those of one run; `'resume'` from its newest checkpoint.",
    )
    compares: Literal["times", "training"] | None = Field(
        None,
        description="What the cells are compared by. `'times'` runs every cell 5 times unless `axes.repeats` names "
        "another number; `'training'` runs it once. By default `'times'` where axes of ranks, grids, methods, splits, "
        "placement or `parallel.` vary and there are no `seeds`.",
    )
    baseline: Table = Field(
        default_factory=dict,
        description="Values of axes, such as `{method = 'sequential'}`: speed-ups are against the cells that have them "
        "and the same values of all other axes.",
    )
    machine: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="Machine file for predictions: a `.toml` or `.json` file, from the working folder, or the name of "
        "one that ships with hybridnn. Without it that of `hybridnn train`.",
    )
    base: Table = Field(default_factory=dict, description="Settings that all cells share, as in a settings file.")
    axes: Table = Field(description="Lists of values by axis. Every combination of values is a cell.")
    variants: dict[Name, Table] = Field(
        default_factory=dict,
        description="Settings by name. The names are an axis; `axes.variants` may choose some.",
    )
    reduced: _Reduced | None = Field(None, description="Changes for the short form of the study, `--reduced`.")


@dataclass(frozen=True)
class Study:
    """A study with checked axes, in the order in which cells are named, and the nested settings that all cells share.

    With `reduced`, ``[reduced]`` has been applied. `threads` are the BLAS threads of every rank of every cell. An
    `interrupted` cell starts again, as timings need it, or resumes from its newest checkpoint. `machine` is the
    absolute path of a machine file, or the name of one that ships with the package. `baseline` are values by label, as
    text: those of the cells that all others are compared with.
    """

    name: str
    description: str
    reduced: bool
    base: Mapping[str, Any]
    axes: tuple[tuple[Axis, list[Any]], ...]
    threads: int = 1
    interrupted: Literal["restart", "resume"] = "restart"
    machine: str | None = None
    baseline: Mapping[str, str] = field(default_factory=dict)


def ready_studies() -> dict[str, Path]:
    """Return the study files that come with the package, by name."""
    folder = Path(str(files("hybridnn.hpc_jobs"))) / "studies"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_study(name: Path | str, *, reduced: bool = False) -> Study:
    """Read a study from a file, or a ready study by its name; with `reduced`, apply the file's ``[reduced]``.

    Raises
    ------
    SettingError
        If there is no such study, the file is not TOML, or a name or value in it is not allowed.
    """
    path = ready_studies().get(str(name), Path(name))
    values = _read(path)
    try:
        return _make_study(values, str(name), reduced=reduced)
    except ValidationError as error:
        raise setting_error(error, tuple(StudyFile.model_fields)).in_file(shown_path(path)) from None
    except SettingError as error:
        raise error.in_file(shown_path(path)) from None


def _make_study(values: Table, name: str, *, reduced: bool) -> Study:
    file = StudyFile.model_validate(values)
    base, axes = deepcopy(file.base), file.axes
    if reduced:
        if file.reduced is None:
            raise SettingError("--reduced", name, "this study has no [reduced] settings")
        _merge(base, file.reduced.base)
        axes = {**axes, **file.reduced.axes}
    checked = _check_axes(_with_repeats(axes, file.compares), file.variants)
    machine = os.path.abspath(file.machine) if file.machine and Path(file.machine).suffix else file.machine
    return Study(
        file.name,
        file.description,
        reduced,
        base,
        checked,
        threads=file.threads,
        interrupted=file.interrupted,
        machine=machine,
        baseline=_check_baseline(file.baseline, checked),
    )


def _with_repeats(axes: Table, compares: Literal["times", "training"] | None) -> Table:
    """Add the default number of repeats where a study compares times and names none.

    By default, that is where an axis of `TIMED` or ``parallel.`` varies, and there are no seeds.
    """
    given = by_dotted_name(axes)
    if compares is None:
        varies = any(
            (name in TIMED or name.startswith("parallel.")) and isinstance(values, list) and _varies(values)
            for name, values in given.items()
        )
        compares = "times" if varies and "seeds" not in given else "training"
    return axes if compares == "training" or "repeats" in given else {**axes, "repeats": DEFAULT_REPEATS}


def _varies(values: list[Any]) -> bool:
    return len(values) > 1 or values == ["all"]


def _check_baseline(baseline: Table, axes: Sequence[tuple[Axis, list[Any]]]) -> dict[str, str]:
    """The values of a baseline as text, by label; `SettingError` for one that no axis has."""
    found: dict[str, str] = {}
    known = [axis.label for axis, _ in axes if axis.label not in REPEATED]
    for name, value in by_dotted_name(baseline).items():
        chosen = [(axis, values) for axis, values in axes if name in (axis.label, axis.name) and axis.label in known]
        if not chosen:
            raise SettingError(f"baseline.{name}", value, f"not an axis of this study: {', '.join(known) or 'none'}")
        axis, values = chosen[0]
        wanted = format_value(axis.check(value))
        texts = [format_value(known_value) for known_value in values]
        # Names of grids stand for other ones with every number of ranks; whether a cell has them is checked later.
        has_names = axis.label == "grid" and not {wanted, *texts}.isdisjoint(ALL_GRIDS)
        if wanted not in texts and not has_names:
            raise SettingError(f"baseline.{name}", value, f"not a value of this axis: {', '.join(texts)}")
        found[axis.label] = wanted
    return found


def has_values(values: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Whether values of axes, by label, are those of a baseline, whose grid may be ``batch`` or ``model``."""
    for label, text in wanted.items():
        found = format_value(values.get(label))
        if label == "grid" and text in BATCH_OR_MODEL:
            if not re.fullmatch(BATCH_OR_MODEL[text], found):
                return False
        elif found != text:
            return False
    return True


def _read(path: Path) -> Table:
    try:
        return read_toml(path)
    except FileError as error:
        ready = f"; ready studies: {', '.join(ready_studies())}" if error.is_missing else ""
        raise SettingError("study", str(path), error.reason + ready) from error


def _check_axes(axes: Table, variants: Mapping[str, Table]) -> tuple[tuple[Axis, list[Any]], ...]:
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

    return Axis("variants", "variant", lambda settings, value, ranks: _merge(settings, variants[value]), check)


def _merge(into: Table, changes: Mapping[str, Any]) -> None:
    """Replace values of nested tables by copies."""
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = deepcopy(value)


def _position(axis: Axis) -> tuple[int, str]:
    """Sort key of an axis."""
    if axis.name in AXES and axis.name != "repeats":
        return list(AXES).index(axis.name), ""
    return {"variants": (-1, ""), "repeats": (len(AXES) + 1, "")}.get(axis.name, (len(AXES), axis.name))
