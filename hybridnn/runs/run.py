"""A training run, from its settings to a complete run folder: what ``hybridnn train`` does."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hybridnn.checkpoints.writing import CheckpointWriter
from hybridnn.comm.agreement import agree, broadcast_text
from hybridnn.comm.recorder import Recorder
from hybridnn.config.settings import ParallelSettings, Settings
from hybridnn.errors import EnvironmentProblem, HybridnnError
from hybridnn.parallel.grid import ProcessGrid, all_ranks_group
from hybridnn.runs.best_weights import BestWeights
from hybridnn.runs.checkpoint_hook import CheckpointHook, stopped_by_signal
from hybridnn.runs.data import PlacedData, place_data
from hybridnn.runs.folder import CHECKPOINTS, RunFolder, Start, resume_advice
from hybridnn.runs.report import RunReport, RunView, summarize
from hybridnn.runs.resume import data_identity, resume
from hybridnn.runs.stop_signals import StopSignals
from hybridnn.runs.trace.trace_file import write_trace
from hybridnn.runs.workload import choose_parallel_settings, predicted_step
from hybridnn.training.device import TrainingDevice, resolve_device
from hybridnn.training.equal_ranks import describe_value, require_same_settings
from hybridnn.training.records import EpochRecord, RunSummary
from hybridnn.training.trainer import Trainer
from hybridnn.utils.files import read_npz

if TYPE_CHECKING:
    from mpi4py import MPI


TRACED_EVENTS = 1 << 16
"""Events that a trace keeps of every rank: the last ones of the run."""


@dataclass(frozen=True)
class ActiveTraining:
    """A training from its first step on.

    Attributes
    ----------
    trainer : Trainer
    hook : CheckpointHook
    new_writer : callable
        ``new_writer(grid=...)`` makes another checkpoint writer, for the ranks of another grid.
    """

    trainer: Trainer
    hook: CheckpointHook
    new_writer: Callable[..., CheckpointWriter]


@dataclass
class Attempt:
    """One attempt at a run; its caller, `hybridnn.runs.recovery`, makes another one if a rank is lost.

    Attributes
    ----------
    comm : MPI.Intracomm or None
        Ranks to train on; None: all ranks of the job.
    recovers : bool
        Whether the caller continues after a lost rank. If not, errors name the command that resumes the run.
    on_training : callable or None
        Called before the first step.
    folder : Path or None
        Run folder, set by `run_training` when it is open.
    training : ActiveTraining or None
        Set by `run_training` before the first step.
    """

    comm: MPI.Intracomm | None = None
    recovers: bool = False
    on_training: Callable[[], None] | None = None
    folder: Path | None = None
    training: ActiveTraining | None = None


@dataclass(frozen=True)
class _PreparedRun:
    """Settings with the resolved layout and device, and the objects that they describe."""

    settings: Settings
    grid: ProcessGrid
    data: PlacedData
    trainer: Trainer


def run_training(
    settings: Settings, view: RunView, *, start: Start = "new", forced: bool = False, attempt: Attempt | None = None
) -> RunSummary:
    """Train by the settings and write the run folder; collective over all ranks of the job.

    Parameters
    ----------
    settings : Settings
        The same on every rank.
    view : RunView
        Receives the progress on rank 0.
    start : str
        ``"resume"`` continues the run in `output.folder` from its newest valid checkpoint, ``"again"`` restarts it.
    forced : bool
        Resume even if settings differ that change the training.
    attempt : Attempt, optional
        Ranks to train on if not all, and a place for the state that recovery from a lost rank needs.

    Returns
    -------
    RunSummary
        The same on every rank, except for seconds.

    Raises
    ------
    HybridnnError
        For a user's mistake, the same on every rank and before the first step; `NonFiniteLossError` later;
        `StoppedBySignal` after a signal, when the checkpoint is written.
    """
    attempt = attempt if attempt is not None else Attempt()
    require_same_run(settings, start, forced=forced, comm=attempt.comm)
    run = _prepare(settings, attempt.comm)
    grid, trainer = run.grid, run.trainer
    predicted = predicted_step(run.settings, trainer, run.data.train_samples, run.data.task)
    folder, path = _open_folder(run.settings, start, grid)
    attempt.folder = path
    with StopSignals(announces=grid.rank == 0) as signals, contextlib.ExitStack() as stack:
        stack.callback(trainer.end_watch)
        if folder is not None:
            stack.enter_context(folder)
        if grid.stall_watchdog is not None:
            grid.stall_watchdog.use_folder(path, lambda: resume_advice(path))
        report = RunReport(run.settings, trainer, run.data, view, folder, predicted)
        training = _begin(run, report, path, signals, start=start, forced=forced)
        attempt.training = training
        if attempt.on_training is not None:
            attempt.on_training()
        first_step = trainer.step
        with contextlib.nullcontext() if attempt.recovers else _with_resume_advice(path):
            best = BestWeights(trainer, folder) if run.settings.training.keep_best else None
            seconds = _fit(run, report, training.hook, best)
            if training.hook.stopped_by:
                raise stopped_by_signal(training.hook, trainer.step, path)
        _write_last_checkpoint(training.hook, trainer)
        with trainer.busy("writing the results"):
            if run.settings.output.trace:
                write_trace(None if folder is None else folder.trace_path, grid, trainer.layout.method_text)
            weights = trainer.weights()
            summary = summarize(trainer, str(path), seconds, first_step)
            agree(grid.world, partial(report.finish, weights, summary))
    trainer.free()
    grid.disconnect()
    run.data.memory.free()
    return summary


def require_same_run(settings: Settings, start: Start, *, forced: bool, comm: MPI.Intracomm | None = None) -> None:
    """Refuse ranks that were started with different settings; collective, before the process grid is made.

    Raises
    ------
    UnequalSettingError
        On every rank.
    """
    options = settings.model_dump() | {"--resume": start, "--force": forced}
    require_same_settings(all_ranks_group(comm), lambda: describe_value("", options))


def _prepare(settings: Settings, comm: MPI.Intracomm | None) -> _PreparedRun:
    """Make the process grid, choose the device, load the data and make the trainer; collective."""
    settings = choose_parallel_settings(settings)
    grid = _make_grid(settings, comm)
    device = resolve_device(settings.device, grid)  # before anything that takes long
    data = place_data(
        settings.data.load,
        grid,
        generated=settings.data.name == "synthetic",
        distribution=settings.data.distribution,
        standardize=settings.data.standardize,
        test_fraction=settings.data.test_fraction,
        seed=settings.training.seed,
        dtype=settings.training.dtype,
    )
    trainer = _make_trainer(settings, grid, device, data)
    resolved = {
        "parallel": _resolved(settings.parallel, trainer),
        "device": replace(settings.device, name=device.kind),
    }
    return _PreparedRun(settings.model_copy(update=resolved), grid, data, trainer)


def _make_grid(settings: Settings, comm: MPI.Intracomm | None) -> ProcessGrid:
    parallel = settings.parallel
    recorder = Recorder(TRACED_EVENTS) if settings.output.trace else None
    axes: dict[str, Any] = {"pipeline": parallel.pipeline, "batch": parallel.batch, "model": parallel.model}
    if parallel.stages:
        axes = {"stages": [(stage.batch, stage.model) for stage in parallel.stages]}
    return ProcessGrid(comm, **axes, recorder=recorder, check_collectives=settings.training.check_collectives)


def _make_trainer(settings: Settings, grid: ProcessGrid, device: TrainingDevice, data: PlacedData) -> Trainer:
    weights_file = settings.model.init_from
    setting = f"model.init_from = {str(weights_file)!r}"
    model = settings.model.make(data.features, data.outputs, data.task)
    return Trainer.from_config(
        settings.train_config(model),
        grid=grid,
        device=device,
        initial_weights=None if weights_file is None else agree(grid.world, lambda: read_npz(weights_file, setting)),
        stall_seconds=settings.output.stall_seconds,
    )


def _resolved(parallel: ParallelSettings, trainer: Trainer) -> ParallelSettings:
    """The settings of the grid and the pipeline as they run, so that ``config.toml`` repeats the run exactly."""
    update: dict[str, Any] = {} if parallel.stages else {"batch": trainer.grid.batch}
    if len((layout := trainer.layout).stages) > 1:
        update |= {"microbatches": layout.microbatches, "chunks": layout.chunks, "partition": layout.layers}
    return parallel.model_copy(update=update)


def _open_folder(settings: Settings, start: Start, grid: ProcessGrid) -> tuple[RunFolder | None, Path]:
    """Open the run folder on rank 0; its path on every rank. Collective."""
    name = settings.data.name or Path(settings.data.file or "run").stem
    folder = agree(
        grid.world, lambda: RunFolder.create(settings.output.folder, name, start) if grid.rank == 0 else None
    )
    return folder, Path(broadcast_text(grid.world, "" if folder is None else str(folder.path), 0))


def _begin(
    run: _PreparedRun, report: RunReport, path: Path, signals: StopSignals, *, start: Start, forced: bool
) -> ActiveTraining:
    """Read the checkpoint of a resumed run, begin the history and make the checkpoint hook; collective."""
    trainer, identity = run.trainer, data_identity(run.settings, run.data)
    resumed = None
    if start == "resume":
        with trainer.busy("reading the checkpoint"):
            resumed = resume(path, run.settings, trainer, identity, run.data.train_samples, forced=forced)
    new_writer = partial(trainer.checkpoint_writer, path / CHECKPOINTS, identity, run.settings.training.keep)
    writer = new_writer()
    agree(run.grid.world, lambda: report.start(resumed))
    hook = CheckpointHook(run.settings.training, trainer, writer, signals)
    return ActiveTraining(trainer, hook, new_writer)


def _fit(run: _PreparedRun, report: RunReport, hook: CheckpointHook, best: BestWeights | None) -> float:
    """Train the remaining epochs, or until a signal; the seconds that it took."""

    def on_epoch(record: EpochRecord) -> None:
        report.epoch(record)
        if best is not None:
            best(record)

    started = perf_counter()
    remaining = run.settings.training.epochs - (run.trainer.progress.epoch - 1)
    if remaining > 0:
        run.trainer.fit(
            run.data.train,
            epochs=remaining,
            validation=(run.data.test, None),
            on_step=report.step,
            on_epoch=on_epoch,
            should_stop=hook,
        )
    if not hook.stopped_by:
        hook.finish()
    return perf_counter() - started


def _write_last_checkpoint(hook: CheckpointHook, trainer: Trainer) -> None:
    """Write the checkpoint from which the finished run can be trained further; a failure is a warning only."""
    try:
        hook.end(trainer.progress)
    except EnvironmentProblem as error:
        if trainer.grid.rank == 0:
            print(f"Warning: {error}; the run has ended well, but cannot be trained on", file=sys.stderr, flush=True)


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
