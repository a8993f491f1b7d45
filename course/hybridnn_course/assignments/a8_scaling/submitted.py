"""The texts of a submission as values: the study with its cells, the rows of the data, and the claims."""

from __future__ import annotations

import csv
import io
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, prod
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hybridnn.errors import HybridnnError, one_line
from hybridnn.runs.quantities import karp_flatt_fraction
from hybridnn.study.axes import has_values
from hybridnn.study.cells import Cell, make_cells
from hybridnn.study.statistics import Estimate, median_of, ratio_of_medians
from hybridnn.study.study_file import Study, load_study
from hybridnn.utils.files import parse_toml
from hybridnn.utils.settings_models import first_problem
from hybridnn_course.answers import NOT_WRITTEN, Failure
from hybridnn_course.assignment import Variant
from hybridnn_course.execution import StudentError

STUDY, JOB, RESULTS, CLAIMS, REPORT = FILES = ("study.toml", "job.sbatch", "results.csv", "claims.toml", "report.md")
TEMPLATES = {path.name: path.read_text("utf-8").strip() for path in Path(__file__).parent.glob("templates/*.*")}
LONGEST = 50_000  # characters of a study file
MOST_CELLS = 2_000

NUMBERS = ("ranks", "threads_per_rank", "batch_size", "seconds_per_epoch", "seconds_per_step")
"""Columns of the data that must be numbers above 0."""

QUANTITIES = ("speed_up", "efficiency", "serial_fraction", "seconds_per_epoch", "seconds_per_step")
LAYOUT = frozenset({"ranks", "grid", "nodes", "ranks-per-node"})  # what a point and its base may differ in
REPEATED = frozenset({"repeat", "seed"})


def problem(kind: str, text: str) -> StudentError:
    """The failure of a check: problems of one kind are the same mistake."""
    return StudentError(Failure(kind, text))


@dataclass(frozen=True)
class Row:
    """A cell of ``results.csv``; `values` are those of its axes, by label."""

    id: str
    columns: Mapping[str, str]
    values: Mapping[str, str]
    numbers: Mapping[str, float]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return int(self.numbers["ranks"])


@dataclass(frozen=True)
class Point:
    """Rows that differ in repeat and seed alone."""

    values: Mapping[str, str]
    rows: tuple[Row, ...]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.rows[0].ranks

    def times(self, name: str = "seconds_per_epoch") -> list[float]:
        """Times of all rows."""
        return [row.numbers[name] for row in self.rows]


class Claim(BaseModel):
    """A number that the report states."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    says: str = Field(min_length=1)
    quantity: str
    where: dict[str, int | str]
    value: float
    low: float | None = None
    high: float | None = None
    because: str = ""


class Claims(BaseModel):
    """Content of ``claims.toml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True)
