"""Figures of a finished run: measured and predicted cost, and the limiting factor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite, nan
from statistics import fmean, mean, median
from typing import Any, Literal

from hybridnn.pipeline.checks.simulated_schedule import schedule_bubble, split_idle
from hybridnn.runs.run_files import RunRecord
from hybridnn.utils.settings_models import by_dotted_name

COSTLY_SHARE = 0.25
"""Share of a step from which on communication, idle time or overhead limits a run: without it, the run would take at
most three quarters of its time."""

TOO_SMALL_FLOPS = 5e6
"""Floating-point operations of a rank in a step below which their number hardly matters: at 10 GFlop/s they take
half a millisecond, the time that Python needs for the calls of a step."""

FLOPS_PER_WEIGHT = 6
"""Of a sample in a step: a multiplication and an addition in the forward pass and in each half of the backward pass."""

LAYOUT_OF_DATA = frozenset({"data.distribution", "data.inputs", "data.name", "data.file", "model.hidden"})
"""Settings of data and model that change no result, or that the header of a run has in another form."""


@dataclass(frozen=True)
class TimeShares:
    """Shares of the time of a step, each from 0 to 1, as means over the ranks.

    `communicate` is the time inside communication calls, without idle time where that is known; `bubble` the idle time
    that the schedule itself costs (`schedule_bubble`), and `wait` the rest of it, for messages and slower ranks.
    `overhead` is in no instruction and no communication call. `most_compute` is that of the rank that computes most.
    """

    communicate: float
    bubble: float | None = None
    wait: float | None = None
    overhead: float | None = None
    most_compute: float | None = None

    @property
    def compute(self) -> float:
        """The rest: computations, without nested communication."""
        return max(0.0, 1 - self.communicate - sum(filter(None, (self.bubble, self.wait, self.overhead))))

    @property
    def idle(self) -> float | None:
        """Bubble and waiting."""
        return None if self.bubble is None or self.wait is None else self.bubble + self.wait

    @property
    def parts(self) -> dict[str, float]:
        """The shares by name, which add up to 1."""
        return {name: getattr(self, name) or 0.0 for name in ("compute", "overhead", "communicate", "bubble", "wait")}

    @property
    def load_balance(self) -> float | None:
        """Mean over greatest computing time of the ranks; None where the latter was not recorded."""
        return self.compute / self.most_compute if self.most_compute else None

    @property
    def communication_efficiency(self) -> float | None:
        """Greatest computing time of the ranks over the time of a step.

        The share of computing is its product with the load balance, and the parallel efficiency of the POP metrics: POP
        Centre of Excellence, "POP Standard Metrics for Parallel Performance Analysis"; Rosas, Giménez and Labarta 2014.
        Overhead between the computations counts as lost time here, as communication does.
        """
        return self.most_compute


def mean_shares(shares: Sequence[TimeShares]) -> TimeShares:
    """Means of the shares of at least one run; a share that is missing in one of them is missing."""

    def means() -> Iterator[float | None]:
        for field in fields(TimeShares):
            found = [getattr(item, field.name) for item in shares]
            yield None if None in found else fmean(found)

    return TimeShares(*means())  # type: ignore[arg-type]  # communicate is never missing


@dataclass(frozen=True)
class Bottleneck:
    """The limiting factor of a run; `text` is its description, with the share."""

    limit: Literal["compute", "communicate", "bubble", "wait", "overhead", "not measured"]
    text: str


def judge(shares: TimeShares, flops_per_step: float) -> Bottleneck:
    """Return the limiting factor of a run: the greatest share that is not computing, from `COSTLY_SHARE` on.

    Below, it is overhead if a rank has fewer than `TOO_SMALL_FLOPS` operations to do in a step, else computing.
    """
    costs = {name: share for name, share in shares.parts.items() if name != "compute"}
    limit = max(costs, key=lambda name: costs[name])
    if costs[limit] >= COSTLY_SHARE:
        name = {"communicate": "communicate" + " and wait" * (shares.wait is None), "overhead": "too small: overhead"}
        return Bottleneck(limit, f"{name.get(limit, limit)}, {costs[limit]:.0%} of the step")  # type: ignore[arg-type]
    if flops_per_step < TOO_SMALL_FLOPS:
        return Bottleneck("overhead", f"too small: overhead, {flops_per_step / 1e6:.2g} MFlop per rank and step")
    return Bottleneck("compute", "compute")


@dataclass(frozen=True)
class RunFigures:
    """Cost of a run per step and epoch.

    Seconds are of training on rank 0: the median of the epochs, without the first if there are more. Bytes are sent by
    all ranks. `network` has the widths of the layers, `method` is None without a pipeline, and `metric` is the test
    accuracy or R² of the last epoch, None if the run diverged. `conditions` are the settings, by name and as text, that
    change the work or the training; runs can be compared in time where these are equal. Without times
    (`RunRecord.untimed`), seconds and rates are NaN; bytes are, if no epoch is complete.
    """

    folder: str
    data: str
    network: str
    grid: str
    ranks: int
    nodes: int
    threads_per_rank: int
    method: str | None
    batch_size: int
    train_samples: int
    parameters: int
    steps_per_epoch: int
    seconds_per_epoch: float
    seconds_per_step: float
    samples_per_second: float
    bytes_per_step: float
    shares: TimeShares
    metric_name: str
    metric: float | None
    predicted_seconds_per_step: float | None
    predicted_seconds_per_epoch: float | None
    predicted_bytes_per_step: float | None
    verdict: Bottleneck
    conditions: Mapping[str, str]
    diverged_at: int | None = None  # step; None if the run finished
    prediction_doubt: str = ""  # sentence on a doubtful machine file

    @property
    def prediction_error(self) -> float | None:
        """Predicted over measured seconds per step, less one; None without a prediction."""
        return relative_error(self.predicted_seconds_per_step, self.seconds_per_step)


@dataclass(frozen=True)
class InstructionFigures:
    """Seconds per step of one kind of instruction; None where it was not measured or not predicted."""

    kind: str
    seconds_per_step: float | None
    predicted_seconds_per_step: float | None

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one."""
        return relative_error(self.predicted_seconds_per_step, self.seconds_per_step)


