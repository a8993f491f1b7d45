"""Records of a run beside those of its training, from its header to its end; its summary; and what shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING

from hybridnn.diagnostics.hosts import Hosts, NodeLoad
from hybridnn.pipeline.execution.chunk_runtime import MemoryBreakdown
from hybridnn.pipeline.layout import Layout
from hybridnn.training.records import MONITORS, EpochRecord, Record
from hybridnn.training.trained_network import Callback
from hybridnn.utils.text import counted

if TYPE_CHECKING:
    from hybridnn.checkpoints.reading import Checkpoint
    from hybridnn.config.settings import Settings


def watched(record: EpochRecord, monitor: str) -> float | None:
    """Accuracy or R² for ``auto``, else a value of `MONITORS`."""
    return record.metric if monitor == "auto" else record.monitored(monitor)


def score(record: EpochRecord, monitor: str) -> float | None:
    """What is largest in the best epoch: the value of `watched`, or minus it."""
    value = watched(record, monitor)
    return value if monitor == "auto" or value is None else MONITORS[monitor] * value


def epochs_without_improvement(epochs: Sequence[EpochRecord], monitor: str) -> int:
    """Evaluated epochs after the best one."""
    best = best_epoch(epochs, monitor)
    later = [record for record in epochs if best is not None and record.epoch > best.epoch]
    return sum(score(record, monitor) is not None for record in later)


def best_epoch(epochs: Sequence[EpochRecord], monitor: str = "auto") -> EpochRecord | None:
    """The first epoch with the highest `score`; None if no epoch was evaluated."""
    scores = [(value, record) for record in epochs if (value := score(record, monitor)) is not None and isfinite(value)]
    return max(scores, key=lambda scored: scored[0], default=(0.0, None))[1]


@dataclass(frozen=True)
class PredictedStep(Record):
    """Prediction of a step's time by a cost model, as means over the ranks."""

    kind = "prediction"

    machine: str  # name of the machine file
    seconds_per_step: float
    seconds_per_epoch: float
    bytes_per_step: int  # sent by all ranks
    # seconds per step of ``computing``, ``communication`` (exposed), ``communication_hidden``, ``bubble`` and
    # ``overhead``
    parts: Mapping[str, float]
    # seconds per step of every kind of instruction: ``forward``, ``backward``, ``update`` and so on
    instructions: Mapping[str, float]
    # of the machine file, where it says so
    processor: str = ""
    calibrated_ranks: int | None = None
    doubt: str = ""  # `Machine.doubt`
    layout_advice: str = ""  # names a layout that is predicted to be clearly faster; empty if there is none


@dataclass(frozen=True)
class RunHeader(Record):
    """Header of a run: its layout, data, model and device, shown as the first lines of output."""

    kind = "header"

    ranks: int
    layout: Layout
    memory: tuple[MemoryBreakdown, ...]  # the largest of the ranks of every stage
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
    # ``"cpu"`` or ``"gpu"``, and its name or the reason for the choice
    device: str = "cpu"
    device_why: str = ""
    transport: str | None = None  # transport of a GPU's arrays; None on the CPU
    transport_why: str = ""  # the reason for the transport
    task: str = ""  # the task of a user's data file and the reason for it; empty for a named data set
    in_process: bool = False  # whether the ranks took turns in one process: times are then not those of parallel ranks
    threads_why: str = ""  # the reason for the number of BLAS threads per rank
    layout_advice: str = ""  # that of `PredictedStep`
    microbatches_why: str = ""  # the reason for the number of microbatches; empty if it was given, or is 1
    # updates between the version that the forward pass of a minibatch reads and the one that its gradient is applied
    # to, as means over the minibatches of the run: of every stage, and of all stages (None in older files)
    stage_staleness: tuple[float, ...] = ()
    mean_staleness: float | None = None
    hosts: Hosts | None = None  # None in the record of an earlier version
    validation_samples: int = 0  # if not 0, epochs are evaluated on these, and the test samples once at the end

    @property
    def crowded(self) -> tuple[str, ...]:
        """A sentence for each kind of node with fewer cores than its ranks have threads."""
        if self.hosts is None or self.in_process:
            return ()
        cores = max(self.hosts.cores)  # which has equal numbers once
        crowded = sorted({ranks for ranks in self.hosts.ranks if ranks * self.threads_per_rank > cores})
        return tuple(crowding_text(ranks, self.threads_per_rank, cores) for ranks in crowded)


