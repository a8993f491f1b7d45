"""Files of a run: their names, and reading of the settings and of the history.

The history ``history.jsonl`` has one record per line, in order of time: those of `hybridnn.training.records` and
`hybridnn.runs.records`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from itertools import accumulate
from math import nan
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from hybridnn.config.settings import Settings, load_settings
from hybridnn.errors import DataError, SettingError, one_line
from hybridnn.runs.records import DivergedRecord, EndRecord, LoadRecord, PredictedStep, ResumeRecord, RunHeader
from hybridnn.training.records import EpochRecord, EvaluationRecord, MeasuredStep, Record, StepRecord
from hybridnn.utils.files import LINE_BYTES, TOML_BYTES, parse_json, read_lines, read_npz, read_tail, read_text
from hybridnn.utils.plugins import GROUPS, noted_package
from hybridnn.utils.settings_models import first_problem
from hybridnn.utils.text import shown_path, to_json

CONFIG = "config.toml"

CONFIG_END = "\n# the end: a file that was cut off would name other settings\n"
"""Last line of ``config.toml``, without which a truncated file would be valid."""

HISTORY = "history.jsonl"
LEARNING_CURVE = "learning_curve.svg"
TRACE = "trace.json"
STANDARDIZATION = "standardization.npz"
TABLE = "table.json"
WEIGHTS = "weights.npz"
BEST_WEIGHTS = "best-weights.npz"
CHECKPOINTS = "checkpoints"

RECORD_CLASSES: dict[str, type[Record]] = {
    record_class.kind: record_class
    for record_class in (
        *(RunHeader, ResumeRecord, PredictedStep, LoadRecord, EndRecord, DivergedRecord),
        *(StepRecord, MeasuredStep, EpochRecord, EvaluationRecord),
    )
}

RecordClass = TypeVar("RecordClass", bound=Record)

_adapter: Callable[[str], TypeAdapter[Any]] = cache(lambda kind: TypeAdapter(RECORD_CLASSES[kind]))


class Moment(NamedTuple):
    """A moment of a run for which it has a record."""

    epochs: float  # epochs done, with the part of the current one
    seconds: float  # training time until then on rank 0; within an epoch in proportion to the steps
    train_loss: float | None  # of the epoch that ends there
    # on the validation split, or, without one, on the test samples
    loss: float | None
    accuracy: float | None
    r2: float | None

    @property
    def metric(self) -> float | None:
        """Accuracy or R²."""
        return self.r2 if self.accuracy is None else self.accuracy


@dataclass(frozen=True)
class RunRecord:
    """A run that has ended: one that finished, or one that diverged."""

    folder: Path
    settings: Settings  # as it ran, with its process grid
    header: RunHeader  # of the last start, where the run was resumed
    epochs: tuple[EpochRecord, ...]  # the complete ones: at least one, unless the run diverged
    prediction: PredictedStep | None  # None if the run had no machine file
    measured: tuple[MeasuredStep, ...]  # one per epoch, or none
    steps: tuple[StepRecord, ...] = ()
    diverged: DivergedRecord | None = None  # None if the run finished
    evaluations: tuple[EvaluationRecord, ...] = ()  # those besides the epochs
    load: LoadRecord | None = None  # None if it is not known

    @property
    def disturbance(self) -> float:
        """How far processes of others disturbed it (`LoadRecord.disturbance`); 0 where that is not known."""
        return 0.0 if self.load is None else self.load.disturbance

    @property
    def untimed(self) -> str:
        """Why the run has no times; empty if it has."""
        if not self.epochs:
            return "diverged in its first epoch"
        return "its ranks took turns in one process" if self.header.in_process and self.header.ranks > 1 else ""

    @property
    def settled_epochs(self) -> tuple[EpochRecord, ...]:
        """Epochs to take times from: without the first, which warms up caches and connections, if there are more."""
        return self.epochs[1:] or self.epochs

    @property
    def settled_steps(self) -> tuple[MeasuredStep, ...]:
        """The measured steps of those epochs."""
        return self.measured[1:] or self.measured

    @property
    def moments(self) -> list[Moment]:
        """Ends of epochs and evaluations between them, in order; one for each step."""
        ends = {epoch.step: epoch for epoch in self.epochs}
        times = accumulate(epoch.compute_seconds + epoch.communication_seconds for epoch in self.epochs)
        steps, seconds = [0, *ends], [0.0, *times]
        between = {record.step: record for record in self.evaluations}
        found = []
        for step in sorted({*ends, *between}):
            end, record = ends.get(step), between.get(step) or ends[step]
            if end is not None and end.validation_loss is not None:
                record = end
            epochs = step / self.steps_per_epoch if end is None else end.epoch
            test = record.validation_loss, record.validation_accuracy, record.validation_r2
            spent = float(np.interp(step, steps, seconds))
            found.append(Moment(epochs, spent, None if end is None else end.train_loss, *test))
        return found

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in every epoch."""
        if self.epochs:
            return self.epochs[-1].step // self.epochs[-1].epoch
        batch_size: int = self.settings.training.batch_size
        return -(-self.header.train_samples // batch_size)

    @property
    def seconds_per_epoch(self) -> float:
        """Training time of an epoch on rank 0, as in `EpochRecord`: the median of the settled epochs, or NaN."""
        if self.untimed:
            return nan
        return median(epoch.compute_seconds + epoch.communication_seconds for epoch in self.settled_epochs)


def read_config(folder: Path) -> Settings:
    """The settings of the run in `folder`, as it ran; `DataError` if ``config.toml`` cannot be read or is not valid."""
    path = folder / CONFIG
    try:
        settings = load_settings(path)
    except SettingError as error:
        package = ""  # of a method or an optimizer that is not installed now
        if error.setting in GROUPS:
            package = noted_package(error.setting, read_text(path, TOML_BYTES))
        missing = f"; the run took it from the package {package}, which is not installed" if package else ""
        raise DataError(f"{error}{missing}") from error
    if read_tail(path, len(CONFIG_END)) != CONFIG_END.encode():
        raise DataError(f"{path}: is cut off: its last line is not {CONFIG_END.strip()!r}")
    return settings


def to_line(record: Record) -> str:
    """The line of a record: a JSON object with its ``kind`` first, and null for numbers that are not finite.

    Empty tuples, which are the default of what few runs record, are left out.
    """
    values = asdict(record)  # type: ignore[call-overload]  # all are dataclasses
    return to_json({"kind": record.kind} | {name: value for name, value in values.items() if value != ()}) + "\n"


def run_status(folder: Path) -> Literal["absent", "unfinished", "finished", "diverged"]:
    """Whether `folder` holds no run, one that runs or ended with an error, one that completed, or one that diverged.

    Raises `DataError` if there is a history that cannot be read.
    """
    if not os.path.lexists(folder / HISTORY):
        return "absent"
    *_, last, partial = [b"", *read_tail(folder / HISTORY).split(b"\n")]
    if partial:
        return "unfinished"
    if last.startswith(b'{"kind": "end"'):
        return "finished"
    return "diverged" if last.startswith(b'{"kind": "diverged"') else "unfinished"


def read_divergence(folder: Path) -> str:
    """Why the run in `folder`, which diverged, did; `DataError` if the last line of its history is damaged."""
    *_, last, _ = read_tail(folder / HISTORY).split(b"\n")
    try:
        return str(parse_json(last)["reason"])
    except (ValueError, TypeError, LookupError) as error:
        raise DataError(f"{shown_path(folder / HISTORY)}: its last line is damaged: {one_line(str(error))}") from error


def read_records(folder: Path) -> tuple[list[Record], str]:
    """Read the history of the run in `folder` up to the first damaged line; an incomplete last line is left out.

    The second result is the number of the damaged line and what is wrong with it, empty if all lines are valid.

    Raises `DataError` if there is no history, or it cannot be read.
    """
    records: list[Record] = []
    path = folder / HISTORY
    for number, line in enumerate(read_lines(path), 1):
        if not line.endswith(b"\n") and len(line) < LINE_BYTES:
            break
        try:
            records.append(_parse(line))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            reason = first_problem(error) if isinstance(error, ValidationError) else one_line(str(error))
            return records, f"{shown_path(path)}, line {number}: not a record of a run: {reason}"
    return records, ""


class BestWeightsFile(NamedTuple):
    """Contents of ``best-weights.npz``: the arrays, and the epoch, step and metric of the weights."""

    arrays: Mapping[str, NDArray[Any]]
    epoch: int
    step: int
    metric: float


def read_best_weights(folder: Path) -> BestWeightsFile:
    """Read ``best-weights.npz`` of the run in `folder`; `DataError` if there is no such file, or it cannot be read."""
    path = folder / BEST_WEIGHTS
    arrays = read_npz(path)
    try:
        return BestWeightsFile(arrays, int(arrays["epoch"]), int(arrays["step"]), float(arrays["metric"]))
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path}: does not name its epoch, step and metric") from error