def relative_error(predicted: float | None, measured: float | None) -> float | None:
    """Predicted over measured, less one; None where one of them is missing or nothing was measured."""
    return predicted / measured - 1 if predicted is not None and measured and isfinite(measured) else None


def figures_of(run: RunRecord) -> RunFigures:
    """Compute the figures of a run."""
    header, prediction = run.header, run.prediction
    steps = run.steps_per_epoch
    seconds = run.seconds_per_epoch
    shares = _time_shares(run)
    last = run.epochs[-1] if run.epochs else None
    flops = FLOPS_PER_WEIGHT * header.parameters * run.settings.training.batch_size / header.ranks
    return RunFigures(
        folder=str(run.folder),
        data=header.data,
        network="-".join(map(str, header.sizes)),
        grid=grid_text(run),
        ranks=header.ranks,
        nodes=header.nodes,
        threads_per_rank=header.threads_per_rank,
        method=header.layout.method if len(header.layout.stages) > 1 else None,
        batch_size=run.settings.training.batch_size,
        train_samples=header.train_samples,
        parameters=header.parameters,
        steps_per_epoch=steps,
        seconds_per_epoch=seconds,
        seconds_per_step=seconds / steps,
        samples_per_second=header.train_samples / seconds,
        bytes_per_step=median(epoch.bytes_sent for epoch in run.settled_epochs) / steps if run.epochs else nan,
        shares=shares,
        metric_name=f"test {'accuracy' if last is None else last.metric_name}",
        metric=None if last is None or run.diverged else last.metric,
        predicted_seconds_per_step=None if prediction is None else prediction.seconds_per_step,
        predicted_seconds_per_epoch=None if prediction is None else prediction.seconds_per_epoch,
        predicted_bytes_per_step=None if prediction is None else float(prediction.bytes_per_step),
        verdict=Bottleneck("not measured", run.untimed) if run.untimed else judge(shares, flops),
        conditions=conditions_of(run),
        diverged_at=None if run.diverged is None else run.diverged.step,
        prediction_doubt="" if prediction is None else prediction.doubt,
    )


