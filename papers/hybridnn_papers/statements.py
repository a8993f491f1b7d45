"""Statements of a study file: the checkable claims of a paper, and the points of the study that they compare."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from hybridnn.errors import SettingError
from hybridnn.study.axes import REPEATED, ChosenAxes, Table, chosen_axis, format_value, has_value, values_as_text
from hybridnn.utils.checks import Range, must_be_one_of, refused
from hybridnn.utils.settings_models import Section, Text, Texts, list_as_tuple
from hybridnn_papers.measures import MEASURES

QUANTITY = "quantity"  # key of `against` that names another measure instead of values of an axis

TestMetric = Annotated[float, Range(at_most=1)]


def _check_measure(key: str, name: str) -> str:
    if name not in MEASURES:
        raise refused(key, name, must_be_one_of(tuple(MEASURES)))
    return name


class Statement(Section):
    """A claim that the runs of a study can bear out or contradict.

    It compares one measure at points of the study. A point is a combination of values of all axes but seeds and
    repeats. There is one comparison for every combination of the axes that `where`, `over` and `along` leave free.
    """

    says: Text = Field(description="The claim in a sentence.")
    source: str = Field("", description="Figure, table or section of the paper.")
    quantity: Text = Field(description="The measure that is compared.")
    where: Table = Field(
        default_factory=dict,
        description="Values of axes, by label: one, or a list of which every value is compared. Grids may also be "
        "`'batch'`, `'model'` or `'mixed'` (several ranks along both).",
    )
    against: Table = Field(
        default_factory=dict,
        description="What the points are compared with: the point with these values and otherwise the same ones. "
        "`quantity` is another measure instead, at the same point or at that one. Without it, the bounds are of the "
        "measure itself.",
    )
    by: Literal["difference", "ratio"] = Field(
        "difference", description="How a point is compared with `against`: the difference or the ratio."
    )
    over: Texts = Field(
        (), description="Axes of which one value counts, on both sides of the comparison: the better one."
    )
    along: str = Field(
        "", description="Axis of a trend: numbers ascending, other values in the order of `where` or else of the study."
    )
    trend: Literal["increasing", "decreasing"] | None = Field(
        None, description="Whether every value along the axis is at least, or at most, the one before."
    )
    at_least: float | None = Field(
        None, description="Lower bound. Equal bounds demand equality in every single run, seed by seed."
    )
    at_most: float | None = Field(None, description="Upper bound.")
    any: bool = Field(False, description="Whether one combination is enough, in place of all.")
    about: Literal["paper", "library"] = Field(
        "paper",
        description="What the statement speaks about. One about the library, such as its own count of bytes, is no "
        "support of the paper, and reports count it apart.",
    )

    @field_validator("quantity")
    @classmethod
    def _known(cls, quantity: str) -> str:
        return _check_measure("", quantity)

    @model_validator(mode="after")
    def _consistent(self) -> Statement:
        self._check_bounds()
        if (other := self.against.get(QUANTITY)) is not None:
            _check_measure(f"against.{QUANTITY}", other)
        for key, needed in (("by", "against"), ("along", "trend"), ("trend", "along")):
            if key in self.model_fields_set and not getattr(self, needed):
                raise refused(key, getattr(self, key), f"needs {needed} beside it")
        if self.over and not MEASURES[self.quantity].better:
            raise refused("over", self.over, f"is not for {self.quantity}, which has no better direction")
        if self.demands_equality and (self.over or MEASURES[self.quantity].kind == "time"):
            raise refused(
                "at_most", self.at_most, "equal bounds are for results of a training and exact measures, without over"
            )
        return self

    def _check_bounds(self) -> None:
        least, most = self.at_least, self.at_most
        if self.trend is not None:
            if least is not None or most is not None:
                raise refused("trend", self.trend, "stands in place of at_least and at_most")
        elif least is None and most is None:
            raise refused("at_least", None, "is needed, or at_most, or a trend")
        if least is not None and most is not None and least > most:
            raise refused("at_least", least, f"must be at most at_most = {most:g}")

    @property
    def expected(self) -> str:
        """What is held against which bounds, as text."""
        text = MEASURES[self.quantity].text
        if self.trend is not None:
            return f"{text} {self.trend} along {self.along}"
        text += f", {self.by}" * bool(self.against)
        bounds = {"at least": self.at_least, "at most": self.at_most}
        return f"{text}: " + ", ".join(f"{name} {bound:g}" for name, bound in bounds.items() if bound is not None)

    @property
    def demands_equality(self) -> bool:
        """Whether the bounds allow one value alone."""
        return self.at_least is not None and self.at_least == self.at_most

    @property
    def other_quantity(self) -> str:
        """The measure of `against`."""
        return str(self.against.get(QUANTITY, self.quantity))

    @property
    def other_values(self) -> Table:
        """The values of axes in `against`."""
        return {label: values for label, values in self.against.items() if label != QUANTITY}

    def checked(self, key: str, axes: ChosenAxes) -> Statement:
        """The statement with labels of axes, and lists of texts as their values.

        Raises `SettingError` for an axis or value that the study has not; `key` is that of the statement.
        """
        along = _labels(f"{key}.along", (self.along,), axes)[0] if self.along else ""
        over = _labels(f"{key}.over", self.over, axes)
        where = values_as_text(f"{key}.where", self.where, axes)
        other = values_as_text(f"{key}.against", self.other_values, axes)
        for label in (*over, along):
            if label == along and (label in over or label in other):
                raise SettingError(f"{key}.along", along, "is in over or against too")
        against: dict[str, Any] = dict(other)
        if QUANTITY in self.against:
            against[QUANTITY] = self.other_quantity
        return self.model_copy(update={"along": along, "over": over, "where": where, "against": against})


def _labels(key: str, names: tuple[str, ...], axes: ChosenAxes) -> tuple[str, ...]:
    return tuple(chosen_axis(name, axes, key, name)[0].label for name in names)


Statements = Annotated[tuple[Statement, ...], BeforeValidator(list_as_tuple)]


class Conclusions(Section):
    """What a study concludes from its runs; its keys are those of a study file."""

    target: TestMetric | None = Field(
        default=None,
        description="Test accuracy or R² that `epochs_to_target`, `seconds_to_target` and `converged` refer to.",
    )
    best_over: Texts = Field(
        default=(),
        description="Axes, such as `'optimizer.lr'`, of which tables and statements take the best value: that of the "
        "highest mean best metric over the seeds. Statements that name the axis take the values it says.",
    )
    columns: Texts = Field(
        default=(), description="Measures that the tables of the report show, beside those of the statements."
    )
    statements: Statements = Field(default=(), description="Claims, each with a verdict in the report.")

    @field_validator("columns")
    @classmethod
    def _known(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_check_measure("", name) for name in columns)

    def checked(self, section: str, axes: ChosenAxes) -> Conclusions:
        """The conclusions with labels of axes, and lists of texts as their values.

        Parameters
        ----------
        section : str
            What messages put before ``statements``: empty, or ``"reduced."``.
        axes : sequence
            The study's axes with the values that any of its forms has.

        Raises
        ------
        SettingError
            If a statement names an axis or value that the study has not, or needs a target and there is none.
        """
        statements = []
        for number, statement in enumerate(self.statements):
            key = f"{section}statements[{number}]"
            statements.append(statement.checked(key, axes))
            self._require_target(f"{key}.quantity", statement.quantity)
            self._require_target(f"{key}.against.{QUANTITY}", statement.other_quantity)
        for name in self.columns:
            self._require_target("columns", name)
        best_over = _labels("best_over", self.best_over, axes)
        return self.model_copy(update={"statements": tuple(statements), "best_over": best_over})

    def _require_target(self, key: str, quantity: str) -> None:
        if MEASURES[quantity].needs_target and self.target is None:
            raise SettingError(key, quantity, "needs target, a test accuracy or R², in the study file")


@dataclass(frozen=True)
class Point:
    """Cells that differ in repeat and seed alone, finished or not; `values` are those of the other axes, by label."""

    values: Mapping[str, Any]
    cells: tuple[str, ...]

    def text(self, label: str) -> str:
        """The value of an axis."""
        return format_value(self.values.get(label))


@dataclass(frozen=True)
class Pair:
    """Two sides of a comparison: the points of which one counts, by `over` and `best_over`.

    `along` is the value of the axis of the trend, or empty. `against` is None where the bounds are of the measure
    itself, and empty where no cell has the values that the statement asks for.
    """

    along: str
    points: tuple[Point, ...]
    against: tuple[Point, ...] | None


@dataclass(frozen=True)
class Combination:
    """Pairs for one combination of the free axes, whose values are `values`; of a trend, in its order."""

    values: Mapping[str, str]
    pairs: tuple[Pair, ...]


def points_of(cells: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Point]:
    """Group cells, each an id with the values of its axes, into points."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    values: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for name, given in cells:
        own = {label: value for label, value in given.items() if label not in REPEATED}
        key = tuple((label, format_value(value)) for label, value in own.items())
        groups.setdefault(key, []).append(name)
        values.setdefault(key, own)
    return [Point(values[key], tuple(names)) for key, names in groups.items()]


