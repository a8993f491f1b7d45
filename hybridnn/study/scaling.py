"""Scaling of runs and studies: points compared with their base, lines of strong and weak scaling, grids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hybridnn.cost.prediction.times import parts_of_efficiency
from hybridnn.runs.quantities import figures_of
from hybridnn.runs.run_files import RunRecord
from hybridnn.study.axes import has_values
from hybridnn.study.judgement import Estimate, Judgement, judge
from hybridnn.study.results import FOLDER, CellResult, Key, StudyPoint, StudyResults, fastest_by, point_name
from hybridnn.utils.text import counted

LAYOUT = frozenset({"ranks", "nodes", "grid", "method"})
WORK = frozenset({"batch", "batch-per-rank", "samples-per-rank", "training.batch_size", "data.rows"})
"""Axes that change the number of samples of an epoch or a minibatch."""


@dataclass(frozen=True)
class Comparison:
    """A point compared with its base.

    The speed-up is that of training samples per second: for the same work, seconds of the base over seconds, as
    `judged` in the rounds that both have. The
    efficiency is the speed-up over the ratio of the ranks; in weak scaling, where the samples of an epoch or of a
    minibatch grow with the ranks, these are seconds of the base over seconds, per epoch or per step. `serial_fraction`
    is that of Karp and Flatt, None unless the same work runs on more ranks than that of the base. `parts` are those of
    the ranks' time (`parts_of_efficiency`), None without the records of the steps. `predicted_speed_up` is None unless
    both points have a prediction.
    """

    point: StudyPoint
    base: StudyPoint
    judged: Judgement
    speed_up: Estimate
    efficiency: Estimate
    serial_fraction: float | None
    parts: dict[str, float] | None
    predicted_speed_up: float | None

    @property
    def is_disturbed(self) -> bool:
        """Whether processes of others disturbed the point or its base."""
        return self.point.is_disturbed or self.base.is_disturbed

    @property
    def differs_in_ranks(self) -> bool:
        """Whether a speed-up can only come from more ranks: not from another method of stages, for example."""
        point, base = self.point, self.base
        same_method = base.grid[0] == 1 or base.first.method == point.first.method
        is_alike = _other_values(point, LAYOUT) == _other_values(base, LAYOUT)
        return same_method and is_alike and point.first.ranks > base.first.ranks


def karp_flatt_fraction(speed_up: float, ranks: float) -> float | None:
    """Return the serial fraction ``(1/S - 1/p) / (1 - 1/p)`` of speed-up S on p times the ranks; None where p is 1.

    It is the part that cannot be parallel in Amdahl's law. Where it grows with the ranks, overhead of the parallel run
    limits the speed-up rather than a serial part (Karp and Flatt 1990, Measuring parallel processor performance).
    """
    return (1 / speed_up - 1 / ranks) / (1 - 1 / ranks) if ranks > 1 else None


def compare_points(results: StudyResults) -> dict[str, Comparison]:
    """Compare the points with their bases, by the id of a point's first cell; without times or base it is left out.

    With a baseline, the base has its values, and those of the point in all other axes; where ranks and grid are not in
    the baseline and cannot be the same, it has the fewest ranks. Without one, the base has the fewest ranks of the
    points that differ in ranks and grid alone. Of several, it is the fastest in the rounds that all have.
    """
    found = {}
    for point in results.timed:
        if (base := base_of(results, point, results.timed)) is not None:
            found[point.id] = compare_with(point, base)
    return found


def baseline_text(results: StudyResults) -> str:
    """Return the base of the speed-ups as text, with its ranks, and its seconds where all points have the same one.

    A speed-up says little without the time of its base (Hoefler and Belli 2015, rule 1).
    """
    bases = {found.base.id: found.base for found in compare_points(results).values()}
    wanted = ", ".join(f"{label} {value}" for label, value in results.manifest.baseline.items())
    ranks = {base.first.ranks for base in bases.values()}
    details = [counted(ranks.pop(), "rank")] if len(ranks) == 1 else []
    if len(bases) == 1:
        details += [f"{base.seconds_per_epoch.format()} s per epoch" for base in bases.values()]
    return (wanted or "the fewest ranks of the same work") + f" ({', '.join(details)})" * bool(details)


def base_of(results: StudyResults, point: StudyPoint, among: Sequence[StudyPoint]) -> StudyPoint | None:
    """The point among some that a point is compared with, as in `compare_points`."""
    baseline = results.manifest.baseline
    layout = LAYOUT - baseline.keys()
    fixed = point.values.keys() - baseline.keys() - LAYOUT

    def rank(other: StudyPoint) -> tuple[bool, bool, int]:
        other_ranks = bool(baseline) and other.first.ranks != point.first.ranks
        other_layout = bool(baseline) and any(other.values.get(name) != point.values.get(name) for name in layout)
        return other_ranks, other_layout, other.first.ranks

    candidates = [
        other
        for other in among
        if has_values(other.values, baseline)
        and all(str(other.values.get(label)) == str(point.values[label]) for label in fixed)
    ]
    least = min(map(rank, candidates), default=None)
    return fastest_by((other for other in candidates if rank(other) == least), rank).get(least) if least else None


def compare_with(point: StudyPoint, base: StudyPoint, comparisons: int = 1, *, is_paired: bool = True) -> Comparison:
    """Compare a point with a base, as one of so many comparisons; not `is_paired` if they did not run in turns."""
    ranks = point.first.ranks / base.first.ranks
    samples = point.first.train_samples / base.first.train_samples
    judged = judge(base.times.scaled(samples), point.times, comparisons=comparisons, is_paired=is_paired)
    speed_up = Estimate(1.0) if point is base and point.is_timed else judged.estimate
    efficiency = speed_up.scaled(1 / ranks)
    parts = None
    if point.shares.overhead is not None and base.shares.overhead is not None:
        of_base = {name: share * efficiency.value for name, share in base.shares.parts.items()}
        parts = parts_of_efficiency(point.shares.parts, of_base)
    predicted, base_predicted = point.predicted_seconds_per_epoch, base.predicted_seconds_per_epoch
    predicted_speed_up = samples * base_predicted / predicted if predicted and base_predicted else None
    is_same_work = point is not base and _work(point) == _work(base)
    serial = karp_flatt_fraction(speed_up.value, ranks) if is_same_work else None
    return Comparison(point, base, judged, speed_up, efficiency, serial, parts, predicted_speed_up)


def times_as_fast(results: StudyResults) -> dict[str, Comparison]:
    """The points of all folders but the first, each compared with the same point in the first that has it, by id."""
    firsts: dict[Key, StudyPoint] = {}
    found = {}
    for point in results.points if FOLDER in results.varying else ():
        key = _other_values(point, [FOLDER])
        if (first := firsts.setdefault(key, point)) is not point:
            found[point.id] = compare_with(point, first, is_paired=False)
    return found


def group_runs(runs: Sequence[RunRecord]) -> list[list[Comparison]]:
    """Group runs of equal `RunFigures.conditions`, whose speeds can be compared.

    Runs that differ in nothing but the seed are repeats, and one point. The points are compared with the first: they
    are by ranks, then by seconds, and those without times last.
    """
    groups: defaultdict[str, defaultdict[str, list[CellResult]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        figures, header = figures_of(run), run.header
        settings = run.settings.model_dump(exclude={"output": True, "training": {"seed"}})
        layout = header.ranks, header.nodes, header.threads_per_rank, header.layout, header.transport
        point = groups[str(sorted(figures.conditions.items()))][str((layout, settings))]
        values = {**figures.conditions, "repeat": len(point)}
        point.append(CellResult(figures.folder, values, run, figures, is_timed=not run.untimed))

    def rank(point: StudyPoint) -> tuple[bool, int, float]:
        return not point.is_timed, point.first.ranks, point.times.mean

    found = []
    for group in groups.values():
        points = sorted((StudyPoint(cells[0].values, tuple(cells)) for cells in group.values()), key=rank)
        found.append([compare_with(point, points[0], is_paired=False) for point in points])
    return found


@dataclass(frozen=True)
class ScalingLine:
    """Points of one family of layouts and of increasing ranks: for each number of ranks the fastest.

    `name` has the values of the axes in which the line differs from the others, and the family if there are several.
    Seconds are per epoch, or with `per_step` per step.
    """

    name: str
    points: tuple[StudyPoint, ...]
    per_step: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of the points."""
        return tuple(point.first.ranks for point in self.points)

    @property
    def seconds(self) -> tuple[Estimate, ...]:
        """Measured seconds."""
        return tuple(point.seconds_per_step if self.per_step else point.seconds_per_epoch for point in self.points)

    @property
    def predicted(self) -> list[tuple[int, float]]:
        """Ranks and predicted seconds of the points that have a prediction."""
        found = ((point, point.predicted_seconds_per_epoch) for point in self.points)
        return [
            (point.first.ranks, seconds / (point.first.steps_per_epoch if self.per_step else 1))
            for point, seconds in found
            if seconds is not None
        ]


