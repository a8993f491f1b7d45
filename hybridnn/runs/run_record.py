"""Record of a finished run: settings, header, epochs, and the measured and predicted times of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from hybridnn.config.settings import Settings
from hybridnn.errors import DataError
from hybridnn.runs.folder import read_config
from hybridnn.runs.history_file import HISTORY, read_records, run_status
from hybridnn.training.records import EndRecord, EpochRecord, MeasuredStep, PredictedStep, RunHeader, StepRecord
from hybridnn.utils.text import shown_path


@dataclass(frozen=True)
class RunRecord:
    """A finished run.

    Attributes
    ----------
    folder : Path
    settings : Settings
        As it ran, with its process grid.
    header : RunHeader
        Of the last start, where the run was resumed.
    steps : tuple of StepRecord
    epochs : tuple of EpochRecord
        At least one.
    seconds : float
        Wall time of the training, evaluation included.
    prediction : PredictedStep or None
        None if the run had no machine file.
    measured : tuple of MeasuredStep
        One per epoch, or none.
    """

    folder: Path
    settings: Settings
    header: RunHeader
    steps: tuple[StepRecord, ...]
    epochs: tuple[EpochRecord, ...]
    seconds: float
    prediction: PredictedStep | None
    measured: tuple[MeasuredStep, ...]

    @property
    def settled_epochs(self) -> tuple[EpochRecord, ...]:
        """Epochs to take times from: without the first, which warms up caches and connections, if there are more."""
        return self.epochs[1:] or self.epochs

    @property
    def settled_steps(self) -> tuple[MeasuredStep, ...]:
        """The measured steps of those epochs."""
        return self.measured[1:] or self.measured

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in every epoch."""
        return self.epochs[-1].step // self.epochs[-1].epoch

    @property
    def seconds_per_epoch(self) -> float:
        """Training time of an epoch on rank 0, evaluation excluded: the median of the settled epochs."""
        return median(epoch.compute_seconds + epoch.communication_seconds for epoch in self.settled_epochs)


def read_run(folder: Path) -> RunRecord:
    """Read a run folder.

    Raises
    ------
    DataError
        If `folder` holds no run, one that did not complete, or damaged or incomplete files.
    """
    require_finished(folder)
    settings = read_config(folder)
    records, damage = read_records(folder / HISTORY)
    if damage:
        raise DataError(damage)
    headers = [record for record in records if isinstance(record, RunHeader)]
    epochs = tuple(record for record in records if isinstance(record, EpochRecord))
    if not headers or not epochs:
        raise DataError(f"{folder / HISTORY}: has no {'epoch' if headers else 'header'}")
    predictions = [record for record in records if isinstance(record, PredictedStep)]
    ends = [record for record in records if isinstance(record, EndRecord)]
    run = RunRecord(
        folder,
        settings,
        headers[-1],
        tuple(record for record in records if isinstance(record, StepRecord)),
        epochs,
        ends[-1].seconds,
        predictions[-1] if predictions else None,
        tuple(record for record in records if isinstance(record, MeasuredStep)),
    )
    if (problem := _impossible_figure(run)) is not None:
        raise DataError(f"{folder / HISTORY}: not the record of a run: {problem}")
    return run


def require_finished(folder: Path) -> None:
    """Refuse a folder without a run, or whose run did not complete.

    Raises
    ------
    DataError
        With the reason.
    """
    status = run_status(folder)
    if status == "absent":
        raise DataError(f"{shown_path(folder)} is not a run folder: it has no readable {HISTORY}")
    if status == "unfinished":
        raise DataError(f"{folder}: the run did not end well, or is still running")


def _impossible_figure(run: RunRecord) -> str | None:
    """A figure that no run has and that others are divided by, or None."""
    for epoch in run.epochs:
        figures = (epoch.compute_seconds, epoch.communication_seconds, epoch.bytes_sent)
        has_time = all(figure >= 0 for figure in figures) and epoch.compute_seconds + epoch.communication_seconds > 0
        if not has_time or not 1 <= epoch.epoch <= epoch.step:
            return f"epoch = {epoch.epoch!r} without steps or time"
    if run.header.ranks < 1:
        return f"ranks = {run.header.ranks}"
    if any(step.seconds_per_step <= 0 for step in run.measured):
        return "measured steps without time"
    return None
