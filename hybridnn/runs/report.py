"""Report of a run: on rank 0, its header, records and results to the run folder and to the view."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn._version import __version__
from hybridnn.comm.mpi import is_in_process, library_version
from hybridnn.config.settings import Settings, to_toml
from hybridnn.data import TableEncoding
from hybridnn.diagnostics.hosts import NodeLoad, describe_hosts
from hybridnn.errors import NonFiniteLossError
from hybridnn.pipeline.partition import microbatch_counts
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.runs.data import PlacedData
from hybridnn.runs.folder import RunFolder
from hybridnn.runs.records import DivergedRecord, LoadRecord, PredictedStep, RunHeader, RunSummary, RunView
from hybridnn.runs.resume import Resumed
from hybridnn.runs.run_files import LEARNING_CURVE, STANDARDIZATION, TABLE, WEIGHTS
from hybridnn.training.records import EpochRecord, EvaluationRecord, StepRecord
from hybridnn.training.trained_network import Callback, TrainedNetwork
from hybridnn.training.trainer import Trainer
from hybridnn.utils.files import write_atomically


class RunReport(Callback):
    """Writes the run folder and shows header and results, on rank 0; on other ranks, without a folder, does nothing.

    Collective to make: the ranks report their memory and hosts.
    """

    def __init__(
        self,
        settings: Settings,
        trainer: Trainer,
        data: PlacedData,
        view: RunView,
        folder: RunFolder | None,
        predicted: PredictedStep | None,
        *,
        chooses_microbatches: bool = False,
    ) -> None:
        self._settings, self._trainer, self._data = settings, trainer, data
        self._view, self._folder, self._predicted = view, folder, predicted
        self._chooses_microbatches = chooses_microbatches
        self._memory = trainer.stage_memory(data.task)
        self._hosts = describe_hosts(trainer.grid.world)

    def start(self, resumed: Resumed | None) -> None:
        """Report the header, before the first step."""
        progress = self._trainer.progress
        if resumed is not None:
            self._trainer.history.epochs.extend(resumed.epochs)
        folder = self._folder
        if folder is None:
            return
        header = self._header(folder.path)
        if resumed is not None:
            folder.resume(progress, resumed.checkpoint.path.name)
        folder.append(header)
        folder.write_config(to_toml(_with_absolute_paths(self._settings, self._data.encoding)))
        if self._data.encoding is not None:
            folder.write_json(TABLE, asdict(self._data.encoding))
        if self._data.standardizer is not None:  # checkpoints need it too
            folder.write_arrays(STANDARDIZATION, self._data.standardizer.to_arrays())
        if self._predicted is not None:
            folder.append(self._predicted)
        for text in self._data.warnings:
            print(f"Warning: {text}", file=sys.stderr, flush=True)
        self._view.show_header(header)
        if resumed is not None:
            self._view.show_resume(resumed.checkpoint, resumed.problems)

    def on_train_batch_end(self, trainer: TrainedNetwork, record: StepRecord | EvaluationRecord) -> None:
        """Write the record of a step, or of an evaluation."""
        if self._folder is not None:
            self._folder.append(record)

    on_evaluation = on_train_batch_end

    def on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:
        """Write the records of an epoch."""
        if self._folder is not None:
            self._folder.append(trainer.history.measured[-1])
            self._folder.append(record)

    def write_load(self, before: tuple[NodeLoad, ...], during: tuple[NodeLoad, ...]) -> None:
        """Write the loads of the nodes, if they are known."""
        if self._folder is not None and during:
            self._folder.append(LoadRecord(before, during))

    def diverge(self, error: NonFiniteLossError) -> None:
        """Write the last record of a run that diverged."""
        if self._folder is not None:
            self._folder.append(DivergedRecord(error.step, ceil(error.step / self._minibatches), error.what))

    def summarize(self, folder: Path, seconds: float, resumed_at: int, weights_epoch: int | None) -> RunSummary:
        """Summary of a run that trained for `seconds` since step `resumed_at`; collective.

        If epochs were evaluated on a validation split, the final weights are evaluated on the test split.
        """
        trainer, data, monitor = self._trainer, self._data, self._settings.training.monitor
        epochs = list(trainer.history.epochs)
        final = next((record for record in epochs if record.epoch == weights_epoch), epochs[-1])
        part, accuracy, r2 = data.evaluated[0], final.validation_accuracy, final.validation_r2
        evaluated = part
        if part == "validation" and data.test_samples:
            metrics = trainer.evaluate(data.test)
            part, accuracy, r2 = "test", metrics.accuracy, metrics.r2
        name, metric = (f"{part} R²", r2) if data.task == "regression" else (f"{part} accuracy", accuracy)
        ends = trainer.step, resumed_at, weights_epoch
        return RunSummary(str(folder), epochs, seconds, name, metric, *ends, evaluated, monitor)

    def finish(self, weights: dict[str, NDArray[Any]], summary: RunSummary) -> None:
        """Write the results, after the last epoch."""
        if self._folder is not None:
            draw_learning_curve(summary.epochs, self._folder.path / LEARNING_CURVE, summary.evaluated)
            self._folder.write_arrays(WEIGHTS, weights)
            self._folder.end(summary)
            from hybridnn.runs.quantities import figures_of
            from hybridnn.runs.run_files import read_run

            run = read_run(self._folder.path)
            self._view.show_summary(summary if run.untimed else replace(summary, shares=figures_of(run).shares.parts))

    @property
    def _minibatches(self) -> int:
        """Minibatches of an epoch."""
        return -(-self._data.train_samples // self._trainer.config.batch_size)

    def _header(self, folder: Path) -> RunHeader:
        settings, trainer, data = self._settings, self._trainer, self._data
        left = settings.training.epochs - trainer.progress.epoch + 1
        minibatches = self._minibatches * max(1, min(settings.training.drain_every, left))
        staleness = trainer.layout.mean_staleness(minibatches)
        return RunHeader(
            ranks=trainer.grid.size,
            layout=trainer.layout,
            memory=self._memory,
            nodes=trainer.grid.nodes,
            threads_per_rank=trainer.threads.count,
            threads_why=trainer.threads.why,
            hosts=self._hosts,
            data=settings.data.name or str(settings.data.file),
            train_samples=data.train_samples,
            validation_samples=data.validation_samples,
            test_samples=data.test_samples,
            sizes=tuple(trainer.model.sizes),
            parameters=trainer.model.parameters,
            dtype=settings.training.dtype,
            optimizer=settings.optimizer.name,
            device=trainer.device.kind,
            device_why=trainer.device.why,
            transport=trainer.device.transport,
            transport_why=trainer.device.transport_why,
            task=data.task_reason,
            in_process=is_in_process(),
            versions={
                "hybridnn": __version__,
                "Python": platform.python_version(),
                "NumPy": np.__version__,
                "SciPy": version("scipy"),
                "MPI": library_version(),
            },
            folder=str(folder),
            stage_staleness=staleness,
            mean_staleness=fmean(staleness),
            layout_advice="" if self._predicted is None else self._predicted.layout_advice,
            microbatches_why=self._microbatches_why() if self._chooses_microbatches else "",
        )

    def _microbatches_why(self) -> str:
        """Among which numbers of microbatches the one of the layout was chosen, and by what; empty without a choice."""
        layout = self._trainer.layout
        counts = microbatch_counts(METHODS[layout.method], layout.stages, self._trainer.batch_size)
        if len(counts) < 2 or len(layout.stages) == 1:
            return ""
        by = "typical costs"
        if self._predicted is not None:
            by = f"the {'doubtful ' if self._predicted.doubt else ''}machine file {self._predicted.machine}"
        return f"predicted best from {counts[0]} to {counts[-1]} by {by}"


def _with_absolute_paths(settings: Settings, encoding: TableEncoding | None) -> Settings:
    """Settings that any working folder can use, with the input columns by which a table is read."""
    if settings.data.file is None:
        return settings
    update: dict[str, Any] = {"file": os.path.abspath(settings.data.file), "inputs": ()}
    if encoding is not None:
        update |= {"inputs": encoding.columns, "targets": encoding.targets}
    return settings.model_copy(update={"data": settings.data.model_copy(update=update)})


def draw_learning_curve(epochs: Sequence[EpochRecord], path: Path, evaluated: str = "test") -> None:
    """Write the learning curve as SVG; raises `EnvironmentProblem` if `path` cannot be written."""
    from hybridnn.drawing.learning_curve import learning_curve  # only here: one rank of a job draws it

    write_atomically(path, learning_curve(epochs, evaluated).svg())