def _work(point: StudyPoint) -> Key:
    return point.first.train_samples, point.first.batch_size


def alike_points(
    points: Iterable[StudyPoint], without: Iterable[str] = LAYOUT, constant: Callable[[StudyPoint], Hashable] = _work
) -> list[list[StudyPoint]]:
    """Group points that have the same values of all axes but those in `without`, and the same `constant`."""
    groups: dict[Hashable, list[StudyPoint]] = {}
    for point in points:
        groups.setdefault((_other_values(point, without), constant(point)), []).append(point)
    return list(groups.values())


def _other_values(point: StudyPoint, without: Iterable[str]) -> Key:
    return tuple((label, str(value)) for label, value in point.values.items() if label not in without)


def training_of(point: StudyPoint) -> Key:
    """What points that differ in a layout alone have in common if it does not change the training.

    This is any layout of an exact method. With the others the weights that a gradient is computed with depend on the
    stages.
    """
    layout = point.cells[0].run.header.layout
    more = () if layout.exact else (layout.method, layout.layers, layout.microbatches)
    return _other_values(point, LAYOUT), *_work(point), *more


def family_of(point: StudyPoint) -> str:
    """The family of a point's layout: ``"batch"``, ``"model"``, ``"grid"``, ``"pipeline 1f1b"`` or ``"one rank"``."""
    pipeline, batch, model = point.grid
    if pipeline > 1:
        return f"pipeline {point.first.method}"
    if batch * model == 1:
        return "one rank"
    return "batch" if model == 1 else "model" if batch == 1 else "grid"


