"""Progress of a training, which a checkpoint stores, and its records: steps, epochs, measured times and evaluations."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from math import nan
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from hybridnn.errors import DataError, SettingError, StateError
from hybridnn.utils.checks import Count, Seed
from hybridnn.utils.text import figure_text

if TYPE_CHECKING:
    from pandas import DataFrame

    from hybridnn.drawing.shapes import Picture


@dataclass(frozen=True)
class Progress:
    """Progress of the training; a manifest is read with the limits of the types.

    Attributes
    ----------
    step : int
        Updates done.
    epoch : int
        The current epoch, from 1; about to begin if `minibatches` is 0.
    minibatches : int
        Done in this epoch.
    samples : int
        Samples of these minibatches whose losses are known: all of them, unless an error ended `fit` on a GPU or in an
        asynchronous pipeline, which fetch losses later.
    loss_sum : float
        Sum of the losses of these samples, each before its update.
    task : {"regression", "classification", ""}
        Task of the training; empty before it, and where an earlier version wrote the progress.
    epoch_samples : int
        Samples of the epoch; 0 where they are not known.
    """

    # Not pydantic's type of it: that takes longer to load than all else that a `Trainer` needs.
    __pydantic_config__: ClassVar[Mapping[str, object]] = {"extra": "forbid", "allow_inf_nan": False}

    step: Seed = 0
    epoch: Count = 1
    minibatches: Seed = 0
    loss_sum: float = 0.0
    samples: Seed = 0
    task: Literal["", "regression", "classification"] = field(default="", compare=False)
    epoch_samples: Seed = field(default=0, compare=False)

    def next_epoch(self) -> Progress:
        """The same step as the beginning of the next epoch."""
        return replace(self, epoch=self.epoch + 1, minibatches=0, loss_sum=0.0, samples=0)


class TrainingState:
    """State of a trainer, true after every step, also where an exception ends `fit`; no method is collective.

    Parameters
    ----------
    lock : RLock
        Held by the thread that is in a collective method: of this trainer, or of those of a grid with several ranks.

    Attributes
    ----------
    done : int
        Updates of the running steps, which `progress` counts too.
    in_step : bool
        Whether a step is running, which Ctrl-C does not interrupt.
    incomplete : str
        What to do about a step that an exception interrupted; empty if there is none.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock, self._progress = lock, Progress()
        self.is_fitting = self.in_step = self._interrupted = False
        self.done, self.incomplete = 0, ""
        self._reached: Callable[[int], Progress]  # while `done` counts

    @property
    def step(self) -> int:
        """Updates done."""
        return self._progress.step + self.done

    @property
    def progress(self) -> Progress:
        """Progress after the last update."""
        return self._reached(self.done) if self.done else self._progress

    @progress.setter
    def progress(self, progress: Progress) -> None:
        self._progress, self.done = progress, 0

    @property
    def task(self) -> str:
        """Task of the training; empty before the first step, when data of any task may follow."""
        return self._progress.task if self.is_fitting or self.step else ""

    @contextmanager
    def steps(self, reached: Callable[[int], Progress]) -> Iterator[None]:
        """Context of steps that count in `done`; `reached` returns the progress after so many of them."""
        self._reached = reached
        try:
            yield
        finally:
            self.progress = self.progress  # with none in `done`

    @contextmanager
    def shown_as_of(self, step: int) -> Iterator[None]:
        """Context in which callbacks see the weights after a step, and set the progress to that after it."""
        true = self.progress
        try:
            yield
        finally:
            if step < true.step:
                self.progress = true

    @contextmanager
    def entered(self, method: str) -> Iterator[None]:
        """Context of a collective method; `StateError` if another thread is in one."""
        if not self._lock.acquire(blocking=False):
            raise StateError(f"{method}: another thread is using this trainer or its process grid; call it afterwards")
        try:
            yield
        finally:
            self._lock.release()

    def require_no_fit(self, method: str) -> None:
        """Raise `StateError` in a callback of `fit`."""
        if self.is_fitting:
            raise StateError(f"{method}: fit of this trainer is running; call it afterwards")

    def require_complete_step(self) -> None:
        """Raise `StateError` if the weights are those of no step."""
        if self.incomplete:
            raise StateError(f"step {self.step + 1} was interrupted before its end: {self.incomplete}")

    @contextmanager
    def fitting(self, task: Any, samples: int, *, defers_interrupts: bool) -> Iterator[None]:
        """Context of `fit` on so many samples.

        With `defers_interrupts`, in the main thread and with Python's handler of SIGINT, Ctrl-C within a step raises
        `KeyboardInterrupt` after it, and Ctrl-C again at once.
        """
        before = signal.getsignal(signal.SIGINT)
        defers_interrupts &= threading.current_thread() is threading.main_thread()
        # An outer handler is that of a trainer whose callback trains this one.
        is_usual = before is signal.default_int_handler or isinstance(getattr(before, "__self__", None), TrainingState)
        installs = defers_interrupts and is_usual
        self.progress = replace(self.progress, task=task, epoch_samples=samples)
        self.is_fitting, self._interrupted = True, False
        try:
            if installs:
                signal.signal(signal.SIGINT, self._interrupt)
            yield
        finally:
            if installs:
                signal.signal(signal.SIGINT, before)
            self.is_fitting = self.in_step = False

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted or not self.in_step:
            raise KeyboardInterrupt
        self._interrupted = True

    def end_step(self) -> None:
        """Raise `KeyboardInterrupt` after a step that Ctrl-C has not interrupted."""
        self.in_step = False
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt


