"""Measures of a run that statements and report columns name: text, unit, kind, better direction, and value."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan
from typing import Literal

from hybridnn.pipeline.checks.simulated_schedule import schedule_bubble
from hybridnn.runs.quantities import RunFigures
from hybridnn.runs.run_files import Moment, RunRecord

LATE_SHARE = 0.2
"""Share of the evaluations, the last ones, whose spread is `late_metric_sd`."""

BLOW_UP = 5.0
"""Multiple of the least training loss of an epoch above which the last one counts as diverged."""

Kind = Literal["time", "training", "exact"]
Better = Literal["higher", "lower", ""]
Value = Callable[[RunRecord, RunFigures, float | None], float | None]


@dataclass(frozen=True)
class Measure:
    """A quantity of a run, with its name in tables and the better direction; empty where there is none.

    The kind is how the runs of a point are summarized. Times vary from run to run: their median over all runs. A result
    of the training depends on the seed: the mean over the seeds, as repeats of one seed are the same training. Exact
    ones are the same in every run. ``value(run, figures, target)`` is None where the run did not record it, and `value`
    itself is None of the measures against a baseline. `needs_target`: it refers to the study's `target`.
    """

    text: str
    unit: str  # empty for shares, ratios and numbers
    kind: Kind
    better: Better
    value: Value | None
    description: str
    needs_target: bool = False

    @property
    def worst(self) -> float:
        """What a run counts that diverged, or that never reached the target."""
        return -inf if self.better == "higher" else inf


def _time(
    text: str, unit: str, better: Better, read: Callable[[RunFigures], float | None] | None, description: str
) -> Measure:
    """A time in the figures of a run; against a baseline if `read` is None."""
    return Measure(text, unit, "time", better, _of_figures(read) if read else None, description)


def _training(text: str, better: Better, read: Callable[[RunRecord], float | None], description: str) -> Measure:
    """A result of the training."""
    return Measure(text, "", "training", better, _of_run(read), description)


def _exact(text: str, unit: str, better: Better, value: Value, description: str) -> Measure:
    return Measure(text, unit, "exact", better, value, description)


def _of_figures(read: Callable[[RunFigures], float | None]) -> Value:
    return lambda run, figures, target: read(figures)


def _of_run(read: Callable[[RunRecord], float | None]) -> Value:
    return lambda run, figures, target: read(run)


def _test_metrics(run: RunRecord) -> list[float]:
    """Test accuracy or R² of all evaluations."""
    return [moment.metric for moment in run.moments if moment.metric is not None]


def _best_metric(run: RunRecord) -> float | None:
    return max(filter(isfinite, _test_metrics(run)), default=None)


def _late_metric_sd(run: RunRecord) -> float | None:
    found = _test_metrics(run)
    late = found[-max(2, round(LATE_SHARE * len(found))) :]
    return statistics.stdev(late) if len(late) > 1 else None


def _train_losses(run: RunRecord) -> list[float]:
    return [loss for moment in run.moments if (loss := moment.train_loss) is not None and isfinite(loss)]


def _test_losses(run: RunRecord) -> list[float]:
    return [moment.loss for moment in run.moments if moment.loss is not None and isfinite(moment.loss)]


def _last(values: Sequence[float]) -> float | None:
    return values[-1] if values else None


def _least(values: Sequence[float]) -> float | None:
    return min(values, default=None)


def _first_at_target(run: RunRecord, target: float | None) -> Moment | None:
    """The first evaluation whose test metric is at least the target."""
    for moment in run.moments:
        if target is not None and moment.metric is not None and moment.metric >= target:
            return moment
    return None


def _epochs_to_target(run: RunRecord, figures: RunFigures, target: float | None) -> float | None:
    if not _test_metrics(run):
        return None
    found = _first_at_target(run, target)
    return inf if found is None else found.epochs


def _seconds_to_target(run: RunRecord, figures: RunFigures, target: float | None) -> float | None:
    if not _test_metrics(run):
        return None
    found = _first_at_target(run, target)
    return inf if found is None else found.seconds


def _diverged(run: RunRecord) -> float:
    losses = _train_losses(run)
    return float(run.diverged is not None or (bool(losses) and losses[-1] > BLOW_UP * min(losses)))


def _converged(run: RunRecord, figures: RunFigures, target: float | None) -> float | None:
    if _diverged(run):
        return 0.0
    if target is None:
        return 1.0
    last = _last(_test_metrics(run))
    return None if last is None else float(last >= target)


def _reached(run: RunRecord, figures: RunFigures, target: float | None) -> float | None:
    if run.diverged is not None:
        return 0.0
    epochs = _epochs_to_target(run, figures, target)
    return None if epochs is None else float(isfinite(epochs))


def _bubble(run: RunRecord) -> float:
    training = run.settings.training
    return schedule_bubble(run.header.layout, run.steps_per_epoch * min(training.drain_every, training.epochs))


def _memory(run: RunRecord) -> float:
    return float(max(stage.total for stage in run.header.memory))


MEASURES = {
    "speed_up": _time("speed-up", "", "higher", None, "Training samples per second over those of the baseline."),
    "efficiency": _time("efficiency", "", "higher", None, "The speed-up over the ratio of the ranks."),
    "seconds_per_epoch": _time(
        "time per epoch", "s", "lower", lambda it: it.seconds_per_epoch, "Training of an epoch, without evaluation."
    ),
    "seconds_per_step": _time("time per step", "s", "lower", lambda it: it.seconds_per_step, "Training of a step."),
    "samples_per_second": _time(
        "throughput", "samples/s", "higher", lambda it: it.samples_per_second, "Training samples per second."
    ),
    "communication_share": _time(
        "communication share",
        "",
        "lower",
        lambda it: it.shares.communicate,
        "Share of a step in communication calls, without waiting where that is recorded.",
    ),
    "waiting_share": _time(
        "waiting share",
        "",
        "lower",
        lambda it: it.shares.idle,
        "Share of a step spent waiting for stages and barriers.",
    ),
    "seconds_to_target": Measure(
        "time to target", "s", "time", "lower", _seconds_to_target, "Training time until `target` is reached.", True
    ),
    "epochs_to_target": Measure(
        "epochs to target", "", "training", "lower", _epochs_to_target, "Epochs until `target` is reached.", True
    ),
    "best_metric": _training("best metric", "higher", _best_metric, "Highest test accuracy or R² of all evaluations."),
    "last_metric": _training(
        "last metric", "higher", lambda run: _last(_test_metrics(run)), "Test accuracy or R² after the last epoch."
    ),
    "late_metric_sd": _training(
        "late metric sd", "lower", _late_metric_sd, "Standard deviation of the metric over the last fifth of the run."
    ),
    "least_train_loss": _training(
        "least training loss", "lower", lambda run: _least(_train_losses(run)), "Least mean loss of an epoch."
    ),
    "last_train_loss": _training(
        "last training loss", "lower", lambda run: _last(_train_losses(run)), "Mean loss of the last epoch."
    ),
    "least_test_loss": _training(
        "least test loss", "lower", lambda run: _least(_test_losses(run)), "Least test loss of all evaluations."
    ),
    "last_test_loss": _training(
        "last test loss", "lower", lambda run: _last(_test_losses(run)), "Test loss after the last epoch."
    ),
    "diverged": _training(
        "diverged",
        "lower",
        _diverged,
        f"Share of the seeds with infinite or NaN values, or a last training loss above {BLOW_UP:g} times the least.",
    ),
    "converged": Measure(
        "converged",
        "",
        "training",
        "higher",
        _converged,
        "Share of the seeds that end at `target`, without divergence.",
    ),
    "reached": Measure(
        "reached the target", "", "training", "higher", _reached, "Share of the seeds that were ever at `target`.", True
    ),
    "bytes_per_step": _exact(
        "bytes per step",
        "B",
        "lower",
        _of_figures(lambda it: it.bytes_per_step),
        "Bytes that all ranks send in a step.",
    ),
    "memory": _exact("memory", "B", "lower", _of_run(_memory), "Bytes of the arrays of the rank that has the most."),
    "parameters": _exact(
        "parameters", "", "", _of_figures(lambda it: float(it.parameters)), "Weights and biases of the network."
    ),
    "mean_staleness": _exact(
        "mean staleness",
        "updates",
        "",
        _of_run(lambda run: run.header.mean_staleness),
        "Updates between the weights of a forward pass and those its gradient is applied to, as a mean.",
    ),
    "bubble": _exact(
        "bubble",
        "",
        "lower",
        _of_run(_bubble),
        "Share of the stages' time that the schedule leaves idle between two drains, if all are equally fast.",
    ),
    "predicted_seconds_per_step": _exact(
        "predicted time per step",
        "s",
        "lower",
        _of_figures(lambda it: it.predicted_seconds_per_step),
        "Prediction of the machine file.",
    ),
}
"""The measures by the name that study files use."""


SHARES = ("diverged", "converged", "reached")
"""Measures that are 0 or 1 in every run, and of which a divergence is a value."""


def measured(run: RunRecord, figures: RunFigures, name: str, target: float | None) -> float | None:
    """The value of a measure; None where the run did not record it.

    A run that diverged has the worst value of what its training reached, and no times; ranks that take turns in one
    process have none either.
    """
    measure = MEASURES[name]
    if measure.kind == "time" and run.header.in_process:
        return None
    if run.diverged is not None and name not in SHARES and (measure.kind == "training" or measure.needs_target):
        return measure.worst
    if measure.value is None or (run.diverged is not None and measure.kind == "time"):
        return None
    value = measure.value(run, figures, target)
    return None if value is None or isnan(value) else value
