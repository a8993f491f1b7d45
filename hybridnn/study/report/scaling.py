"""Comparison of a study's points: lines of strong and weak scaling, maps of grids, speed-ups and warnings."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from hybridnn.study.quantities import efficiency_warning, threads_warning
from hybridnn.study.report.results import Spread, StudyPoint, StudyResults

LAYOUT = frozenset({"ranks", "grid"})
WORK = frozenset(
    {"batch", "batch-per-rank", "samples-per-rank", "training.batch_size", "data.synthetic.samples", "data.rows"}
)
"""Axes that change the number of samples of an epoch or a minibatch."""

Key = tuple[Hashable, ...]


@dataclass(frozen=True)
class ScalingLine:
    """Points of increasing ranks that otherwise differ in their grid alone: for each number of ranks the fastest.

    Attributes
    ----------
    name : str
        Values of the axes in which it differs from the other lines.
    points : tuple of StudyPoint
        At least two.
    seconds : tuple of Spread
        Of each point: per epoch, or per step where `per_step`.
    predicted : tuple of float or None
        Seconds per epoch, or per step.
    """

    name: str
    points: tuple[StudyPoint, ...]
    seconds: tuple[Spread, ...]
    predicted: tuple[float | None, ...]
    per_step: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of each point."""
        return tuple(point.first.ranks for point in self.points)


@dataclass(frozen=True)
class GridMap:
    """Seconds per epoch of the grids of one network: ``seconds[batch, model]``."""

    name: str
    seconds: dict[tuple[int, int], float]


def strong_lines(results: StudyResults) -> list[ScalingLine]:
    """Lines along which only the ranks grow."""
    groups = _grouped(results.points, _alike_but_layout)
    return _lines(groups.values(), lambda point: point_name(results, point, without=LAYOUT), per_step=False)


def weak_lines(results: StudyResults) -> list[ScalingLine]:
    """Lines along which the work grows with the ranks: the samples of the epoch, or those of the minibatch."""

    def alike_but_work(point: StudyPoint) -> Key:
        return tuple((label, str(value)) for label, value in point.values if label not in LAYOUT | WORK)

    def name(point: StudyPoint) -> str:
        return point_name(results, point, without=LAYOUT | WORK)

    def batch_each(point: StudyPoint) -> int:
        return round(point.first.batch_size / point.first.ranks)

    def samples_each(point: StudyPoint) -> int:
        return round(point.first.train_samples / point.first.ranks)

    keys: list[tuple[Callable[[StudyPoint], Key], Callable[[StudyPoint], str], bool]] = [
        (
            lambda p: (*alike_but_work(p), samples_each(p), p.first.batch_size),
            lambda p: f"{name(p)}, {samples_each(p)} samples per rank, batch {p.first.batch_size}",
            False,
        ),
        (
            lambda p: (*alike_but_work(p), samples_each(p), batch_each(p)),
            lambda p: f"{name(p)}, {samples_each(p)} samples per rank, batch {batch_each(p)} per rank",
            False,
        ),
        (
            lambda p: (*alike_but_work(p), p.first.train_samples, batch_each(p)),
            lambda p: f"{name(p)}, batch {batch_each(p)} per rank",
            True,
        ),
    ]
    return [
        line
        for key, title, per_step in keys
        for line in _lines(_grouped(results.points, key).values(), title, per_step=per_step)
    ]


def grid_maps(results: StudyResults) -> list[GridMap]:
    """Maps of batch x model for every network that ran with several numbers of both; all numbers of ranks together."""
    maps = []
    for points in _grouped(results.points, lambda point: (*_alike_but_layout(point), point.grid[0])).values():
        seconds: dict[tuple[int, int], float] = {}
        for point in points:
            grid, measured = point.grid[1:], point.seconds_per_epoch.median
            seconds[grid] = min(measured, seconds.get(grid, measured))
        if len({batch for batch, _ in seconds}) > 1 and len({model for _, model in seconds}) > 1:
            name = point_name(results, points[0], without=LAYOUT)
            pipeline = points[0].grid[0]
            maps.append(GridMap(name + f", {pipeline} stages" * (pipeline > 1), seconds))
    return maps


def speed_ups(results: StudyResults) -> dict[str, tuple[float, int]]:
    """Speed-up of each point, by the id of its first cell, and the ranks of its base: the fewest for this work."""
    found = {}
    for points in _grouped(results.points, _alike_but_layout).values():
        base = min(points, key=lambda point: (point.first.ranks, point.seconds_per_epoch.median))
        for point in points:
            ratio = base.seconds_per_epoch.median / point.seconds_per_epoch.median
            found[point.cells[0].id] = ratio, base.first.ranks
    return found


def point_name(results: StudyResults, point: StudyPoint, *, without: Iterable[str] = ()) -> str:
    """Values of the axes that vary among the points, but for those in `without`."""
    left_out = set(without)
    parts = [f"{label} {value}" for label, value in point.values if label in results.varying and label not in left_out]
    parts = [part.removeprefix("variant ") for part in parts]
    return ", ".join(parts) or results.manifest.name


def warnings_of(results: StudyResults) -> list[str]:
    """Sentences on threads that differ, placements that differ, and speed-ups above the ideal."""
    warnings = [threads_warning([cell.figures for cell in results.cells])]
    relative = speed_ups(results)
    for point in results.points:
        name = point_name(results, point)
        nodes = sorted({cell.figures.nodes for cell in point.cells})
        if len(nodes) > 1:
            warnings.append(f"{name}: repeated on {', '.join(map(str, nodes))} nodes, whose times are not the same")
        speed_up, base = relative[point.cells[0].id]
        warnings.append(efficiency_warning(name, speed_up * base / point.first.ranks))
    return [text for text in warnings if text]


def _alike_but_layout(point: StudyPoint) -> Key:
    values = tuple((label, str(value)) for label, value in point.values if label not in LAYOUT)
    return *values, point.first.train_samples, point.first.batch_size


def _grouped(points: Iterable[StudyPoint], key: Callable[[StudyPoint], Key]) -> dict[Key, list[StudyPoint]]:
    groups: dict[Key, list[StudyPoint]] = {}
    for point in points:
        groups.setdefault(key(point), []).append(point)
    return groups


def _lines(
    groups: Iterable[list[StudyPoint]], name: Callable[[StudyPoint], str], *, per_step: bool
) -> list[ScalingLine]:
    lines = []
    for points in groups:
        fastest: dict[int, StudyPoint] = {}
        for point in sorted(points, key=lambda point: (point.first.ranks, point.seconds_per_epoch.median)):
            fastest.setdefault(point.first.ranks, point)
        if len(fastest) > 1:
            chosen = tuple(fastest.values())
            seconds = tuple(point.seconds_per_step if per_step else point.seconds_per_epoch for point in chosen)
            predicted = tuple(_predicted(point, per_step=per_step) for point in chosen)
            lines.append(ScalingLine(name(chosen[0]), chosen, seconds, predicted, per_step))
    return lines


def _predicted(point: StudyPoint, *, per_step: bool) -> float | None:
    seconds = point.predicted_seconds_per_epoch
    return seconds / point.first.steps_per_epoch if seconds is not None and per_step else seconds