class StepPosition(NamedTuple):
    """Position of the training between two steps, when the pipeline is empty."""

    step: int
    minibatches: int  # updates done in the current epoch; 0 after the end of an epoch
    learning_rate: float  # of the last update
    progress: Callable[[], Progress]  # that a checkpoint stores; collective, may raise `NonFiniteLossError`


@dataclass(frozen=True)
class Speed:
    """Throughput, times and traffic of an interval of training, as in `EpochRecord`; the times are this rank's."""

    samples_per_second: float
    compute_seconds: float
    communication_seconds: float
    bytes_sent: int
    waiting_seconds: float


class Record:
    """Base class of the records of ``history.jsonl``, each a frozen dataclass; `kind` is the tag of its lines."""

    # Not pydantic's type of it: that takes longer to load than all else that a `Trainer` needs.
    __pydantic_config__: ClassVar[Mapping[str, object]] = {"strict": True, "extra": "forbid"}

    kind: ClassVar[str]


class NullIsNaN:
    """Annotation of a float: null is read as NaN."""

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], Any]) -> Any:
        """The schema of `source` after a function that replaces None."""
        function = {"type": "no-info", "function": lambda value: nan if value is None else value}
        return {"type": "function-before", "function": function, "schema": handler(source)}


Figure = Annotated[float, NullIsNaN()]
"""A float that may be NaN or infinite: both are written to JSON as null, and null is read as NaN."""

_VALUES = ("train_loss", "validation_loss", "validation_accuracy", "validation_r2")
_TEXTS = {name: name.replace("_", " ").replace("r2", "R²") for name in _VALUES}


def losses_text(record: StepRecord | EpochRecord | EvaluationRecord) -> str:
    """Losses and metrics of a record that are not None, as in ``train loss 0.137, validation accuracy 0.95``."""
    values = {text: getattr(record, name, None) for name, text in _TEXTS.items()}
    return ", ".join(f"{text} {figure_text(value)}" for text, value in values.items() if value is not None)


class Evaluated:
    """A record with metrics on the validation data: in a run without a validation split on its test samples."""

    validation_loss: float | None
    validation_accuracy: float | None
    validation_r2: float | None

    @property
    def metric_name(self) -> str:
        """``R²``, which a single sample does not have, or ``accuracy``."""
        return "R²" if self.validation_accuracy is None and self.validation_loss is not None else "accuracy"

    @property
    def metric(self) -> float | None:
        """Accuracy (classification) or R² (regression) on the validation data."""
        return self.validation_accuracy if self.validation_accuracy is not None else self.validation_r2


@dataclass(frozen=True)
class StepRecord(Record):
    """One optimizer step.

    Attributes
    ----------
    step : int
        Steps done, including this one.
    epoch : int
        Epoch of the step, from 1.
    train_loss : float
        Mean loss over the global minibatch, before the update.
    learning_rate : float
        Learning rate of the update.
    samples_per_second, compute_seconds, communication_seconds, bytes_sent, waiting_seconds
        As in `EpochRecord`, for the steps since the previous record, or since the start of the epoch (with
        `drain_every`, of the first epoch after a drain).
    """

    kind = "step"

    step: int
    epoch: int
    train_loss: Figure
    learning_rate: Figure
    samples_per_second: Figure
    compute_seconds: Figure
    communication_seconds: Figure
    bytes_sent: int
    waiting_seconds: Figure = 0.0

    def __str__(self) -> str:
        return f"step {self.step}: {losses_text(self)}"


MONITORS = MappingProxyType(
    dict.fromkeys(("train_loss", "validation_loss"), -1)
    | dict.fromkeys(("validation_accuracy", "validation_r2", "validation_roc_auc", "validation_average_precision"), 1)
)
"""Attributes of `EpochRecord` that can be monitored: 1 if larger is better, -1 if smaller is."""


