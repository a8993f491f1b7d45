"""A training run, from its settings to a complete run folder: what ``hybridnn train`` does."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from hybridnn.checkpoints.file_io import NOT_SHARED, nodes_without
from hybridnn.checkpoints.writing import checkpoint_writer
from hybridnn.comm.agreement import agree, broadcast_text, name_hosts
from hybridnn.comm.recorder import Recorder
from hybridnn.config.settings import Settings
from hybridnn.data import Dataset
from hybridnn.data.table_fitting import TableError
from hybridnn.diagnostics.hosts import LoadMeter, node_loads
from hybridnn.errors import EnvironmentProblem, HybridnnError, NonFiniteLossError, SettingError
from hybridnn.parallel.grid import ProcessGrid, all_ranks_group
from hybridnn.runs.callbacks import BestWeights, Checkpoints, Patience, StopSignals, restore_best_weights
from hybridnn.runs.data import PlacedData, place_data
from hybridnn.runs.folder import RUNS, RunFolder, Start, resume_advice
from hybridnn.runs.records import RunSummary, RunView, epochs_without_improvement
from hybridnn.runs.report import RunReport
from hybridnn.runs.resume import data_identity, resume, training_settings
from hybridnn.runs.run_files import CHECKPOINTS, HISTORY, TRACE
from hybridnn.runs.trace_file import write_trace
from hybridnn.runs.workload import choose_parallel_settings, predicted_step, with_divided_pipeline
from hybridnn.training.device import resolve_device
from hybridnn.training.rank_comparison import describe_value, require_same_settings
from hybridnn.training.trained_network import Callback
from hybridnn.training.trainer import Trainer

TRACED_EVENTS = 1 << 16  # events that a trace keeps of every rank: the last ones of the run


def run_training(settings: Settings, view: RunView, *, start: Start = "new", forced: bool = False) -> RunSummary:
    """Train by the settings and write the run folder; collective over all ranks of the job.

    The settings are the same on every rank, and so is the summary, except for seconds; the view shows the run on rank
    0. ``"resume"`` continues the run in `output.folder` from its newest valid checkpoint, if `forced` also with
    settings that change the training; ``"again"`` restarts it.

    Raises `HybridnnError` for a user's mistake, the same on every rank and before the first step; `NonFiniteLossError`
    later; `StoppedBySignal` after a signal, when the checkpoint is written.
    """
    options = settings.model_dump() | {"--resume": start, "--force": forced}
    require_same_settings(all_ranks_group(stall_seconds=0), lambda: describe_value("", options))
    meter = LoadMeter()
    parallel = settings.parallel
    chooses = parallel.microbatches is None and not parallel.auto
    settings, data, trainer = _prepare(settings, view)
    grid = trainer.grid
    read_loads = partial(node_loads, grid.world, grid.node_group, meter, trainer.threads.count)
    monitor = settings.training.monitor
    predicted = predicted_step(settings, trainer, data.train_samples, data.task)
    folder, path = _open_folder(settings, start, grid)
    with StopSignals(announces=grid.rank == 0) as signals, contextlib.ExitStack() as stack:
        stack.callback(trainer.end_watch)
        if folder is not None:
            stack.enter_context(folder)
        if grid.stall_watchdog is not None:
            grid.stall_watchdog.use_folder(path, lambda: resume_advice(path))
        report = RunReport(settings, trainer, data, view, folder, predicted, chooses_microbatches=chooses)
        identity = data_identity(settings, data)
        resumed = None
        if start == "resume":
            with trainer.busy("reading the checkpoint"):
                resumed = resume(path, settings, trainer, identity, data.train_samples, forced=forced)
        writer = checkpoint_writer(
            trainer, path / CHECKPOINTS, identity, settings.training.keep, training_settings(settings)
        )
        writer.history = path / HISTORY
        checkpoints = Checkpoints(settings.training.checkpoint_every, trainer, writer, signals)
        agree(grid.world, lambda: report.start(resumed))
        first_step = trainer.step
        with _with_resume_advice(path):
            callbacks: list[Callback] = [report, view]
            if data.validation_samples:  # test samples choose nothing
                callbacks.append(BestWeights(trainer, folder, monitor))
            if settings.training.patience is not None:
                callbacks.append(Patience(settings.training.patience, monitor))
            before = read_loads()
            seconds = _fit(settings, data, report, checkpoints, callbacks)
            if checkpoints.stopped_by:
                raise checkpoints.stop_error(path)
            if trainer.step > first_step:
                report.write_load(before, read_loads())
        try:
            checkpoints.end(trainer.progress)  # from which the finished run can be trained further
        except EnvironmentProblem as error:
            if grid.rank == 0:
                warning = f"Warning: {error}; the run has ended well, but cannot be trained on"
                print(warning, file=sys.stderr, flush=True)
        weights_epoch = None
        if settings.training.patience is not None:
            weights_epoch = restore_best_weights(trainer, path, monitor)
        with trainer.busy("writing the results"):
            if settings.output.trace:
                write_trace(None if folder is None else folder.path / TRACE, grid, trainer.layout)
            weights = trainer.weights()
            summary = report.summarize(path, seconds, first_step, weights_epoch)
            agree(grid.world, partial(report.finish, weights, summary))
    trainer.free()
    grid.disconnect()
    data.memory.free()
    return summary


def _prepare(settings: Settings, view: RunView) -> tuple[Settings, PlacedData, Trainer]:
    """Make the grid and the trainer, and load the data; the settings with layout and device as they run. Collective."""
    settings = choose_parallel_settings(settings)
    grid = _make_grid(settings)
    # before anything that takes long
    device = resolve_device(settings.device, grid, class_weight=settings.training.class_weight)

    def load() -> Dataset:
        try:
            return settings.data.load(settings.model.task, settings.split_seed)
        except TableError:
            if grid.rank == 0:
                view.show_refused_table(settings)
            raise

    data = place_data(
        load,
        grid,
        generated=settings.data.name == "synthetic",
        distribution=settings.data.distribution,
        standardize=settings.data.standardize,
        test_fraction=settings.data.test_fraction,
        validation_fraction=settings.data.validation_fraction,
        seed=settings.split_seed,
        dtype=settings.training.dtype,
    )
    model = settings.model.make(data.features, data.outputs, data.task)
    settings = with_divided_pipeline(settings, model, grid, device.kind)
    trainer = Trainer.from_config(settings.train_config(model), grid=grid, device=device)
    _reserve(trainer, data, settings)
    # The grid and the pipeline as they run, so that ``config.toml`` repeats the run exactly.
    parallel, layout = settings.parallel, trainer.layout
    update: dict[str, Any] = {} if parallel.stages else {"batch": trainer.grid.batch}
    if len(layout.stages) > 1:
        update |= {"microbatches": layout.microbatches, "chunks": layout.chunks, "partition": layout.layers}
        update["order"] = layout.order or None
    resolved = {"parallel": parallel.model_copy(update=update), "device": replace(settings.device, name=device.kind)}
    return settings.model_copy(update=resolved), data, trainer


def _reserve(trainer: Trainer, data: PlacedData, settings: Settings) -> None:
    """Allocate the memory of a training, before anything is written."""
    engine = trainer.engine
    copies = trainer.model.parameters * engine.dtype.itemsize  # all weights are gathered on every rank
    if settings.training.checkpoint_every is not None:  # written from copies of its arrays
        copies += copies * (1 + len(trainer.optimizer.slot_names)) // trainer.grid.size
    engine.reserve(data.task, training=data.train_samples, forward=data.evaluated[2], copies=copies)


def _make_grid(settings: Settings) -> ProcessGrid:
    parallel = settings.parallel
    recorder = Recorder(TRACED_EVENTS) if settings.output.trace else None
    axes: dict[str, Any] = {"pipeline": parallel.pipeline, "batch": parallel.batch, "model": parallel.model}
    if parallel.stages:
        axes = {"stages": [(stage.batch, stage.model) for stage in parallel.stages]}
    return ProcessGrid(**axes, recorder=recorder, stall_seconds=settings.output.stall_seconds)


def _open_folder(settings: Settings, start: Start, grid: ProcessGrid) -> tuple[RunFolder | None, Path]:
    """The run folder, open on rank 0, and its path; collective. `SettingError` on all if other nodes do not see it."""
    name = settings.data.name or Path(settings.data.file or "run").stem
    wanted = Path(settings.output.folder or RUNS)
    if hosts := nodes_without(wanted, grid.world, grid.node_group):
        raise SettingError("output.folder", str(wanted), f"{NOT_SHARED} {name_hosts(hosts)}")
    folder = agree(
        grid.world, lambda: RunFolder.create(settings.output.folder, name, start) if grid.rank == 0 else None
    )
    return folder, Path(broadcast_text(grid.world, "" if folder is None else str(folder.path), 0))


def _fit(
    settings: Settings, data: PlacedData, report: RunReport, checkpoints: Checkpoints, callbacks: Sequence[Callback]
) -> float:
    """Train the remaining epochs, or until a signal; the seconds that it took."""
    started, trainer = perf_counter(), checkpoints.trainer
    _, evaluated, samples = data.evaluated
    patience, monitor = settings.training.patience, settings.training.monitor
    remaining = settings.training.epochs - (trainer.progress.epoch - 1)
    waited = epochs_without_improvement(trainer.history.epochs, monitor)
    if remaining > 0 and not (patience is not None and waited >= patience):
        try:
            trainer.fit(
                data.train,
                epochs=remaining,
                validation=(evaluated, None) if samples else None,
                callbacks=[*callbacks, checkpoints],
            )
        except NonFiniteLossError as error:
            agree(trainer.grid.world, partial(report.diverge, error))
            raise
    if not checkpoints.stopped_by:
        checkpoints.finish()
    return perf_counter() - started


@contextlib.contextmanager
def _with_resume_advice(folder: Path) -> Iterator[None]:
    """Add the command that resumes the run to an error that is no fault of the settings."""
    try:
        yield
    except EnvironmentProblem as error:
        raise EnvironmentProblem(f"{error}. {resume_advice(folder)}") from error
    except HybridnnError:
        raise
    except Exception:
        print(resume_advice(folder), file=sys.stderr)  # above the traceback
        raise