def crowding_text(ranks: int, threads: int, cores: int) -> str:
    """How ranks that have fewer cores than threads share them."""
    shared = f"{counted(ranks, 'rank')} of {counted(threads, 'thread')} share {counted(cores, 'core')} of a node"
    return f"{shared} and take turns: their times are no scaling"


@dataclass(frozen=True)
class LoadRecord(Record):
    """Load of the nodes by processes other than the ranks, as `node_loads` returns it."""

    kind = "load"

    before: tuple[NodeLoad, ...]  # from the start of the run to that of the training
    during: tuple[NodeLoad, ...]  # of the training

    @property
    def disturbance(self) -> float:
        """That of the training on the node with most of it."""
        return max(load.disturbance for load in self.during)


@dataclass(frozen=True)
class ResumeRecord(Record):
    """Continuation of a run from a checkpoint."""

    kind = "resumed"

    # progress of the checkpoint
    step: int
    epoch: int
    checkpoint: str  # name of the checkpoint


@dataclass(frozen=True)
class EndRecord(Record):
    """Last record of a run that completed; the attributes are those of `RunSummary`."""

    kind = "end"

    steps: int
    seconds: float
    metric_name: str
    metric: float | None
    resumed_at: int = 0
    weights_epoch: int | None = None


@dataclass(frozen=True)
class DivergedRecord(Record):
    """Last record of a run that diverged: its loss or its weights became infinite or NaN."""

    kind = "diverged"

    step: int  # the step of that loss, or after which the weights or the validation loss are not finite
    epoch: int  # of the step, from 1
    reason: str  # what became infinite or NaN, as one line


@dataclass(frozen=True)
class RunSummary:
    """Summary of a completed run."""

    folder: str
    epochs: list[EpochRecord]
    seconds: float  # of training, since the start or the last resumption of the run
    metric_name: str
    metric: float | None  # of the final weights
    steps: int  # steps of the run, including those before a resumption
    resumed_at: int = 0  # steps done before the last resumption
    # epoch of the final weights, if they are those of the best epoch (``training.patience``); None: the last one
    weights_epoch: int | None = None
    evaluated: str = "test"  # split on which epochs were evaluated, "validation" or "test"
    monitor: str = "auto"  # ``training.monitor``, which makes an epoch the best
    # parts of the time of a step by name, which add up to 1, as `TimeShares`; empty where times mean nothing
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def best(self) -> EpochRecord | None:
        """The best epoch on the validation split; None without one, as the test samples choose nothing."""
        return best_epoch(self.epochs, self.monitor) if self.evaluated == "validation" else None

    @property
    def best_value(self) -> float | None:
        """The monitored value of the best epoch."""
        return None if self.best is None else watched(self.best, self.monitor)


class RunView(Callback):
    """A callback that shows a run; as a callback it is called on every rank, by its other methods on rank 0 only."""

    def show_refused_table(self, settings: Settings) -> None:
        """Called before the error of a table with columns that cannot be used is raised."""

    def show_header(self, header: RunHeader) -> None:
        """Called before the first step."""

    def show_resume(self, checkpoint: Checkpoint, problems: Sequence[str]) -> None:
        """Called after the header of a resumed run, with the damaged checkpoints that were skipped, a line each."""

    def show_summary(self, summary: RunSummary) -> None:
        """Called after the last epoch, when the run folder is complete."""
