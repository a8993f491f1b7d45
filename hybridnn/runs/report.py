"""What a run says of itself: to its folder, and to whoever watches."""

from __future__ import annotations

import os
import platform
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from hybridnn._version import __version__
from hybridnn.comm.mpi import library_version
from hybridnn.config.settings import Settings
from hybridnn.runs.data import PlacedData
from hybridnn.runs.folder import RunFolder
from hybridnn.runs.learning_curve import draw_learning_curve
from hybridnn.runs.resume import Resumed
from hybridnn.training.records import EpochRecord, PredictedStep, RunHeader, RunSummary, StageHeader, StepRecord
from hybridnn.training.stage_memory import StageMemory
from hybridnn.training.trainer import Trainer


class RunView(Protocol):
    """Told on rank 0 how a run goes."""

    def on_header(self, header: RunHeader) -> None:
        """Before the first step."""

    def on_resume(self, resumed: Resumed) -> None:
        """After the header, where the run goes on from a checkpoint."""

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        """Epoch `epoch` of `epochs`, of `steps` steps each, begins."""

    def on_step(self, record: StepRecord) -> None:
        """After a logged step."""

    def on_epoch(self, record: EpochRecord) -> None:
        """After an epoch."""

    def on_end(self, summary: RunSummary) -> None:
        """After the last epoch, when the run folder is complete."""


@dataclass(frozen=True)
class RunReport:
    """Writes the run folder and tells the view, on rank 0; on other ranks it has no folder and does nothing."""

    settings: Settings
    trainer: Trainer
    data: PlacedData
    view: RunView
    folder: RunFolder | None
    memory: tuple[StageMemory, ...]
    expected: PredictedStep | None
    wire: str | None

    def start(self, resumed: Resumed | None) -> None:
        """Before the first step."""
        progress = self.trainer.progress
        if resumed is not None:
            self.trainer.history.epochs.extend(resumed.epochs)
        if self.folder is None:
            return
        header = _header(self.settings, self.trainer, self.data, self.memory, self.wire, self.folder.path)
        if resumed is not None:
            self.folder.resume(progress, resumed.checkpoint.path.name)
        self.folder.append(header)
        self.folder.write_config(_found_from_anywhere(self.settings, self.data.inputs))
        if self.data.standardizer is not None:  # checkpoints need it too
            self.folder.write_standardization(self.data.standardizer.to_arrays())
        if self.expected is not None:
            self.folder.append(self.expected)
        self.view.on_header(header)
        if resumed is not None:
            self.view.on_resume(resumed)
        self._announce(progress.epoch)

    def step(self, record: StepRecord) -> None:
        """After a logged step."""
        if self.folder is not None:
            self.folder.append(record)
            self.view.on_step(record)

    def epoch(self, record: EpochRecord) -> None:
        """After an epoch."""
        if self.folder is not None:
            self.folder.append(self.trainer.history.measured[-1])
            self.folder.append(record)
            self.view.on_epoch(record)
            self._announce(record.epoch + 1)

    def finish(self, weights: dict[str, NDArray[Any]], summary: RunSummary) -> None:
        """After the last epoch: write what is left to write."""
        if self.folder is None:
            return
        draw_learning_curve(summary.epochs, self.folder.learning_curve_path)
        self.folder.write_weights(weights)
        self.folder.end(summary)
        self.view.on_end(summary)

    def _announce(self, epoch: int) -> None:
        epochs, batch_size = self.settings.training.epochs, self.settings.training.batch_size
        if epoch <= epochs:
            self.view.on_epoch_start(epoch, epochs, -(-self.data.train_samples // batch_size))


def _header(
    settings: Settings,
    trainer: Trainer,
    data: PlacedData,
    memory: tuple[StageMemory, ...],
    wire: str | None,
    folder: Path,
) -> RunHeader:
    grid, plan = trainer.grid, trainer.plan
    return RunHeader(
        ranks=grid.size,
        pipeline=grid.pipeline,
        batch=grid.batch,
        model=grid.model,
        method=plan.label if grid.pipeline > 1 else None,
        microbatches=plan.microbatches,
        stages=tuple(
            StageHeader(
                stage,
                batch,
                model,
                tuple(layer.index for chunk in plan.layers_of(trainer.model, stage) for layer in chunk),
                *astuple(memory[stage]),
            )
            for stage, (batch, model) in enumerate(grid.stages)
        ),
        nodes=grid.nodes,
        threads_per_rank=trainer.threads.count,
        threads_why=trainer.threads.why,
        data=settings.data.name or str(settings.data.file),
        train_samples=data.train_samples,
        test_samples=data.test_samples,
        sizes=trainer.model.sizes,
        parameters=trainer.model.parameters,
        dtype=settings.training.dtype,
        optimizer=settings.optimizer.name,
        device=trainer.device.kind,
        device_why=trainer.device.why,
        transport=trainer.device.transport,
        transport_why=trainer.device.transport_why,
        wire=wire,
        task=data.task_reason,
        versions={
            "hybridnn": __version__,
            "Python": platform.python_version(),
            "NumPy": np.__version__,
            "SciPy": scipy.__version__,
            "MPI": library_version(),
        },
        folder=str(folder),
    )


def _found_from_anywhere(settings: Settings, inputs: tuple[str, ...]) -> Settings:
    """Settings that name the same files from any folder, and the input columns by which a table is read."""
    data, model = settings.data, settings.model
    if data.file is not None:
        data = data.model_copy(update={"file": os.path.abspath(data.file), "inputs": inputs})
    if model.init_from is not None:
        model = model.model_copy(update={"init_from": os.path.abspath(model.init_from)})
    return settings.model_copy(update={"data": data, "model": model})


def describe_wire_dtype(wire_dtype: str, *, rounds: bool) -> str | None:
    """How gradients travel between nodes, where that was asked for; `rounds` says whether any do."""
    if wire_dtype == "same":
        return None
    if rounds:
        return f"gradients travel between nodes as {wire_dtype}"
    return f"no gradients travel between nodes: parallel.wire_dtype = {wire_dtype!r} changes nothing"


def summarize(trainer: Trainer, folder: str, seconds: float, resumed_at: int) -> RunSummary:
    """How a run ended; `seconds` since step `resumed_at`."""
    last = trainer.history.epochs[-1]
    name, metric = ("test accuracy", last.test_accuracy) if last.test_r2 is None else ("test R²", last.test_r2)
    return RunSummary(folder, list(trainer.history.epochs), seconds, name, metric, trainer.step, resumed_at)