def of_class(records: Iterable[Record], record_class: type[RecordClass]) -> list[RecordClass]:
    """The records of one class."""
    return [record for record in records if isinstance(record, record_class)]


def last_of(records: Iterable[Record], record_class: type[RecordClass]) -> RecordClass | None:
    """The last record of one class; None without one."""
    return next(reversed(of_class(records, record_class)), None)


def read_epochs(folder: Path) -> tuple[list[EpochRecord], str]:
    """The epochs of the run in `folder`, and the damage of its history; see `read_records`."""
    records, damage = read_records(folder)
    return of_class(records, EpochRecord), damage


def disturbance_in(folder: Path) -> float:
    """`RunRecord.disturbance` of the run in `folder`, whatever else its history holds."""
    load = last_of(read_records(folder)[0], LoadRecord)
    return 0.0 if load is None else load.disturbance


def read_run(folder: Path) -> RunRecord:
    """Read the folder of a run that finished or diverged.

    Raises `DataError` if `folder` holds no run, one that did not end, or damaged or incomplete files.
    """
    status = run_status(folder)
    if status == "absent":
        raise DataError(f"{shown_path(folder)} is not a run folder: it has no readable {HISTORY}")
    if status == "unfinished":
        raise DataError(f"{folder}: the run did not end well, or is still running")
    settings = read_config(folder)
    records, damage = read_records(folder)
    if damage:
        raise DataError(damage)
    header, epochs = last_of(records, RunHeader), of_class(records, EpochRecord)
    diverged = last_of(records, DivergedRecord) if status == "diverged" else None
    if header is None or not (epochs or diverged):
        raise DataError(f"{folder / HISTORY}: has no {'header' if header is None else 'epoch'}")
    run = RunRecord(
        folder,
        settings,
        header,
        tuple(epochs),
        last_of(records, PredictedStep),
        tuple(of_class(records, MeasuredStep)),
        tuple(of_class(records, StepRecord)),
        diverged,
        tuple(of_class(records, EvaluationRecord)),
        last_of(records, LoadRecord),
    )
    if (problem := _impossible_figure(run)) is not None:
        raise DataError(f"{folder / HISTORY}: not the record of a run: {problem}")
    return run


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


def _parse(line: bytes) -> Record:
    values = parse_json(line)
    kind = values.pop("kind")
    if kind not in RECORD_CLASSES:
        raise ValueError(f"kind = {kind!r}")
    record: Record = _adapter(kind).validate_json(to_json(values))
    return record
