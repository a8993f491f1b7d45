"""How runs of the same network and data compare: speed-up and efficiency, measured and predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridnn.study.runs.figures import RunFigures

__all__ = ["ScalingGroup", "ScalingRow", "compare_runs"]


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
