"""Everything that a finished run folder tells: settings, header, records, and predictions where there are any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from hybridnn.config.settings import Settings
from hybridnn.errors import DataError
from hybridnn.runs.folder import read_config
from hybridnn.runs.history_file import HISTORY, history_lines, read_history, run_status
from hybridnn.training.records import EpochRecord, MeasuredStep, PredictedStep, RunHeader, StageHeader, StepRecord
from hybridnn.utils.files import FileError
from hybridnn.utils.text import shown_path

Made = TypeVar("Made")


@dataclass(frozen=True)
class RunRecord:
    """A finished run.

    Attributes
    ----------
    folder : Path
        Where it was read.
    settings : Settings
        With the grid that ran.
    header : RunHeader
    steps : tuple of StepRecord
    epochs : tuple of EpochRecord
        At least one.
    seconds : float
        Wall time of the training, evaluation included.
    prediction : PredictedStep or None
        None where the run had no machine file.
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
        If `folder` holds no run, one that did not end well, or damaged or incomplete files.
    """
    require_finished(folder)
    settings = read_config(folder)
    history = read_history(folder)
    lines: dict[str, list[dict[str, Any]]] = {}
    for line in history_lines(folder / HISTORY):
        values = dict(line.values)
        lines.setdefault(values.pop("kind"), []).append(values)
    if "header" not in lines or not history.epochs:
        raise DataError(f"{folder / HISTORY}: has no {'epoch' if 'header' in lines else 'header'}")
    made = [_from(folder, _header, values) for values in lines["header"]]
    predictions = [_from(folder, lambda v: PredictedStep(**v), values) for values in lines.get("prediction", [])]
    run = RunRecord(
        folder,
        settings,
        made[-1],  # a run that was resumed may have changed its grid
        tuple(history.steps),
        tuple(history.epochs),
        _from(folder, lambda v: float(v["seconds"]), lines["end"][-1]),
        predictions[-1] if predictions else None,
        tuple(_from(folder, lambda v: MeasuredStep(**v), values) for values in lines.get("measured", [])),
    )
    _require_possible(run)
    return run


def require_finished(folder: Path) -> None:
    """Refuse a folder without a run, or whose run did not end well.

    Raises
    ------
    DataError
        Saying which of the two it is.
    """
    status = run_status(folder)
    if status == "absent":
        raise DataError(f"{shown_path(folder)} is not a run folder: it has no readable {HISTORY}")
    if status == "unfinished":
        raise DataError(f"{folder}: the run did not end well, or is still running")


def _from(folder: Path, make: Callable[[dict[str, Any]], Made], values: dict[str, Any]) -> Made:
    try:
        made = make(values)
        if is_dataclass(made) and not isinstance(made, type):
            TypeAdapter(type(made)).validate_python(asdict(made))
        return made
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        reason = f"{name} = {first['input']!r}: {first['msg']}"
        raise FileError(folder / HISTORY, f"not written by this version of hybridnn: {reason}") from error
    except (TypeError, ValueError, LookupError) as error:
        raise FileError(folder / HISTORY, f"not written by this version of hybridnn: {error}") from error


def _require_possible(run: RunRecord) -> None:
    """Refuse figures that no run has, which others are divided by."""
    for epoch in run.epochs:
        figures = (epoch.step, epoch.epoch, epoch.compute_seconds, epoch.communication_seconds, epoch.bytes_sent)
        numbers = all(isinstance(figure, int | float) and figure >= 0 for figure in figures)
        if (
            not numbers
            or not 1 <= epoch.epoch <= epoch.step
            or epoch.compute_seconds + epoch.communication_seconds <= 0
        ):
            raise DataError(
                f"{run.folder / HISTORY}: not the record of a run: epoch = {epoch.epoch!r} without steps or time"
            )
    if run.header.ranks < 1:
        raise DataError(f"{run.folder / HISTORY}: not the record of a run: ranks = {run.header.ranks}")
    if any(step.seconds_per_step <= 0 for step in run.measured):
        raise DataError(f"{run.folder / HISTORY}: not the record of a run: measured steps without time")


def _header(values: dict[str, Any]) -> RunHeader:
    stages = tuple(StageHeader(**{**stage, "layers": tuple(stage["layers"])}) for stage in values["stages"])
    return RunHeader(**{**values, "stages": stages, "sizes": tuple(values["sizes"])})
