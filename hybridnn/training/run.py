"""One training run from its settings to its folder: what ``hybridnn train`` does."""

from __future__ import annotations

import platform
from dataclasses import astuple, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from hybridnn._version import __version__
from hybridnn.comm.agreement import agree
from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.mpi import library_version
from hybridnn.comm.recorder import Recorder
from hybridnn.training.auto_layout import settle_layout
from hybridnn.training.data_placement import PlacedData, place_data
from hybridnn.training.expected_step import expected_step
from hybridnn.training.history import EpochRecord, PredictedStep, RunHeader, RunSummary, StageHeader, StepRecord
from hybridnn.training.learning_curve import draw_learning_curve
from hybridnn.training.made_of_settings import load_data, make_model, make_optimizer, make_pipelining, make_schedule
from hybridnn.training.run_folder import RunFolder
from hybridnn.training.settings import OutputSettings, ParallelSettings, Settings
from hybridnn.training.stage_memory import StageMemory
from hybridnn.training.trace_file import write_trace
from hybridnn.training.trainer import Trainer
from hybridnn.training.weights_file import read_weights

__all__ = ["RunView", "run_training"]

TRACED_EVENTS = 1 << 16
"""Events of every rank that a trace keeps: the last ones of the run."""


class RunView(Protocol):
    """Told on rank 0 how a run goes."""

    def on_header(self, header: RunHeader) -> None:
        """Before the first step."""

    def on_epoch_start(self, epoch: int, epochs: int, steps: int) -> None:
        """Epoch `epoch` of `epochs`, of `steps` steps each, begins."""

    def on_step(self, record: StepRecord) -> None:
        """After a logged step."""

    def on_epoch(self, record: EpochRecord) -> None:
        """After an epoch."""

    def on_end(self, summary: RunSummary) -> None:
        """After the last epoch, when the run folder is complete."""


def run_training(settings: Settings, view: RunView) -> RunSummary:
    """Train as the settings say and write the run folder; collective over all ranks of the job.

    Parameters
    ----------
    settings : Settings
        The same on every rank.
    view : RunView
        Told of the progress, on rank 0 only.

    Returns
    -------
    RunSummary
        The same on every rank, but for seconds.

    Raises
    ------
    HybridnnError
        For a user's mistake, the same on every rank and before the first step; `NonFiniteLossError` later.
    """
    settings = settle_layout(settings)
    grid = _grid(settings.parallel, settings.output)
    data = place_data(
        lambda: load_data(settings.data),
        grid,
        generated=settings.data.name == "synthetic",
        distribution=settings.data.distribution,
        standardize=settings.data.standardize,
        test_fraction=settings.data.test_fraction,
        seed=settings.training.seed,
        dtype=settings.training.dtype,
    )
    trainer = _trainer(settings, grid, data)
    settings = settings.model_copy(update={"parallel": _resolved(settings.parallel, trainer)})
    expected = expected_step(settings, trainer, data.train_samples, data.task)
    memory = trainer.stage_memory(data.task)
    folder = agree(grid.world, lambda: _open_folder(settings) if grid.rank == 0 else None)
    report = _Report(settings, trainer, data, view, folder, memory, expected)
    report.start()
    start = perf_counter()
    epochs = settings.training.epochs
    trainer.fit(data.train, epochs=epochs, validation=(data.test, None), on_step=report.step, on_epoch=report.epoch)
    seconds = perf_counter() - start
    if settings.output.trace:
        write_trace(None if folder is None else folder.trace_path, grid, trainer.plan.label)
    weights = trainer.weights()
    summary = _summary(trainer, "" if folder is None else str(folder.path), seconds)
    agree(grid.world, lambda: report.finish(weights, summary))
    data.memory.free()
    return summary


