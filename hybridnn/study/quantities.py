"""Figures of finished runs: measured and predicted cost, the limiting factor, and speed-ups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Literal

from hybridnn.runs.run_files import RunRecord

COSTLY_SHARE = 0.25
"""Share of a step from which on communication, waiting or overhead limits a run: without it, the run would take at most
three quarters of its time."""

TOO_SMALL_FLOPS = 5e6
"""Floating-point operations of a rank in a step below which their number hardly matters: at 10 GFlop/s they take
half a millisecond, the time that Python needs for the calls of a step."""

FLOPS_PER_WEIGHT = 6
"""Of a sample in a step: a multiplication and an addition in the forward pass and in each half of the backward pass."""

MOST_EFFICIENCY = 1.2
"""Parallel efficiency above which a speed-up is doubtful. Larger caches give a few percent more than the ranks."""


@dataclass(frozen=True)
class TimeShares:
    """Shares of the time of a step, each from 0 to 1.

    `communication` is the time inside communication calls, without `waiting` where that is known: waiting for messages
    of other stages, which is the bubble, and at barriers. `overhead` is in no instruction and no communication call.
    """

    communication: float
    waiting: float | None = None
    overhead: float | None = None


@dataclass(frozen=True)
class Bottleneck:
    """The limiting factor of a run; `text` is its description, with the share."""

    limit: Literal["computing", "communication", "waiting", "overhead"]
    text: str


def judge(shares: TimeShares, flops_per_step: float) -> Bottleneck:
    """Return the limiting factor of a run.

    The greatest share that is not computing, if it is at least `COSTLY_SHARE`; else overhead, if a rank has fewer than
    `TOO_SMALL_FLOPS` floating-point operations to do in a step; else computing.
    """
    waiting, overhead = shares.waiting or 0.0, shares.overhead or 0.0
    most = max(shares.communication, waiting, overhead)
    if most >= COSTLY_SHARE:
        if most == shares.communication:
            kind = "communication" if shares.waiting is not None else "communication and waiting"
            return Bottleneck("communication", f"{kind}: {most:.0%} of the step")
        if most == waiting:
            return Bottleneck("waiting", f"bubble and waiting: {most:.0%} of the step")
        return Bottleneck("overhead", f"too small: overhead, {most:.0%} of the step")
    if flops_per_step < TOO_SMALL_FLOPS:
        return Bottleneck("overhead", f"too small: overhead, {flops_per_step / 1e6:.2g} MFlop per rank and step")
    return Bottleneck("computing", "computing")


@dataclass(frozen=True)
class RunFigures:
    """Cost of a run per step and epoch.

    Seconds are of training on rank 0: the median of the epochs, without the first if there are more. Bytes are sent by
    all ranks. `network` has the widths of the layers, `method` is None without a pipeline, and `metric` is the test
    accuracy or R² of the last epoch.
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
    return predicted / measured - 1 if predicted is not None and measured else None


def figures_of(run: RunRecord) -> RunFigures:
    """Compute the figures of a run."""
    header, last, prediction = run.header, run.epochs[-1], run.prediction
    steps = run.steps_per_epoch
    seconds = run.seconds_per_epoch
    shares = _time_shares(run)
    flops = FLOPS_PER_WEIGHT * header.parameters * run.settings.training.batch_size / header.ranks
    return RunFigures(
        folder=str(run.folder),
        data=header.data,
        network="-".join(map(str, header.sizes)),
        grid=grid_text(run),
        ranks=header.ranks,
        nodes=header.nodes,
        threads_per_rank=header.threads_per_rank,
        method=header.layout.method_text if len(header.layout.stages) > 1 else None,
        batch_size=run.settings.training.batch_size,
        train_samples=header.train_samples,
        parameters=header.parameters,
        steps_per_epoch=steps,
        seconds_per_epoch=seconds,
        seconds_per_step=seconds / steps,
        samples_per_second=header.train_samples / seconds,
        bytes_per_step=median(epoch.bytes_sent for epoch in run.settled_epochs) / steps,
        shares=shares,
        metric_name="test accuracy" if last.test_r2 is None else "test R²",
        metric=last.test_accuracy if last.test_r2 is None else last.test_r2,
        predicted_seconds_per_step=None if prediction is None else prediction.seconds_per_step,
        predicted_seconds_per_epoch=None if prediction is None else prediction.seconds_per_epoch,
        predicted_bytes_per_step=None if prediction is None else float(prediction.bytes_per_step),
        verdict=judge(shares, flops),
    )


def instruction_figures(run: RunRecord) -> list[InstructionFigures]:
    """Seconds per step of every kind of instruction that was measured or predicted, in the order of the run."""
    predicted = {} if run.prediction is None else dict(run.prediction.instructions)
    kinds = {kind: None for step in run.settled_steps for kind in step.instructions} | dict.fromkeys(predicted)
    figures = []
    for kind in kinds:
        seconds = [step.instructions[kind] for step in run.settled_steps if kind in step.instructions]
        figures.append(InstructionFigures(kind, median(seconds) if seconds else None, predicted.get(kind)))
    return figures


def grid_text(run: RunRecord) -> str:
    """``2x4`` (batch x model), ``2x2x1`` with a pipeline, ``2x1+1x1`` where its stages differ."""
    widths = [f"{batch}x{model}" for batch, model in run.header.layout.stages]
    if len(set(widths)) > 1:
        return "+".join(widths)
    return f"{len(widths)}x" * (len(widths) > 1) + widths[0]


def _time_shares(run: RunRecord) -> TimeShares:
    if not run.settled_steps:
        inside = sum(epoch.communication_seconds for epoch in run.settled_epochs)
        outside = sum(epoch.compute_seconds for epoch in run.settled_epochs)
        return TimeShares(inside / (inside + outside))
    steps = run.settled_steps
    seconds = mean(step.seconds_per_step for step in steps)
    communication = mean(step.communication for step in steps) / seconds
    waiting = mean(step.waiting for step in steps) / seconds
    computing = mean(sum(step.instructions.values()) for step in steps) / seconds
    return TimeShares(communication, waiting, max(0.0, 1 - computing - communication - waiting))


@dataclass(frozen=True)
class ScalingRow:
    """A run compared with the base, the run of the fewest ranks, by seconds per epoch.

    `efficiency` is the speed-up over the ratio of the ranks; `predicted_speed_up` is None unless both runs have a
    prediction.
    """

    figures: RunFigures
    speed_up: float
    efficiency: float
    predicted_speed_up: float | None


@dataclass(frozen=True)
class ScalingGroup:
    """Runs of one network on the same data, by ranks, then by seconds per epoch; `base` is the first of them."""

    base: RunFigures
    rows: tuple[ScalingRow, ...]

    @property
    def warnings(self) -> list[str]:
        """Sentences on doubtful speed-ups."""
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
    base, rows = ordered[0], []
    for run in ordered:
        speed_up = base.seconds_per_epoch / run.seconds_per_epoch
        predicted, predicted_base = run.predicted_seconds_per_epoch, base.predicted_seconds_per_epoch
        predicted_speed_up = predicted_base / predicted if predicted and predicted_base else None
        rows.append(ScalingRow(run, speed_up, speed_up * base.ranks / run.ranks, predicted_speed_up))
    return ScalingGroup(base, tuple(rows))