class Submitted:
    """The texts of a submission, by name, and what they say."""

    texts: Mapping[str, str]
    variant: Variant

    def require_written(self, name: str) -> str:
        """The text of a file; a failure of kind `NOT_WRITTEN` where it is that of the template."""
        text = self.texts[name]
        if text.strip() in ("", TEMPLATES.get(name)):
            raise problem(NOT_WRITTEN, f"{name}: not written yet")
        return text

    @cached_property
    def study(self) -> Study:
        """The study of ``study.toml``."""
        text = self.require_written(STUDY)
        if len(text) > LONGEST:
            raise problem("study cannot be read", f"{STUDY}: longer than {LONGEST:,} characters")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, STUDY)
            path.write_text(text, encoding="utf-8")
            try:
                study = load_study(path)
            except HybridnnError as error:
                raise problem("study cannot be read", one_line(str(error).replace(f"{folder}/", ""))) from None
        if prod(len(values) for _, values in study.axes) > MOST_CELLS:
            raise problem("study cannot be read", f"{STUDY}: more than {MOST_CELLS:,} cells")
        return study

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of the study."""
        try:
            return make_cells(self.study).cells
        except HybridnnError as error:
            raise problem("study cannot be read", f"{STUDY}: {one_line(str(error))}") from None

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The finished rows of ``results.csv``."""
        reader = csv.DictReader(io.StringIO(self.require_written(RESULTS)))
        names = reader.fieldnames or []
        if missing := [name for name in ("id", "outcome", "axis.ranks", *NUMBERS) if name not in names]:
            raise problem("data cannot be read", f"{RESULTS}: there is no column {missing[0]}")
        found = tuple(_row(columns) for columns in reader if columns["outcome"] == "finished")
        if not found:
            raise problem("no data", f"{RESULTS}: there is no finished row")
        return found

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """The rows by their axes."""
        groups: dict[tuple[tuple[str, str], ...], list[Row]] = {}
        for row in self.rows:
            key = tuple((label, text) for label, text in row.values.items() if label not in REPEATED)
            groups.setdefault(key, []).append(row)
        return tuple(Point(dict(key), tuple(rows)) for key, rows in groups.items())

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """The claims of ``claims.toml``."""
        try:
            found = Claims.model_validate(parse_toml(self.require_written(CLAIMS))).claims
        except ValidationError as error:
            raise problem("claims cannot be read", f"{CLAIMS}: {first_problem(error)}") from None
        except ValueError as error:
            raise problem("claims cannot be read", f"{CLAIMS}: is not valid TOML: {one_line(str(error))}") from None
        if not found:
            raise problem("no claims", f"{CLAIMS}: there is no [[claims]]")
        return found

    def points_of(self, where: Mapping[str, int | str]) -> list[Point]:
        """The points that have these values of axes."""
        wanted = {label: str(value) for label, value in where.items()}
        return [point for point in self.points if has_values(point.values, wanted)]

    def base_of(self, point: Point, ranks: int = 1) -> Point | None:
        """The fastest point on one rank, or on another number of them, that is otherwise like `point`."""
        fixed = {label: text for label, text in point.values.items() if label not in LAYOUT}
        found = [other for other in self.points if other.ranks == ranks and has_values(other.values, fixed)]
        return min(found, key=lambda other: median(other.times()), default=None)

    def measured(self, quantity: str, point: Point, base: Point | None) -> Estimate:
        """A quantity of a point with its interval; `base` is what speed-ups are against."""
        if quantity.startswith("seconds"):
            return median_of(point.times(quantity))
        if base is None:
            raise problem("no serial run", f"{RESULTS}: there is no row on one rank like {dict(point.values)}")
        speed_up = ratio_of_medians(base.times(), point.times())
        ratio = point.ranks / base.ranks
        if quantity == "efficiency":
            return speed_up.scaled(1 / ratio)
        if quantity == "serial_fraction":
            return Estimate(karp_flatt_fraction(speed_up.value, ratio) or 0.0)
        return speed_up


def _row(columns: Mapping[str, str]) -> Row:
    numbers = {}
    for name in NUMBERS:
        try:
            numbers[name] = float(columns[name])
        except (TypeError, ValueError):
            numbers[name] = -1.0
        if not (isfinite(numbers[name]) and numbers[name] > 0):
            raise problem("data cannot be read", f"{RESULTS}: {name} of {columns['id']} is {columns[name]!r}")
    values = {
        name.removeprefix("axis."): text or "" for name, text in columns.items() if name and name.startswith("axis.")
    }
    if values.get("repeat", "1") == "":
        values["repeat"] = "1"
    return Row(columns["id"], columns, values, numbers)


# -- batch script ------------------------------------------------------------------------------------------------------

SHORT = {"-N": "nodes", "-n": "ntasks", "-c": "cpus-per-task", "-t": "time", "-p": "partition", "-J": "job-name"}


@dataclass(frozen=True)
class BatchScript:
    """A batch script: the options of its directives, and its commands without comments, one for each line."""

    options: Mapping[str, str]
    late: tuple[str, ...]  # directives after the first command, which Slurm ignores
    commands: tuple[str, ...]
    shebang: str

    def number(self, name: str, default: int) -> int:
        """A whole number of an option."""
        text = self.options.get(name, "")
        return int(text) if re.fullmatch(r"[0-9]+", text) else default


def parse_script(text: str) -> BatchScript:
    """Read a batch script as Slurm does."""
    options: dict[str, str] = {}
    late: list[str] = []
    commands: list[str] = []
    lines = text.replace("\\\n", " ").splitlines()
    for line in lines:
        stripped = line.strip()
        if line.startswith("#SBATCH"):
            if commands:
                late.append(stripped)
            else:
                options |= _options(stripped.removeprefix("#SBATCH").partition(" #")[0].split())
        elif stripped and not stripped.startswith("#"):
            commands.append(stripped)
    return BatchScript(options, tuple(late), tuple(commands), lines[0] if lines else "")


def _options(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("-"):
            key, _, value = word.partition("=")
            if not key.startswith("--") and len(key) > 2:
                key, value = key[:2], key[2:]
            name = SHORT.get(key, key.lstrip("-"))
            found[name] = value
        elif name:
            found[name] = word
    return found


def texts_of(found: Any) -> dict[str, str]:
    """The texts of all files of a submission; an empty one for a file that it lacks."""
    given = found if isinstance(found, Mapping) else {}
    return {name: str(given.get(name, "")) for name in FILES}
