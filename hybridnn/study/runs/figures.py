"""The figures of a finished run, measured and predicted, with their units in their names."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, median

from hybridnn.study.runs.verdict import Shares, Verdict, judge
from hybridnn.training.run_record import RunRecord

__all__ = ["InstructionFigures", "RunFigures", "figures_of", "grid_text", "instruction_figures", "relative_error"]

FLOPS_PER_WEIGHT = 6
"""Of a sample in a step: a multiplication and an addition in the forward pass and in each half of the backward pass."""


@dataclass(frozen=True)
class RunFigures:
    """What a run cost, per step and epoch.

    Attributes
    ----------
    folder, data, grid : str
    network : str
        Its sizes.
    ranks, nodes, batch_size, train_samples, parameters, steps_per_epoch : int
    threads_per_rank : int
        Of BLAS.
    method : str or None
        None without a pipeline.
    seconds_per_epoch, seconds_per_step : float
        Of training on rank 0: the median of the epochs, without the first if there are more.
    samples_per_second : float
    bytes_per_step : float
        Sent by all ranks.
    shares : Shares
        Where the time of a step goes.
    metric_name : str
    metric : float or None
        Test accuracy or R² of the last epoch.
    predicted_seconds_per_step, predicted_seconds_per_epoch, predicted_bytes_per_step : float or None
        None without a prediction.
    verdict : Verdict
        What limits the run.
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
    shares: Shares
    metric_name: str
    metric: float | None
    predicted_seconds_per_step: float | None
    predicted_seconds_per_epoch: float | None
    predicted_bytes_per_step: float | None
    verdict: Verdict

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
    """Work out the figures of a run."""
    header, last, prediction = run.header, run.epochs[-1], run.prediction
    steps = run.steps_per_epoch
    seconds = run.seconds_per_epoch
    shares = _shares(run)
    flops = FLOPS_PER_WEIGHT * header.parameters * run.settings.training.batch_size / header.ranks
    return RunFigures(
        folder=str(run.folder),
        data=header.data,
        network="-".join(map(str, header.sizes)),
        grid=grid_text(run),
        ranks=header.ranks,
        nodes=header.nodes,
        threads_per_rank=header.threads_per_rank,
        method=header.method,
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
    header = run.header
    widths = [(stage.batch, stage.model) for stage in header.stages]
    if len(set(widths)) > 1:
        return "+".join(f"{batch}x{model}" for batch, model in widths)
    return f"{header.pipeline}x" * (header.pipeline > 1) + f"{header.batch}x{header.model}"


def _shares(run: RunRecord) -> Shares:
    if not run.settled_steps:
        inside = sum(epoch.communication_seconds for epoch in run.settled_epochs)
        outside = sum(epoch.compute_seconds for epoch in run.settled_epochs)
        return Shares(inside / (inside + outside))
    steps = run.settled_steps
    seconds = mean(step.seconds_per_step for step in steps)
    communication = mean(step.communication for step in steps) / seconds
    waiting = mean(step.waiting for step in steps) / seconds
    computing = mean(sum(step.instructions.values()) for step in steps) / seconds
    return Shares(communication, waiting, max(0.0, 1 - computing - communication - waiting))
