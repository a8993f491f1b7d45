"""Answer of a study of layouts: the fastest one of every number of ranks, what it loses to, and what the model said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybridnn.study.results import StudyPoint, StudyResults, point_name
from hybridnn.study.scaling import LAYOUT, Comparison, alike_points, compare_points, layout_name
from hybridnn.study.statistics import Estimate, ratio_in_rounds
from hybridnn.utils.text import counted

LEAST_LOSS = 0.01  # share of the ranks' time from which on a part is named


@dataclass(frozen=True)
class Fastest:
    """The fastest of several layouts of a number of ranks, for one value of all other axes.

    `others` are the other layouts, by their time, each with its seconds over those of the fastest; `predicted` is the
    first choice of the model, None without predictions of all layouts, and `comparison` that with the base.
    """

    name: str  # of the values of the other axes; empty where there are none
    point: StudyPoint
    others: tuple[tuple[StudyPoint, Estimate], ...]
    predicted: StudyPoint | None
    comparison: Comparison | None

    @property
    def alike(self) -> list[StudyPoint]:
        """Layouts of which no difference to the fastest can be told: the interval contains 1, or there is none."""
        return [other for other, ratio in self.others if ratio.low is None or ratio.low <= 1]

    @property
    def text(self) -> str:
        """Sentences on the layout: how fast it is, against the next one and the base, what it loses to, the model."""
        named = f"{self.name}, " if self.name else ""
        seconds = f"{self.point.seconds_per_epoch.format()} s per epoch"
        first = f"{named}{counted(self.point.first.ranks, 'rank')}: {layout_name(self.point)} is the fastest, {seconds}"
        if not self.point.cells[0].run.header.layout.exact:
            first += " (not exact: it trains differently)"
        return " ".join([first + self._against_base(), self._against_next(), *self._model(), *self._disturbed()])

    def _against_base(self) -> str:
        found = self.comparison
        if found is None or found.base is self.point:
            return "."
        text = f", {found.speed_up.format('.2f')} times as fast as {counted(found.base.first.ranks, 'rank')}"
        lost = {name: share for name, share in (found.parts or {}).items() if name != "compute" and share >= LEAST_LOSS}
        if not lost:
            return text + "."
        parts = ", ".join(f"{name} {lost[name]:.0%}" for name in sorted(lost, key=lambda name: -lost[name]))
        return f"{text}; it loses to {parts} of the ranks' time."

    def _against_next(self) -> str:
        (other, ratio), alike = self.others[0], [item for item in self.others if item[0] in self.alike]
        if not alike:
            return f"The next, {layout_name(other)}, takes {ratio.format('.2f')} times as long."
        texts = [
            f"{layout_name(other)} ({ratio.format('.2f')} times as long{', without 3 repeats' * (ratio.low is None)})"
            for other, ratio in alike
        ]
        return f"No difference can be told to {' and '.join(filter(None, [', '.join(texts[:-1]), texts[-1]]))}."

    def _model(self) -> list[str]:
        if self.predicted is None:
            return []
        model = "The model, of a doubtful machine file," if self.predicted.first.prediction_doubt else "The model"
        if self.predicted is self.point:
            return [f"{model} said so."]
        ratio = next(ratio for other, ratio in self.others if other is self.predicted)
        return [f"{model} had chosen {layout_name(self.predicted)}, {ratio.format('.2f')} times as long."]

    def _disturbed(self) -> list[str]:
        cells = [cell for point in (self.point, *(other for other, _ in self.others)) for cell in point.cells]
        disturbed = sum(cell.is_disturbed for cell in cells)
        return [f"{disturbed} of its {counted(len(cells), 'run')} were disturbed by other processes."] * (disturbed > 0)

    @property
    def facts(self) -> dict[str, Any]:
        """Plain values, with units in the names."""
        return {
            "values": {label: value for label, value in self.point.values.items() if label not in LAYOUT},
            "ranks": self.point.first.ranks,
            "layout": layout_name(self.point),
            "seconds_per_epoch": self.point.seconds_per_epoch.value,
            "no_difference_to": [layout_name(point) for point in self.alike],
            "times_as_long": {layout_name(other): vars(ratio) for other, ratio in self.others},
            "predicted": None if self.predicted is None else layout_name(self.predicted),
            "text": self.text,
        }


def fastest_layouts(results: StudyResults) -> list[Fastest]:
    """Return the fastest layout of every number of ranks that has several with times, which do the same work."""
    comparisons = compare_points(results)
    timed = [point for point in results.points if point.is_timed]
    alike = alike_points(timed, constant=lambda p: (p.first.train_samples, p.first.batch_size, p.first.ranks))
    several = [points for points in alike if len({layout_name(point) for point in points}) > 1]
    return [_fastest(results, points, comparisons) for points in sorted(several, key=lambda p: p[0].first.ranks)]


def _fastest(results: StudyResults, points: Sequence[StudyPoint], comparisons: dict[str, Comparison]) -> Fastest:
    best, *others = sorted(points, key=lambda point: point.seconds_per_epoch.value)
    name = point_name(results, best, without=LAYOUT)
    said = {point.predicted_seconds_per_epoch: point for point in points}
    return Fastest(
        "" if name == results.manifest.name else name,
        best,
        tuple((other, ratio_in_rounds(other.rounds, best.rounds)) for other in others),
        None if None in said else said[min(seconds for seconds in said if seconds is not None)],
        comparisons.get(best.cells[0].id),
    )
