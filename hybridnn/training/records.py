"""Records of a run: header, logged steps, epochs, predictions and the end; and the meter of training speed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite, nan
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import BeforeValidator, ConfigDict

from hybridnn.comm.recorder import RecordedTotals
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.execution.memory import MemoryBreakdown

if TYPE_CHECKING:
    from hybridnn.training.metrics import Metrics


@dataclass(frozen=True)
class Speed:
    """Throughput, times and traffic of an interval of training.

    Attributes
    ----------
    samples_per_second : float
        Of all ranks together.
    compute_seconds, communication_seconds : float
        This rank's time outside and inside communication calls.
    bytes_sent : int
        By all ranks, counted by the rule of ``comm/recorder.py``.
    waiting_seconds : float
        The part of `communication_seconds` that was spent waiting for messages of other stages and at barriers.
    """

    samples_per_second: float
    compute_seconds: float
    communication_seconds: float
    bytes_sent: int
    waiting_seconds: float


class Meter:
    """Measures intervals of training: `mark` ends one on this rank, `read` returns its speed over all ranks.

    Parameters
    ----------
    grid : ProcessGrid
        Its recorder counts the messages.
    """

    def __init__(self, grid: ProcessGrid) -> None:
        self._grid = grid
        self._totals, self._start = grid.recorder.totals, perf_counter()
        self._spans: deque[tuple[int, float, RecordedTotals]] = deque()

    def mark(self, samples: int) -> None:
        """End an interval of training on `samples` samples, and start the next; not collective."""
        now, totals = perf_counter(), self._grid.recorder.totals
        self._spans.append((samples, now - self._start, totals - self._totals))
        self._start, self._totals = now, totals

    def read(self) -> Speed:
        """Speed of the oldest interval not yet read; collective over the grid."""
        samples, seconds, spent = self._spans.popleft()
        sent = np.array([spent.bytes_sent], np.int64)
        self._grid.world.allreduce(sent)
        inside = spent.communication_seconds
        return Speed(samples / seconds, seconds - inside, inside, int(sent[0]), spent.waiting_seconds)


class Record:
    """Base class of the records of ``history.jsonl``, each a frozen dataclass; `kind` is the tag of its lines."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    kind: ClassVar[str]


Figure = Annotated[float, BeforeValidator(lambda value: nan if value is None else value)]
"""A float that may be NaN or infinite: both are written to JSON as null, and null is read as NaN."""


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
        As in `EpochRecord`, for the steps since the previous record, or since the start of the epoch.
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


@dataclass(frozen=True)
class EpochRecord(Record):
    """One pass over the training samples.

    Attributes
    ----------
    train_loss : float
        Mean of the minibatch losses over all samples of the epoch.
    test_loss, test_accuracy, test_r2 : float or None
        None if the epoch was not evaluated, or if the metric does not apply to the task.
    samples_per_second : float
        Training samples of all ranks per second of wall time, evaluation excluded.
    compute_seconds, communication_seconds : float
        Rank 0's training time of the epoch outside and inside communication calls.
    bytes_sent : int
        Bytes that all ranks sent during the epoch's training, counted by the rule in ``comm/recorder.py``.
    waiting_seconds : float
        The part of `communication_seconds` that rank 0 spent waiting for messages of other stages and at barriers; in a
        pipeline, its bubble. 0 in histories of versions that did not measure it.
    """

    kind = "epoch"

    step: int
    epoch: int
    train_loss: Figure
    learning_rate: Figure
    test_loss: float | None
    test_accuracy: float | None
    test_r2: float | None
    samples_per_second: Figure
    compute_seconds: Figure
    communication_seconds: Figure
    bytes_sent: int
    waiting_seconds: Figure = 0.0

    @property
    def metric(self) -> float | None:
        """Test accuracy (classification) or R² (regression)."""
        return self.test_accuracy if self.test_accuracy is not None else self.test_r2

    @classmethod
    def of(
        cls, step: int, epoch: int, train_loss: float, learning_rate: float, test: Metrics | None, speed: Speed
    ) -> EpochRecord:
        """Make the record of an epoch from its loss, test metrics and speed."""
        measured = (None, None, None) if test is None else (test.loss, test.accuracy, test.r2)
        return cls(step, epoch, train_loss, learning_rate, *measured, **asdict(speed))


def best_epoch(epochs: Sequence[EpochRecord]) -> EpochRecord | None:
    """The first epoch with the highest test accuracy or R²; None if no epoch was evaluated."""
    measured = [record for record in epochs if record.metric is not None and isfinite(record.metric)]
    return max(measured, key=lambda record: record.metric or 0.0, default=None)


