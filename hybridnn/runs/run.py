"""One training run from its settings to its folder: what ``hybridnn train`` does."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hybridnn.comm.agreement import agree, broadcast_text
from hybridnn.comm.recorder import Recorder
from hybridnn.config.build import (
    load_data,
    make_device_options,
    make_model,
    make_optimizer,
    make_pipelining,
    make_schedule,
)
from hybridnn.config.settings import ParallelSettings, Settings
from hybridnn.errors import EnvironmentProblem, HybridnnError
from hybridnn.parallel.grid import ProcessGrid, all_ranks_group
from hybridnn.runs.auto_layout import resolve_layout
from hybridnn.runs.best_weights import BestWeights
from hybridnn.runs.checkpoint_hook import CheckpointHook, stopped_by_signal
from hybridnn.runs.data import PlacedData, place_data
from hybridnn.runs.expected_step import expected_step
from hybridnn.runs.folder import CHECKPOINTS, RunFolder, Start
from hybridnn.runs.recovery_state import RecoveryState, resume_advice
from hybridnn.runs.report import RunReport, RunView, describe_wire_dtype, summarize
from hybridnn.runs.resume import data_identity, resume
from hybridnn.runs.stop_signals import StopSignals
from hybridnn.runs.trace.trace_file import write_trace
from hybridnn.training.argument_checks import described, require_same_settings
from hybridnn.training.device import TrainingDevice, settle_device
from hybridnn.training.records import EpochRecord, RunSummary
from hybridnn.training.trainer import Trainer
from hybridnn.utils.files import read_npz

if TYPE_CHECKING:
    from mpi4py import MPI


TRACED_EVENTS = 1 << 16
"""Events of every rank that a trace keeps: the last ones of the run."""


def run_training(
    settings: Settings,
    view: RunView,
    *,
    start: Start = "new",
    forced: bool = False,
    underway: RecoveryState | None = None,
) -> RunSummary:
    """Train as the settings say and write the run folder; collective over all ranks of the job.

    Parameters
    ----------
    settings : Settings
        The same on every rank.
    view : RunView
        Told of the progress, on rank 0 only.
    start : str
        ``"resume"`` goes on with the run in `output.folder` from its newest valid checkpoint, ``"again"`` begins anew
        there.
    forced : bool
        Resume even where settings differ that change the training.
    underway : RecoveryState, optional
        The ranks to train on where they are not all of the job; told what is to be known if one of them is lost.

    Returns
    -------
    RunSummary
        The same on every rank, but for seconds.

    Raises
    ------
    HybridnnError
        For a user's mistake, the same on every rank and before the first step; `NonFiniteLossError` later, and
        `StoppedBySignal` when a signal came and the checkpoint is written.
    """
    underway = underway if underway is not None else RecoveryState()
    require_same_run(settings, start, forced=forced, comm=underway.comm)
    settings = resolve_layout(settings)
    grid = _grid(settings, underway.comm)
    device = settle_device(make_device_options(settings.device), grid)  # before anything that takes long
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
    trainer = _trainer(settings, grid, device, data)
    ran = {
        "parallel": _resolved(settings.parallel, trainer),
        "device": settings.device.model_copy(update={"name": device.kind}),
    }
    settings = settings.model_copy(update=ran)
    expected = expected_step(settings, trainer, data.train_samples, data.task)
    memory = trainer.stage_memory(data.task)
    wire = describe_wire_dtype(settings.parallel.wire_dtype, rounds=trainer.rounds_gradients())
    folder = agree(grid.world, lambda: _open_folder(settings, start) if grid.rank == 0 else None)
    path = Path(broadcast_text(grid.world, "" if folder is None else str(folder.path), 0))
    identity = data_identity(settings, data)
    with StopSignals(announces=grid.rank == 0) as signals, contextlib.ExitStack() as held:
        underway.folder = path
        held.callback(trainer.end_watch)
        if folder is not None:
            held.enter_context(folder)
        if grid.stall_watchdog is not None:
            grid.stall_watchdog.use_folder(path, lambda: resume_advice(path))
        resumed = None
        if start == "resume":
            with trainer.busy("reading the checkpoint"):
                resumed = resume(path, settings, trainer, identity, data.train_samples, forced=forced)
        report = RunReport(settings, trainer, data, view, folder, memory, expected, wire)
        new_writer = partial(trainer.checkpoint_writer, path / CHECKPOINTS, identity, settings.training.keep)
        writer = new_writer()
        agree(grid.world, lambda: report.start(resumed))
        boundary = CheckpointHook.of(settings.training, trainer, writer, signals, trainer.busy)
        underway.begin(trainer, boundary, writer, new_writer)
        start_step = trainer.step
        with contextlib.nullcontext() if underway.outlives_losses else _telling_how_to_go_on(path):
            best = BestWeights(trainer, folder, trainer.busy) if settings.training.keep_best else None
            seconds = _fit(settings, trainer, data, report, boundary, path, best)
        _write_last_checkpoint(boundary, trainer)
        with trainer.busy("writing the results"):
            if settings.output.trace:
                write_trace(None if folder is None else folder.trace_path, grid, trainer.plan.label)
            weights = trainer.weights()
            summary = summarize(trainer, str(path), seconds, start_step)
            agree(grid.world, partial(report.finish, weights, summary))
    trainer.free()
    grid.disconnect()
    data.memory.free()
    return summary


def require_same_run(settings: Settings, start: Start, *, forced: bool, comm: MPI.Intracomm | None = None) -> None:
    """Refuse ranks that were started to train differently; collective, before they are arranged as a grid.

    Raises
    ------
    UnequalSettingError
        On every rank.
    """
    asked = settings.model_dump() | {"--resume": start, "--force": forced}
    require_same_settings(all_ranks_group(comm), lambda: described("", asked))


def _fit(
    settings: Settings,
    trainer: Trainer,
    data: PlacedData,
    report: RunReport,
    boundary: CheckpointHook,
    path: Path,
    best: BestWeights | None,
) -> float:
    """Train what is left to train; returns the seconds it took."""

    def epoch(record: EpochRecord) -> None:
        report.epoch(record)
        if best is not None:
            best(record)

    start = perf_counter()
    done = trainer.progress.epoch - 1
    if settings.training.epochs > done:
        trainer.fit(
            data.train,
            epochs=settings.training.epochs - done,
            validation=(data.test, None),
            on_step=report.step,
            on_epoch=epoch,
            stops=boundary,
        )
    if boundary.stopped_by:
        raise stopped_by_signal(boundary, trainer.step, path)
    boundary.finish()
    return perf_counter() - start


def _write_last_checkpoint(boundary: CheckpointHook, trainer: Trainer) -> None:
    """Write the checkpoint from which a run that has ended can be trained on; without it the results still count."""
    try:
        boundary.end(trainer.progress)
    except EnvironmentProblem as error:
        if trainer.grid.rank == 0:
            print(f"Warning: {error}; the run has ended well, but cannot be trained on", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _telling_how_to_go_on(folder: Path) -> Iterator[None]:
    """Add to what ends the training, and is no fault of its settings, the way to go on."""
    try:
        yield
    except EnvironmentProblem as error:
        raise EnvironmentProblem(f"{error}. {resume_advice(folder)}") from error
    except HybridnnError:
        raise
    except Exception:
        print(resume_advice(folder), file=sys.stderr)  # above the traceback
        raise


def _grid(settings: Settings, comm: MPI.Intracomm | None) -> ProcessGrid:
    parallel = settings.parallel
    recorder = Recorder(TRACED_EVENTS) if settings.output.trace else None
    checked = settings.training.check_collectives
    if parallel.stages:
        stages = [(stage.batch, stage.model) for stage in parallel.stages]
        return ProcessGrid(comm, stages=stages, recorder=recorder, check_collectives=checked)
    return ProcessGrid(
        comm,
        pipeline=parallel.pipeline,
        batch=parallel.batch,
        model=parallel.model,
        recorder=recorder,
        check_collectives=checked,
    )


def _resolved(parallel: ParallelSettings, trainer: Trainer) -> ParallelSettings:
    """The grid and the pipeline that run, so that the settings kept beside the results repeat them or refuse."""
    ran: dict[str, Any] = {} if parallel.stages else {"batch": trainer.grid.batch}
    if (plan := trainer.plan).stages > 1:
        ran |= {"microbatches": plan.microbatches, "chunks": plan.chunks, "partition": plan.layers}
    return parallel.model_copy(update=ran)


def _trainer(settings: Settings, grid: ProcessGrid, device: TrainingDevice, data: PlacedData) -> Trainer:
    model = make_model(settings.model, data.features, data.outputs, data.task)
    start_from = settings.model.init_from
    named = f"model.init_from = {str(start_from)!r}"
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
        shared_replicas=settings.parallel.shared_replicas,
        wire_dtype=settings.parallel.wire_dtype,
        device=device,
        distribution=settings.data.distribution,
        log_every=settings.output.log_every,
        stall_seconds=settings.output.stall_seconds,
        evaluate_every=settings.training.evaluate_every,
        pipelining=make_pipelining(settings.parallel),
        initial_weights=None if start_from is None else agree(grid.world, lambda: read_npz(start_from, named)),
    )


def _open_folder(settings: Settings, start: Start) -> RunFolder:
    name = settings.data.name or Path(settings.data.file or "run").stem
    return RunFolder.create(settings.output.folder, name, start)