def conditions_of(run: RunRecord) -> dict[str, str]:
    """Settings that change the work or the training of a run, by dotted name.

    Those of the layout are among them only where its method is not exact, so that the stages change the training. The
    seed and the number of epochs are not: they change neither the work of an epoch nor its kind.
    """
    header, settings = run.header, run.settings
    sections = settings.model_dump(include={"data", "model", "optimizer", "schedule"})
    training = settings.training.model_dump(include={"batch_size", "dtype", "shuffle", "clip_norm"})
    values = by_dotted_name({**sections, "training": training})
    values |= {"data": header.data, "data.train_samples": header.train_samples, "model.sizes": header.sizes}
    values["device"] = header.device
    if not header.layout.exact:
        layout = header.layout
        values |= {"parallel.method": layout.method, "parallel.stages": len(layout.stages)}
        values |= {"parallel.partition": layout.layers, "parallel.microbatches": layout.microbatches}
    return {name: str(value) for name, value in values.items() if name not in LAYOUT_OF_DATA}


def shares_text(parts: Mapping[str, float]) -> str:
    """The parts of the time of a step as text."""
    return ", ".join(f"{name} {share:.0%}" for name, share in parts.items())


def instruction_figures(run: RunRecord) -> list[InstructionFigures]:
    """Seconds per step of every kind of instruction that was measured or predicted, in the order of the run."""
    predicted = {} if run.prediction is None else dict(run.prediction.instructions)
    measured = () if run.untimed else run.settled_steps
    kinds = {kind: None for step in measured for kind in step.instructions} | dict.fromkeys(predicted)
    figures = []
    for kind in kinds:
        seconds = [step.instructions[kind] for step in measured if kind in step.instructions]
        figures.append(InstructionFigures(kind, median(seconds) if seconds else None, predicted.get(kind)))
    return figures


def grid_text(run: RunRecord) -> str:
    """``2x4`` (batch x model), ``2x2x1`` with a pipeline, ``2x1+1x1`` where its stages differ."""
    widths = [f"{batch}x{model}" for batch, model in run.header.layout.stages]
    if len(set(widths)) > 1:
        return "+".join(widths)
    return f"{len(widths)}x" * (len(widths) > 1) + widths[0]


def _time_shares(run: RunRecord) -> TimeShares:
    if run.untimed:
        return TimeShares(nan)
    if not run.settled_steps:
        inside = sum(epoch.communication_seconds for epoch in run.settled_epochs)
        outside = sum(epoch.compute_seconds for epoch in run.settled_epochs)
        return TimeShares(inside / (inside + outside))
    steps = run.settled_steps
    seconds = mean(step.seconds_per_step for step in steps)
    communicate = mean(step.communication for step in steps) / seconds
    idle = mean(step.waiting for step in steps) / seconds
    compute = mean(sum(step.instructions.values()) for step in steps) / seconds
    most = [step.most_computing for step in steps if step.most_computing is not None]
    overhead = max(0.0, 1 - compute - communicate - idle)
    bubble, wait = split_idle(idle, schedule_bubble(run.header.layout, run.steps_per_epoch))
    return TimeShares(communicate, bubble, wait, overhead, fmean(most) / seconds if most else None)


def differing(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names, such as those of settings, whose values are not the same everywhere."""
    names = dict.fromkeys(name for one in values for name in one)
    return [name for name in names if any(one.get(name) != values[0].get(name) for one in values)]
