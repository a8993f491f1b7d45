"""What a run reports: one record per logged step, one per epoch, a header before and a summary after.

How fast training goes: samples, seconds and bytes between two moments.
"""

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

if TYPE_CHECKING:
    from hybridnn.training.metrics import Metrics


@dataclass(frozen=True)
class Speed:
    """Figures of a span of training.

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
    """Measures spans of training: `mark` ends one on this rank alone, `read` tells its figures.

    Parameters
    ----------
    grid : ProcessGrid
        Whose messages are counted.
    """

    def __init__(self, grid: ProcessGrid) -> None:
        self._grid = grid
        self._totals, self._start = grid.recorder.totals, perf_counter()
        self._spans: deque[tuple[int, float, RecordedTotals]] = deque()

    def mark(self, samples: int) -> None:
        """End a span, in which `samples` were trained, and begin the next; not collective."""
        now, totals = perf_counter(), self._grid.recorder.totals
        self._spans.append((samples, now - self._start, totals - self._totals))
        self._start, self._totals = now, totals

    def read(self) -> Speed:
        """Figures of the oldest span that was not read; collective over the grid."""
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
"""A float that need not be finite: JSON holds null in place of NaN and infinities, and null is read as NaN."""


@dataclass(frozen=True)
class StepRecord(Record):
    """One optimizer step.

    Attributes
    ----------
    step : int
        Steps done so far, this one included.
    epoch : int
        Epoch the step belongs to, from 1.
    train_loss : float
        Mean loss over the global minibatch, before the update.
    learning_rate : float
        Rate the update used.
    samples_per_second, compute_seconds, communication_seconds, bytes_sent, waiting_seconds
        As in `EpochRecord`, for the steps since the record before, or since the epoch began.
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
        None where the epoch was not evaluated or the metric does not belong to the task.
    samples_per_second : float
        Training samples of all ranks per second of wall time, evaluation excluded.
    compute_seconds, communication_seconds : float
        Rank 0's share of the epoch's training time outside and inside communication calls.
    bytes_sent : int
        Bytes that all ranks sent during the epoch's training, counted by the rule in ``comm/recorder.py``.
    waiting_seconds : float
        The part of `communication_seconds` that rank 0 spent waiting for messages of other stages and at barriers: in a
        pipeline its bubble. 0 in histories of versions that did not measure it.
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
        """Test accuracy or R², whichever the task has."""
        return self.test_accuracy if self.test_accuracy is not None else self.test_r2

    @classmethod
    def of(
        cls, step: int, epoch: int, train_loss: float, learning_rate: float, test: Metrics | None, speed: Speed
    ) -> EpochRecord:
        """Put together what was measured in an epoch."""
        measured = (None, None, None) if test is None else (test.loss, test.accuracy, test.r2)
        return cls(step, epoch, train_loss, learning_rate, *measured, **asdict(speed))


def best_epoch(epochs: Sequence[EpochRecord]) -> EpochRecord | None:
    """The first epoch with the highest test accuracy or R²; None where none was evaluated."""
    measured = [record for record in epochs if record.metric is not None and isfinite(record.metric)]
    return max(measured, key=lambda record: record.metric or 0.0, default=None)


@dataclass(frozen=True)
class PredictedStep(Record):
    """What a machine model expected of the run, as means over the ranks.

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
    """What the steps of one epoch took, as means over the ranks in seconds per step.

    Attributes
    ----------
    epoch : int
        From 1.
    seconds_per_step : float
        Wall time.
    instructions : mapping of str to float
        Of every kind of instruction.
    communication : float
        Inside communication calls, but for `waiting`.
    waiting : float
        For messages of other stages, and at barriers.
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
class StageHeader:
    """One stage of a pipeline.

    Attributes
    ----------
    stage : int
        From 0.
    batch, model : int
        Its ranks along these axes.
    layers : tuple of int
        Numbers of its layers.
    weight_bytes, optimizer_bytes : int
        Current weights with their gradients, and the optimizer's state, on the rank that has most.
    weight_version_bytes : int
        Copies of older weights, and predicted ones.
    activation_bytes : int
        Inputs and activations that wait for their backward pass.
    buffer_bytes : int
        Messages, gradients on their way through the layers, microbatches joined for one product.
    """

    stage: int
    batch: int
    model: int
    layers: tuple[int, ...]
    weight_bytes: int
    optimizer_bytes: int
    weight_version_bytes: int
    activation_bytes: int
    buffer_bytes: int


@dataclass(frozen=True)
class RunHeader(Record):
    """What a run is about to do, for its first lines of output.

    Attributes
    ----------
    batch, model : int
        Ranks along these axes; those of the first stage where stages differ.
    method : str or None
        How the pipeline is run; None without a pipeline.
    microbatches : int
        Parts of a minibatch.
    stages : tuple of StageHeader
        One for each stage of the pipeline; a single one without.
    device, device_why : str
        What computes, ``"cpu"`` or ``"gpu"``, and which one or why.
    transport : str or None
        How a GPU's arrays travel; None on the CPU.
    transport_why : str
        The reason.
    wire : str or None
        How gradients travel between nodes, in words; None where nothing is said of it.
    task : str
        What is learned from a user's file, and what of the file decided it; empty for a named data set.
    threads_why : str
        What settled the BLAS threads per rank.
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
    """Where a resumed run continues.

    Attributes
    ----------
    step, epoch : int
        Progress of the checkpoint.
    checkpoint : str
        Its name.
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
    """How a run ended.

    Attributes
    ----------
    folder : str
    epochs : list of EpochRecord
    seconds : float
        Of training, since the run began or was taken up for the last time.
    metric_name : str
    metric : float or None
        After the last epoch.
    steps : int
        Of the whole run.
    resumed_at : int
        Of them, those done before it was taken up for the last time.
    """

    folder: str
    epochs: list[EpochRecord]
    seconds: float
    metric_name: str
    metric: float | None
    steps: int
    resumed_at: int = 0