@dataclass(frozen=True)
class EpochRecord(Evaluated, Record):
    """One pass over the training samples.

    Attributes
    ----------
    train_loss : float
        Mean of the minibatch losses over all samples of the epoch.
    validation_loss, validation_accuracy, validation_r2 : float or None
        None if the epoch was not evaluated, or if the metric does not apply to the task.
    validation_roc_auc, validation_average_precision : float or None
        As in `Metrics`; None but for two classes.
    samples_per_second : float
        Training samples of all ranks per second of wall time, without evaluation and the work between steps, such as
        checkpoints.
    compute_seconds, communication_seconds : float
        Rank 0's training time of the epoch outside and inside communication calls.
    bytes_sent : int
        Bytes that all ranks sent during the epoch's training, counted by the rule in ``comm/recorder.py``.
    waiting_seconds : float
        The part of `communication_seconds` that rank 0 spent waiting for messages of other stages and at barriers: in a
        pipeline, the bubble of its schedule and what is idle beyond it.
    """

    kind = "epoch"

    step: int
    epoch: int
    train_loss: Figure
    learning_rate: Figure
    validation_loss: float | None
    validation_accuracy: float | None
    validation_r2: float | None
    samples_per_second: Figure
    compute_seconds: Figure
    communication_seconds: Figure
    bytes_sent: int
    waiting_seconds: Figure = 0.0
    validation_roc_auc: float | None = None
    validation_average_precision: float | None = None

    def __str__(self) -> str:
        return f"epoch {self.epoch}: {losses_text(self)}"

    def monitored(self, name: str) -> float | None:
        """The value of a name of `MONITORS`; None if the epoch was not evaluated, or for R² of a single sample.

        Raises `SettingError` if the evaluation has no such value.
        """
        value: float | None = getattr(self, name)
        lacks = value is None and self.validation_loss is not None
        if lacks and not (name == "validation_r2" and self.metric_name == "R²"):
            raise SettingError("monitor", name, "the training has no such values")
        return value


@dataclass(frozen=True)
class MeasuredStep(Record):
    """Measured time of the steps of one epoch, as means over the ranks in seconds per step."""

    kind = "measured"

    epoch: int  # from 1
    seconds_per_step: float  # wall time
    instructions: Mapping[str, float]  # seconds by kind of instruction
    communication: float  # inside communication calls, without `waiting`
    waiting: float  # waiting for messages of other stages, and at barriers
    most_computing: float | None = None  # all instructions, of the rank that spent most; None in an earlier version


@dataclass(frozen=True)
class EvaluationRecord(Evaluated, Record):
    """Metrics on the validation data after a step, by ``training.evaluate_every_steps``.

    Attributes
    ----------
    step : int
        Steps done.
    epoch : int
        Epoch of the last of them, from 1.
    validation_loss, validation_accuracy, validation_r2 : float or None
        As in `EpochRecord`; the loss is NaN if it is not finite.
    """

    kind = "evaluation"

    step: int
    epoch: int
    validation_loss: Figure
    validation_accuracy: float | None
    validation_r2: float | None

    def __str__(self) -> str:
        return f"step {self.step}: {losses_text(self)}"


@dataclass(repr=False)
class History:
    """All records of a run, in order; notebooks show the learning curve."""

    steps: list[StepRecord] = field(default_factory=list)
    epochs: list[EpochRecord] = field(default_factory=list)
    measured: list[MeasuredStep] = field(default_factory=list)
    evaluations: list[EvaluationRecord] = field(default_factory=list)

    def __repr__(self) -> str:
        if not self.epochs:
            return f"<History: no epochs, {len(self.steps)} logged steps>"
        return f"<History: {len(self.epochs)} epochs; {losses_text(self.epochs[-1])}>"

    def before(self, progress: Progress) -> History:
        """The records of the steps and epochs that are complete at a progress."""
        step, epoch = progress.step, progress.epoch
        return History(
            [record for record in self.steps if record.step <= step],
            [record for record in self.epochs if record.epoch < epoch],
            [record for record in self.measured if record.epoch < epoch],
            [record for record in self.evaluations if record.step <= step],
        )

    def plot(self, path: str | Path | None = None) -> Picture:
        """The learning curve, a picture that notebooks show.

        Parameters
        ----------
        path : str or Path, optional
            Write it to this file, a .png, .svg or .pdf.

        Raises
        ------
        DataError, SettingError
            If there is no epoch, or the file cannot be written.
        """
        from hybridnn.drawing.figures import write_picture
        from hybridnn.drawing.learning_curve import learning_curve

        if not self.epochs:
            raise DataError("there is no epoch to plot")
        picture = learning_curve(self.epochs)
        if path is not None:
            write_picture(path, picture.encoded)
        return picture

    def to_frame(self) -> DataFrame:
        """A row for each epoch, with the attributes of `EpochRecord`, NaN for None, as a DataFrame of pandas."""
        from pandas import DataFrame

        rows = [asdict(record) for record in self.epochs]
        return DataFrame([{name: nan if value is None else value for name, value in row.items()} for row in rows])

    def _repr_svg_(self) -> str | None:
        return self.plot().svg() if self.epochs else None
