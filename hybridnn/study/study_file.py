"""Study files: a base configuration, and the axes along which it varies.

A cell is one combination of the axes' values. Every axis checks its values and applies them to the settings of a run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from hybridnn.errors import EnvironmentProblem, SettingError
from hybridnn.study.axes import ChosenAxes, Table, check_axes, merge, parse_layout, values_as_text
from hybridnn.utils.checks import Checked, Count, Positive
from hybridnn.utils.files import FileError, read_toml
from hybridnn.utils.settings_models import FilePath, Section, by_dotted_name, setting_error
from hybridnn.utils.text import shown_path, to_json, user_path

TIMED = frozenset({"ranks", "nodes", "ranks_per_node", "layouts", "splits", "threads", "binding"})
"""Axes that change the time of a run but, with exact methods, not its training; as those of ``parallel.``"""

ENTRY_POINTS = "hybridnn.studies"
"""Group of entry points of packages whose folder ``studies`` has ready studies, and whose module ``conclusions`` checks
and evaluates the keys of `Conclusions`."""

DEFAULT_REPEATS = 5  # of studies that compare times

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

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


# Values that the distribution checks which evaluates them.
_Number = Annotated[Any, Checked(lambda value: value, "a number")]
_Names = Annotated[Any, Checked(lambda value: value, "a list of texts")]
_Tables = Annotated[Any, Checked(lambda value: value, "a list of tables")]


def _settings_in_file(base: Any) -> Any:
    """The settings that all cells share; those in a file in place of its path."""
    if not isinstance(base, str):
        return base
    try:
        return read_toml(user_path(base))
    except FileError as error:
        raise SettingError("base", base, error.reason) from error


class Conclusions(Section):
    """What a study concludes from its runs: keys that a distribution such as hybridnn-papers checks and evaluates."""

    target: _Number = Field(None, description="Test metric that measures such as the epochs to a target refer to.")
    best_over: _Names = Field(None, description="Axes of which tables and statements take the best value.")
    columns: _Names = Field(None, description="Further measures in the tables of the report.")
    statements: _Tables = Field(None, description="Claims of a paper, each with a verdict in the report.")

    @property
    def given(self) -> Table:
        """The keys in the file, as they are."""
        return {name: getattr(self, name) for name in Conclusions.model_fields if name in self.model_fields_set}


class _Reduced(Conclusions):
    """``[reduced]``: changes for the short form of a study."""

    base: Table = Field(default_factory=dict, description="Settings in place of those in `base`.")
    axes: Table = Field(default_factory=dict, description="Axes in place of those in `axes`.")
    minutes: Positive | None = Field(None, description="Minutes that the short form takes, about.")


class StudyFile(Conclusions):
    """Schema of a study file; the descriptions of its keys are those of the reference."""

    name: Name = Field(description="Name of the study, and of its folder: letters, digits, `.`, `_` and `-`.")
    description: str = Field("", description="One line for lists and reports.")
    paper: str = Field("", description="Paper, and its figure or table, that the study repeats; for lists and reports.")
    minutes: Positive | None = Field(
        None, description="Minutes that the study takes, about, on the machine that it is meant for."
    )
    threads: Count = Field(1, description="BLAS threads of every rank of every cell.")
    interrupted: Literal["restart", "resume"] = Field(
        "restart",
        description="How a cell runs again that did not end: `'restart'` from the beginning, so that its times are "
        "those of one run; `'resume'` from its newest checkpoint.",
    )
    compares: Literal["times", "training"] | None = Field(
        None,
        description="What the cells are compared by. `'times'` runs every cell 5 times unless `axes.repeats` names "
        "another number; `'training'` runs it once. By default `'times'` where axes of ranks, layouts, splits, "
        "placement or `parallel.` vary and there are no `seeds`.",
    )
    baseline: Table = Field(
        default_factory=dict,
        description="Values of axes, such as `{grid = 'batch'}`: speed-ups and differences of metrics are against "
        "cells that have them and the same values of all other axes. Without it, a study that compares times of "
        "layouts has a cell of one rank.",
    )
    margin: Positive | None = Field(
        None, description="Difference of the test metric to the baseline up to which a training costs nothing."
    )
    machine: FilePath | None = Field(
        None,
        description="Machine file for predictions: a `.toml` or `.json` file, from the working folder, or the name of "
        "one that ships with hybridnn. Without it that of `hybridnn train`.",
    )
    in_process: bool = Field(
        False,
        description="Whether the ranks of a cell take turns in one process, without MPI: many stages on few cores. "
        "Such cells have no times.",
    )
    base: Annotated[Table, BeforeValidator(_settings_in_file)] = Field(
        default_factory=dict,
        description="Settings that all cells share, as in a settings file, or a path to one, from the working folder.",
    )
    axes: Table = Field(description="Lists of values by axis. Every combination of values is a cell.")
    variants: dict[Name, Table] = Field(
        default_factory=dict, description="Settings by name. The names are an axis; `axes.variants` may choose some."
    )
    reduced: _Reduced | None = Field(None, description="Changes for the short form of the study, `--reduced`.")


@dataclass(frozen=True)
class Study:
    """A form of a study, full or reduced, with checked axes, in the order in which cells are named.

    `keys` are those of the file, for the reduced form with its `base` and `minutes`; `compares` is known, and `machine`
    is an absolute path or a name. `other_axes` are those of the other form, `baseline` has values as text, by label,
    and `path` is that of the file, as messages show it.
    """

    keys: StudyFile
    reduced: bool
    axes: ChosenAxes
    other_axes: ChosenAxes
    baseline: Mapping[str, str]
    path: str


def ready_studies() -> dict[str, Path]:
    """Return the study files of installed distributions, such as hybridnn-papers, by name."""
    packages = [point.value for point in entry_points(group=ENTRY_POINTS)]
    folders = [Path(str(files(package))) / "studies" for package in packages]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def conclusions_module() -> Any:
    """Import the module of an installed distribution that checks and evaluates conclusions.

    Raises `EnvironmentProblem` without one.
    """
    for point in entry_points(group=ENTRY_POINTS):
        if find_spec(module := f"{point.value}.conclusions"):
            return import_module(module)
    keys = ", ".join(Conclusions.model_fields)
    raise EnvironmentProblem(f"the keys {keys} of a study need hybridnn-papers: pip install hybridnn-papers")


def load_study(name: Path | str, *, reduced: bool = False) -> Study:
    """Read a study from a file, or a ready study by its name; with `reduced`, apply the file's ``[reduced]``.

    Raises `SettingError` if there is no such study, the file is not TOML, or a name or value in it is not allowed.
    """
    path = ready_studies().get(str(name), Path(name))
    values = _read(path)
    try:
        file = StudyFile.model_validate(values)
        base, axes, short = deepcopy(file.base), file.axes, file.reduced
        minutes, other = file.minutes, {**axes, **(short.axes if short else {})}
        if reduced:
            if short is None:
                raise SettingError("--reduced", str(name), "this study has no [reduced] settings")
            merge(base, short.base)
            minutes, axes, other = short.minutes, other, axes
        compares = _what_is_compared(file, axes)
        if compares == "times":
            axes = {"repeats": DEFAULT_REPEATS, **axes}
        chosen = check_axes(axes, file.variants)
        others = check_axes(other, file.variants)
        machine = os.path.abspath(file.machine) if file.machine and Path(file.machine).suffix else file.machine
        changes = {"base": base, "compares": compares, "machine": machine, "minutes": minutes}
        baseline = _check_baseline(file.baseline, chosen)
        return Study(file.model_copy(update=changes), reduced, chosen, others, baseline, shown_path(path))
    except ValidationError as error:
        raise setting_error(error, tuple(StudyFile.model_fields)).in_file(shown_path(path)) from None
    except SettingError as error:
        raise error.in_file(shown_path(path)) from None


def _what_is_compared(file: StudyFile, axes: Table) -> str:
    """By default times, where an axis of `TIMED` or ``parallel.`` varies, and there are no seeds."""
    if file.in_process:
        if file.compares == "times":
            raise SettingError("compares", "times", "ranks that take turns in one process (in_process) have no times")
        return "training"
    if file.compares is not None:
        return file.compares
    given = by_dotted_name(axes)
    varies = any(
        (name in TIMED or name.startswith("parallel."))
        and isinstance(values, list)
        and (len(values) > 1 or (name == "layouts" and not all(parse_layout(value).is_one for value in values)))
        for name, values in given.items()
    )
    return "times" if varies and "seeds" not in given else "training"


def _check_baseline(baseline: Table, axes: ChosenAxes) -> dict[str, str]:
    """The values of a baseline as text, by label; `SettingError` for one that no axis has."""
    # A list is one value, which none of a baseline may be.
    given = {name: [value] if isinstance(value, list) else value for name, value in by_dotted_name(baseline).items()}
    return {label: text for label, (text,) in values_as_text("baseline", given, axes).items()}


def _read(path: Path) -> Table:
    try:
        return read_toml(path)
    except FileError as error:
        names = ", ".join(ready_studies())
        ready = f"ready studies: {names}" if names else "pip install hybridnn-papers adds the studies of the papers"
        raise SettingError("study", str(path), error.reason + (f"; {ready}" if error.is_missing else "")) from error


def new_study(name: str, settings: Path, ranks: str) -> str:
    """Return the text of a study file that compares the layouts of a training; `ranks` are numbers with commas."""
    if not re.fullmatch(r"[1-9][0-9]*(,[1-9][0-9]*)*", ranks):
        raise SettingError("--ranks", ranks, "must be numbers of ranks, such as 1,2,4")
    return NEW.format(name=to_json(name), base=to_json(str(settings)), ranks=ranks.replace(",", ", "))
