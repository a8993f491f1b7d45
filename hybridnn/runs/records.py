"""Records of a run beside those of its training: header, prediction, resumption and end; and its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from hybridnn.pipeline.execution.memory import MemoryBreakdown
from hybridnn.pipeline.layout import Layout
from hybridnn.training.records import EpochRecord, Record


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
class RunHeader(Record):
    """Header of a run: its layout, data, model and device, shown as the first lines of output.

    Attributes
    ----------
    memory : tuple of MemoryBreakdown
        The largest of the ranks of every stage.
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
    layout: Layout
    memory: tuple[MemoryBreakdown, ...]
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
