"""How runs of the same network and data compare: speed-up and efficiency, measured and predicted.

What makes the figures of a study doubtful.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridnn.study.figures import RunFigures
from hybridnn.study.report.groups import point_name, speed_ups
from hybridnn.study.report.results import StudyResults

MOST_EFFICIENCY = 1.2
"""Parallel efficiency above which a speed-up is doubtful. Larger caches give a few percent more than the ranks."""


@dataclass(frozen=True)
class ScalingRow:
    """A run beside the run with the fewest ranks.

    Attributes
    ----------
    figures : RunFigures
    speed_up : float
        Seconds per epoch of the base over those of this run.
    efficiency : float
        Speed-up over the ratio of the ranks.
    predicted_speed_up : float or None
        None unless both runs have a prediction.
    """

    figures: RunFigures
    speed_up: float
    efficiency: float
    predicted_speed_up: float | None


@dataclass(frozen=True)
class ScalingGroup:
    """Runs of one network on the same data.

    Attributes
    ----------
    base : RunFigures
        The run with the fewest ranks, and of these the fastest.
    rows : tuple of ScalingRow
        By ranks, then by seconds per epoch; the base comes first.
    """

    base: RunFigures
    rows: tuple[ScalingRow, ...]

    @property
    def warnings(self) -> list[str]:
        """What makes the speed-ups doubtful, a sentence each."""
        found = [
            efficiency_warning(f"{row.figures.ranks} ranks, {row.figures.grid}", row.efficiency) for row in self.rows
        ]
        return [text for text in (threads_warning([row.figures for row in self.rows]), *found) if text]


def efficiency_warning(what: str, efficiency: float) -> str:
    """Return the sentence on a parallel efficiency above `MOST_EFFICIENCY`; empty for any other."""
    if efficiency <= MOST_EFFICIENCY:
        return ""
    causes = "the run it is compared with was slowed down by other work, or had other threads"
    return f"{what}: efficiency {efficiency:.0%}, more than ranks alone can give; perhaps {causes}"


def threads_warning(runs: Sequence[RunFigures]) -> str:
    """Return the sentence on runs that differ in threads per rank; empty where they do not."""
    threads = sorted({run.threads_per_rank for run in runs})
    if len(threads) < 2:
        return ""
    numbers = ", ".join(map(str, threads))
    return f"the runs differ in BLAS threads per rank ({numbers}): speed-ups compare different numbers of cores"


def compare_runs(runs: Sequence[RunFigures]) -> list[ScalingGroup]:
    """Group runs by network and data (with the number of training samples), and compare within each group."""
    groups: dict[tuple[str, str, int], list[RunFigures]] = {}
    for run in runs:
        groups.setdefault((run.data, run.network, run.train_samples), []).append(run)
    return [_compare(group) for group in groups.values()]


def _compare(runs: list[RunFigures]) -> ScalingGroup:
    ordered = sorted(runs, key=lambda run: (run.ranks, run.seconds_per_epoch))
    base = ordered[0]
    return ScalingGroup(base, tuple(_row(run, base) for run in ordered))


def _row(run: RunFigures, base: RunFigures) -> ScalingRow:
    speed_up = base.seconds_per_epoch / run.seconds_per_epoch
    predicted, predicted_base = run.predicted_seconds_per_epoch, base.predicted_seconds_per_epoch
    return ScalingRow(
        run,
        speed_up,
        speed_up * base.ranks / run.ranks,
        predicted_base / predicted if predicted and predicted_base else None,
    )


def warnings_of(results: StudyResults) -> list[str]:
    """Return a sentence for each: threads that differ, placements that differ, speed-ups above the ideal."""
    found = [threads_warning([cell.figures for cell in results.cells])]
    against = speed_ups(results)
    for point in results.points:
        name = point_name(results, point)
        nodes = sorted({cell.figures.nodes for cell in point.cells})
        if len(nodes) > 1:
            found.append(f"{name}: repeated on {', '.join(map(str, nodes))} nodes, whose times are not the same")
        speed_up, base = against[point.cells[0].id]
        found.append(efficiency_warning(name, speed_up * base / point.first.ranks))
    return [text for text in found if text]