@dataclass(frozen=True)
class PredictedStep(Record):
    """Prediction of a step's time by a cost model, as means over the ranks.

    Attributes
    ----------
    machine : str
        Name of the machine file.
    seconds_per_step, seconds_per_epoch : float
    bytes_per_step : int
        Sent by all ranks.
    parts : mapping of str to float
        Seconds per step of ``computing``, ``communication`` (exposed), ``communication_hidden``, ``bubble`` and
        ``overhead``.
    instructions : mapping of str to float
        Seconds per step of every kind of instruction: ``forward``, ``backward``, ``update`` and so on.
    """

    kind = "prediction"

    machine: str
    seconds_per_step: float
    seconds_per_epoch: float
    bytes_per_step: int
    parts: Mapping[str, float]
    instructions: Mapping[str, float]


@dataclass(frozen=True)
class MeasuredStep(Record):
    """Measured time of the steps of one epoch, as means over the ranks in seconds per step.

    Attributes
    ----------
    epoch : int
        From 1.
    seconds_per_step : float
        Wall time.
    instructions : mapping of str to float
        Seconds by kind of instruction.
    communication : float
        Inside communication calls, without `waiting`.
    waiting : float
        Waiting for messages of other stages, and at barriers.
    """

    kind = "measured"

    epoch: int
    seconds_per_step: float
    instructions: Mapping[str, float]
    communication: float
    waiting: float


@dataclass
class History:
    """All records of a run, in order."""

    steps: list[StepRecord] = field(default_factory=list)
    epochs: list[EpochRecord] = field(default_factory=list)
    measured: list[MeasuredStep] = field(default_factory=list)


@dataclass(frozen=True)
class StageHeader(MemoryBreakdown):
    """One stage of a pipeline, with the largest memory of its ranks.

    Attributes
    ----------
    stage : int
        From 0.
    batch, model : int
        Ranks of the stage along these axes.
    layers : tuple of int
        Indices of its layers.
    """

    stage: int
    batch: int
    model: int
    layers: tuple[int, ...]


@dataclass(frozen=True)
class RunHeader(Record):
    """Header of a run: its layout, data, model and device, shown as the first lines of output.

    Attributes
    ----------
    batch, model : int
        Ranks along these axes; those of the first stage if the stages differ.
    method : str or None
        Pipeline method; None without a pipeline.
    microbatches : int
        Microbatches per minibatch.
    stages : tuple of StageHeader
        One per stage of the pipeline; a single one without a pipeline.
    device, device_why : str
        ``"cpu"`` or ``"gpu"``, and its name or the reason for the choice.
    transport : str or None
        Transport of a GPU's arrays; None on the CPU.
    transport_why : str
        The reason for the transport.
    wire : str or None
        Element type of the gradients between nodes, as text; None if it is not shown.
    task : str
        The task of a user's data file and the reason for it; empty for a named data set.
    threads_why : str
        The reason for the number of BLAS threads per rank.
    """

    kind = "header"

    ranks: int
    pipeline: int
    batch: int
    model: int
    method: str | None
    microbatches: int
    stages: tuple[StageHeader, ...]
    nodes: int
    threads_per_rank: int
    data: str
    train_samples: int
    test_samples: int
    sizes: tuple[int, ...]
    parameters: int
    dtype: str
    optimizer: str
    versions: dict[str, str]
    folder: str
    device: str = "cpu"
    device_why: str = ""
    transport: str | None = None
    transport_why: str = ""
    wire: str | None = None
    task: str = ""
    threads_why: str = ""


@dataclass(frozen=True)
class ResumeRecord(Record):
    """Continuation of a run from a checkpoint.

    Attributes
    ----------
    step, epoch : int
        Progress of the checkpoint.
    checkpoint : str
        Name of the checkpoint.
    """

    kind = "resumed"

    step: int
    epoch: int
    checkpoint: str


@dataclass(frozen=True)
class EndRecord(Record):
    """Last record of a run that completed; the attributes are those of `RunSummary`."""

    kind = "end"

    steps: int
    seconds: float
    metric_name: str
    metric: float | None
    resumed_at: int = 0


@dataclass(frozen=True)
class RunSummary:
    """Summary of a completed run.

    Attributes
    ----------
    seconds : float
        Of training, since the start or the last resumption of the run.
    metric : float or None
        After the last epoch.
    steps : int
        Steps of the run, including those before a resumption.
    resumed_at : int
        Steps done before the last resumption.
    """

    folder: str
    epochs: list[EpochRecord]
    seconds: float
    metric_name: str
    metric: float | None
    steps: int
    resumed_at: int = 0