@dataclass(frozen=True)
class _Report:
    """Writes the run folder and tells the view, on rank 0; on other ranks it has no folder and does nothing."""

    settings: Settings
    trainer: Trainer
    data: PlacedData
    view: RunView
    folder: RunFolder | None
    memory: tuple[StageMemory, ...]
    expected: PredictedStep | None

    def start(self) -> None:
        if self.folder is not None:
            header = _header(self.settings, self.trainer, self.data, self.memory, self.folder.path)
            self.folder.begin(header)
            if self.expected is not None:
                self.folder.append(self.expected)
            self.view.on_header(header)
            self._announce(1)

    def step(self, record: StepRecord) -> None:
        if self.folder is not None:
            self.folder.append(record)
            self.view.on_step(record)

    def epoch(self, record: EpochRecord) -> None:
        if self.folder is not None:
            self.folder.append(self.trainer.history.measured[-1])
            self.folder.append(record)
            self.view.on_epoch(record)
            self._announce(record.epoch + 1)

    def finish(self, weights: dict[str, NDArray[Any]], summary: RunSummary) -> None:
        if self.folder is None:
            return
        with self.folder:
            if self.data.standardizer is not None:
                self.folder.write_standardization(self.data.standardizer.to_arrays())
            draw_learning_curve(summary.epochs, self.folder.learning_curve_path)
            self.folder.write_weights(weights)
            self.folder.end(summary)
        self.view.on_end(summary)

    def _announce(self, epoch: int) -> None:
        epochs, batch_size = self.settings.training.epochs, self.settings.training.batch_size
        if epoch <= epochs:
            self.view.on_epoch_start(epoch, epochs, -(-self.data.train_samples // batch_size))


def _grid(parallel: ParallelSettings, output: OutputSettings) -> ProcessGrid:
    recorder = Recorder(TRACED_EVENTS) if output.trace else None
    if parallel.stages:
        return ProcessGrid(stages=[(stage.batch, stage.model) for stage in parallel.stages], recorder=recorder)
    return ProcessGrid(pipeline=parallel.pipeline, batch=parallel.batch, model=parallel.model, recorder=recorder)


def _resolved(parallel: ParallelSettings, trainer: Trainer) -> ParallelSettings:
    """The grid and the pipeline that run, so that the settings kept beside the results repeat them or refuse."""
    ran: dict[str, Any] = {} if parallel.stages else {"batch": trainer.grid.batch}
    if (plan := trainer.plan).stages > 1:
        ran |= {"microbatches": plan.microbatches, "chunks": plan.chunks, "partition": plan.layers}
    return parallel.model_copy(update=ran)


def _trainer(settings: Settings, grid: ProcessGrid, data: PlacedData) -> Trainer:
    model = make_model(settings.model, data.features, data.outputs, data.task)
    start_from = settings.model.init_from
    return Trainer(
        model,
        make_optimizer(settings.optimizer),
        grid=grid,
        batch_size=settings.training.batch_size,
        schedule=make_schedule(settings.schedule),
        seed=settings.training.seed,
        dtype=settings.training.dtype,
        shuffle=settings.training.shuffle,
        clip_norm=settings.training.clip_norm,
        model_split=settings.parallel.model_split,
        overlap=settings.parallel.overlap,
        distribution=settings.data.distribution,
        log_every=settings.output.log_every,
        evaluate_every=settings.training.evaluate_every,
        pipelining=make_pipelining(settings.parallel),
        initial_weights=None if start_from is None else agree(grid.world, lambda: read_weights(start_from)),
    )


def _open_folder(settings: Settings) -> RunFolder:
    name = settings.data.name or Path(settings.data.file or "run").stem
    folder = RunFolder.create(settings.output.folder, name)
    folder.write_config(settings)
    return folder


def _header(
    settings: Settings, trainer: Trainer, data: PlacedData, memory: tuple[StageMemory, ...], folder: Path
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
        threads_per_rank=trainer.threads,
        data=settings.data.name or str(settings.data.file),
        train_samples=data.train_samples,
        test_samples=data.test_samples,
        sizes=trainer.model.sizes,
        parameters=trainer.model.parameters,
        dtype=settings.training.dtype,
        optimizer=settings.optimizer.name,
        versions={
            "hybridnn": __version__,
            "Python": platform.python_version(),
            "NumPy": np.__version__,
            "SciPy": scipy.__version__,
            "MPI": library_version(),
        },
        folder=str(folder),
    )


def _summary(trainer: Trainer, folder: str, seconds: float) -> RunSummary:
    last = trainer.history.epochs[-1]
    name, metric = ("test accuracy", last.test_accuracy) if last.test_r2 is None else ("test R²", last.test_r2)
    return RunSummary(folder, list(trainer.history.epochs), seconds, name, metric, trainer.step)