def layout_name(point: StudyPoint) -> str:
    """The grid, and the method of its stages: ``"2x2"``, ``"2x2x1 1f1b"``."""
    return " ".join(filter(None, (point.first.grid, point.first.method)))


def strong_lines(results: StudyResults) -> list[ScalingLine]:
    """Lines along which only the ranks grow, of which one has several numbers of them.

    One rank belongs to every line. Otherwise a line begins with the base of its first point, if that does the same work
    on fewer ranks.
    """
    comparisons = compare_points(results)
    lines = [_from_base(line, comparisons) for line in _lines(results)]
    return lines if any(len(line.points) > 1 for line in lines) else []


def _from_base(line: ScalingLine, comparisons: Mapping[str, Comparison]) -> ScalingLine:
    first = line.points[0]
    found = comparisons.get(first.id)
    if found is None or found.base.first.ranks >= first.first.ranks or _work(found.base) != _work(first):
        return line
    return replace(line, points=(found.base, *line.points))


def weak_lines(results: StudyResults) -> list[ScalingLine]:
    """Lines along which the work grows with the ranks: the samples of the epoch, or those of the minibatch."""

    def samples(point: StudyPoint) -> str:
        return f"{round(point.first.train_samples / point.first.ranks)} samples per rank"

    def batch(point: StudyPoint) -> str:
        return f"batch {round(point.first.batch_size / point.first.ranks)} per rank"

    epochs = _lines(results, lambda point: f"{samples(point)}, batch {point.first.batch_size}")
    minibatches = _lines(results, lambda point: f"{samples(point)}, {batch(point)}")
    steps = _lines(results, lambda point: f"{point.first.train_samples} samples, {batch(point)}")
    lines = [*epochs, *minibatches, *(replace(line, per_step=True) for line in steps)]
    return [line for line in lines if len(line.points) > 1]


def _lines(results: StudyResults, growing: Callable[[StudyPoint], str] | None = None) -> list[ScalingLine]:
    """Lines of the families of the points that have times and do the same work, or `growing` work of the same text."""
    without, constant = (LAYOUT, _work) if growing is None else (LAYOUT | WORK, growing)
    found: list[tuple[str, str, tuple[StudyPoint, ...]]] = []
    for group in alike_points(results.timed, without, constant):
        by_family: dict[str, dict[int, StudyPoint]] = {}
        group.sort(key=lambda point: point.first.ranks)
        for (family, ranks), point in fastest_by(group, lambda it: (family_of(it), it.first.ranks)).items():
            by_family.setdefault(family, {})[ranks] = point
        one = by_family.pop("one rank", {})
        for family, fastest in (by_family or {"": {}}).items():
            chosen = tuple((one | fastest).values())
            values = point_name(results, chosen[0], without=without)
            name = "" if values == results.manifest.name else values
            work = "" if growing is None else growing(chosen[0])
            found.append((", ".join(filter(None, [name, work])), family, chosen))
    several = len({family for _, family, _ in found}) > 1
    is_named = not several or len({name for name, _, _ in found}) > 1  # what all lines have tells none apart
    return [
        ScalingLine(", ".join(filter(None, [name * is_named, family * several])) or results.manifest.name, chosen)
        for name, family, chosen in found
    ]


def grid_maps(results: StudyResults) -> dict[str, dict[tuple[int, int], StudyPoint]]:
    """Fastest points by ranks along batch and model, for every network that ran with several numbers of both."""
    maps = {}
    for points in alike_points(results.timed, constant=lambda point: (*_work(point), point.grid[0])):
        fastest = fastest_by(points, lambda point: point.grid[1:])
        if len({batch for batch, _ in fastest}) > 1 and len({model for _, model in fastest}) > 1:
            name = point_name(results, points[0], without=LAYOUT)
            pipeline = points[0].grid[0]
            maps[name + f", {pipeline} stages" * (pipeline > 1)] = fastest
    return maps
