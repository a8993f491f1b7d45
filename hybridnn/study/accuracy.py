"""Does it cost accuracy? Trainings of a study compared with its baseline, seed by seed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from hybridnn.study.judgement import Judgement, judge
from hybridnn.study.results import StudyPoint, StudyResults, point_name
from hybridnn.study.scaling import base_of
from hybridnn.study.statistics import CONFIDENCE
from hybridnn.utils.text import counted, joined

CONCLUSIONS = {"equal": "costs nothing", "lower": "costs accuracy", "higher": "higher", "undecided": "undecided"}


@dataclass(frozen=True)
class ComparedTraining:
    """Points of one training, whose records are equal to the bit, compared with the base.

    `last` is the difference of the metric after the last epoch, from which is concluded, and `best` that of the best
    metric; both have the interval of one of all `comparisons` of the study. They are None where the training is that of
    the base. `names` are the values of the axes in which the points differ from the base, and `group` those of others.
    """

    base: StudyPoint
    points: tuple[StudyPoint, ...]
    group: str
    base_name: str
    names: tuple[str, ...]
    last: Judgement | None
    best: Judgement | None
    margin: float | None
    comparisons: int

    @property
    def conclusion(self) -> str:
        """What the interval allows to be said, for a table."""
        return "the same training" if self.last is None else self.last.reservation or CONCLUSIONS[self.last.conclusion]

    @property
    def text(self) -> str:
        """A sentence on the difference to the base."""
        names, base, metric = joined(self.names), self.base_name, self.base.first.metric_name
        group, s = f"{self.group}: " * bool(self.group), "s" * (len(self.names) == 1)
        if self.last is None:
            return f"{group}{names} train{s} as {base}, to the bit."
        names += ", the same training to the bit," * (not s)
        quantity, margin = metric.removeprefix("test "), f"the margin of {self.margin}"
        seeds = counted(len(self.last.pairs), "seed")
        found = f"{metric} {self.last.text} over {seeds}" if self.last.pairs else "no figure"
        optimizers = [point.cells[0].run.header.optimizer for point in (self.points[0], self.base)]
        names += f" (with {optimizers[0]}, not {optimizers[1]})" * (optimizers[0] != optimizers[1])
        said = {
            "equal": f"{names} cost{s} nothing against {base}: {found}, within {margin}",
            "lower": f"{names} cost{s} {quantity} against {base}: {found}",
            "higher": f"{names} {'has' if s else 'have'} a higher {quantity} than {base}: {found}",
            "undecided": f"No difference of {names} to {base} can be told: {found}"
            + f", which is not wholly within {margin}" * (self.margin is not None),
        }[self.last.conclusion]
        if self.last.reservation:
            said = f"{self.last.reservation}, so nothing is concluded on {names} against {base}: {found}"
        return f"{group}{said}."

    @property
    def facts(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "points": [point.id for point in self.points],
            "against": self.base.id,
            "metric": self.base.first.metric_name,
            **{name: getattr(self, name) for name in ("margin", "comparisons", "conclusion", "text")},
            "seeds": 0 if self.last is None else len(self.last.pairs),
            "last_difference": self.last and vars(self.last.estimate),
            "best_difference": self.best and vars(self.best.estimate),
        }


def compare_trainings(results: StudyResults) -> list[ComparedTraining]:
    """Compare the metrics of a study of trainings with those of its baseline; none without a baseline or a metric.

    Trainings are equal to the bit where all losses and metrics of all seeds are; they are one comparison. What the
    statements of a study conclude is not concluded here too.
    """
    manifest, points = results.manifest, results.findings.points
    is_asked = manifest.compares == "training" and manifest.baseline and "statements" not in manifest.conclusions
    has_metric = any(point.metric is not None for point in points)
    found: dict[tuple[str, Hashable], tuple[StudyPoint, list[StudyPoint]]] = {}
    for point in points if is_asked and has_metric else ():
        base = base_of(results, point, points)
        if base is not None and base is not point:
            found.setdefault((base.id, _records(point)), (base, []))[1].append(point)
    number = sum(_records(base) != records for (_, records), (base, _) in found.items())
    return [_compared(results, base, equal, number) for base, equal in found.values()]


def _compared(
    results: StudyResults, base: StudyPoint, points: Sequence[StudyPoint], comparisons: int
) -> ComparedTraining:
    differing = [label for label in base.values if any(base.values[label] != it.values[label] for it in points)]
    base_name, *names = (" ".join(str(it.values[label]) for label in differing) for it in (base, *points))
    group, margin = point_name(results, base, without=differing), results.manifest.margin
    cells = [*points[0].cells, *base.cells]
    diverged = sum(cell.diverged for cell in cells)
    doubt = f"{diverged} of {counted(len(cells), 'run')} diverged" * (diverged > 0)

    def judged(*, best: bool) -> Judgement | None:
        if _records(points[0]) == _records(base):
            return None
        side, other, within = points[0].metrics(best=best), base.metrics(best=best), margin or 0.0
        return judge(side, other, "difference", comparisons=comparisons, margin=within, reservation=doubt)

    group = "" if group == results.manifest.name else group
    differences = judged(best=False), judged(best=True)
    return ComparedTraining(base, tuple(points), group, base_name, tuple(names), *differences, margin, comparisons)


def _records(point: StudyPoint) -> Hashable:
    """All losses and metrics of a point, by seed."""
    cells = [(str(cell.values.get("seed")), cell.figures.diverged_at, cell.run.epochs) for cell in point.cells]
    return tuple((*cell, *((it.train_loss, it.validation_loss, it.metric) for it in epochs)) for *cell, epochs in cells)


def accuracy_rows(results: StudyResults) -> list[dict[str, str]]:
    """The table of compared trainings: cells by title, a row for every point, those of the baseline first."""
    found = {point.id: training for training in compare_trainings(results) for point in training.points}
    bases = {training.base.id for training in found.values()}
    points = [point for point in results.points if point.id in bases]
    rows = []
    for point in points + [point for point in results.points if point.id in found.keys() - bases]:
        training, header = found.get(point.id), point.cells[0].run.header
        last, best = (training.last, training.best) if training is not None else (None, None)
        rows.append(
            {label: str(point.values[label]) for label in results.varying if label in point.values}
            | {point.first.metric_name: "-" if point.metric is None else point.metric.format()}
            | {"difference": "-" if last is None else last.text, "of the best": "-" if best is None else best.text}
            | {"mean staleness": "-" if header.mean_staleness is None else f"{header.mean_staleness:.3g}"}
            | {"optimizer": header.optimizer, "conclusion": training.conclusion if training else "the baseline"}
        )
    return rows


def accuracy_note(found: ComparedTraining) -> str:
    """Sentences below that table: what its columns and intervals are."""
    within = f"the interval lies within the margin of {found.margin} of the study file"
    return (
        "± is the standard deviation, the spread over the seeds and not an error of the mean. Difference: mean of "
        f"those to the baseline, seed by seed, after the last epoch [{CONFIDENCE:.0%} confidence interval of all "
        f"{counted(found.comparisons, 'comparison')}, Student's t]. Of the best: the same of the best epochs."
    ) + f" Costs nothing: {within}." * (found.margin is not None)