def best_axes(statement: Statement, best_over: Iterable[str]) -> tuple[str, ...]:
    """The axes of `best_over` that the statement does not name."""
    named = {*statement.where, *statement.other_values, *statement.over, statement.along}
    return tuple(label for label in best_over if label not in named)


def combinations_of(
    statement: Statement, points: Sequence[Point], best_over: Iterable[str]
) -> tuple[list[Combination], list[str]]:
    """Find the points that a checked statement compares.

    Returns
    -------
    combinations : list of Combination
    missing : list of str
        Values that the statement names and no cell has, as text; for example those of the full form in the short one.
    """
    chosen = [point for point in points if _has_all(point, statement.where)]
    missing = _without_cell(statement.where, chosen)
    bound = {*statement.over, statement.along, *best_axes(statement, best_over)}
    groups: dict[tuple[tuple[str, str], ...], list[Point]] = {}
    for point in chosen:
        key = tuple((label, point.text(label)) for label in point.values if label not in bound)
        groups.setdefault(key, []).append(point)
    if statement.other_values:
        missing += _without_cell(statement.other_values, [p for p in points if _has_all(p, statement.other_values)])
    found = []
    for key, group in groups.items():
        pairs: dict[tuple[tuple[str, str], ...], list[Pair]] = {}
        for along in _along_order(statement, group):
            side = [point for point in group if not along or point.text(statement.along) == along]
            for other_key, other in _other_sides(statement, side, points, bound).items():
                if other != side or statement.other_quantity != statement.quantity:
                    pair = Pair(along, tuple(side), None if other is None else tuple(other))
                    pairs.setdefault(other_key, []).append(pair)
        found += [Combination(dict(key), tuple(listed)) for listed in pairs.values()]
    return found, missing


def _has_all(point: Point, wanted: Mapping[str, Sequence[str]]) -> bool:
    return all(any(has_value(point.values, label, text) for text in texts) for label, texts in wanted.items())


def _without_cell(wanted: Mapping[str, Sequence[str]], points: Sequence[Point]) -> list[str]:
    """Values that none of the points has."""
    return [
        f"{label} {text}"
        for label, texts in wanted.items()
        for text in texts
        if not any(has_value(point.values, label, text) for point in points)
    ]


def _other_sides(
    statement: Statement, side: Sequence[Point], points: Sequence[Point], bound: Collection[str]
) -> dict[tuple[tuple[str, str], ...], list[Point] | None]:
    """What the points of a side are compared with, for every combination of the values in `against`."""
    if not statement.against:
        return {(): None}
    changed = statement.other_values
    free = [label for label in side[0].values if label not in changed and label not in bound]
    free += [statement.along] if statement.along else []
    kept = {label: texts for label, texts in statement.where.items() if label not in changed}
    found: dict[tuple[tuple[str, str], ...], list[Point] | None] = {}
    for point in points:
        same = all(point.text(label) == side[0].text(label) for label in free)
        if same and _has_all(point, changed) and _has_all(point, kept):
            key = tuple((label, point.text(label)) for label in changed if label not in bound)
            found[key] = [*(found.get(key) or []), point]
    return found or {(): []}


def _along_order(statement: Statement, points: Sequence[Point]) -> list[str]:
    """The values of the axis of a trend: numbers ascending, others as the statement or else the study lists them."""
    if not statement.along:
        return [""]
    values = {point.text(statement.along): point.values[statement.along] for point in points}
    if all(isinstance(value, int | float) for value in values.values()):
        return sorted(values, key=lambda text: values[text])
    listed = [text for text in statement.where.get(statement.along, []) if text in values]
    return list(dict.fromkeys([*listed, *values]))
