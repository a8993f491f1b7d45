"""Going on with a run from its newest valid checkpoint, on the same layout or another one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from hybridnn.checkpoints.folder import checkpoint_folders
from hybridnn.checkpoints.manifest import Manifest, Origin
from hybridnn.checkpoints.reading import Checkpoint, newest_valid
from hybridnn.checkpoints.shards import array_shapes
from hybridnn.comm.agreement import agree
from hybridnn.comm.mpi import running_ranks
from hybridnn.config.file import load_settings
from hybridnn.config.settings import ParallelSettings, Settings
from hybridnn.errors import DataError, SettingError
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.runs.data import PlacedData
from hybridnn.runs.folder import CHECKPOINTS, CONFIG, Start, read_config
from hybridnn.runs.history_file import HISTORY, read_history, read_valid_history, run_status
from hybridnn.training.records import EpochRecord
from hybridnn.training.trainer import Trainer
from hybridnn.utils.settings_models import by_dotted_name
from hybridnn.utils.text import shown_path

FREE = frozenset({"evaluate_every", "check_collectives", "checkpoint_every", "keep", "checkpoint_async", "keep_best"})
"""Keys of ``[training]`` that do not change what is trained."""

FIXED = frozenset({"optimizer.name", "training.dtype", "training.batch_size"})
"""Settings without which a checkpoint makes no sense."""

RATES_BY_LENGTH = frozenset({"warmup-linear", "cosine"})
"""Learning-rate schedules that depend on the number of epochs."""

RESOLVED = ("batch", "microbatches", "chunks", "partition")
"""Keys of ``[parallel]`` that a run fills in for the ranks it has."""


@dataclass(frozen=True)
class Resumed:
    """Where a run goes on.

    Attributes
    ----------
    checkpoint : Checkpoint
    problems : list of str
        What is damaged: newer checkpoints, which were passed over, and the end of the history.
    epochs : list of EpochRecord
        Of the epochs that had ended.
    """

    checkpoint: Checkpoint
    problems: list[str]
    epochs: list[EpochRecord]


@dataclass(frozen=True)
class RunRequest:
    """What is to be trained, and how that takes its folder."""

    settings: Settings
    start: Start


def resolve_request(
    settings: Settings | None, resume: str | None, overrides: Sequence[str], *, forced: bool = False
) -> RunRequest | None:
    """What a command line asks for.

    Parameters
    ----------
    settings : Settings or None
        As the command line gives them; None takes those of the run to resume.
    resume : str or None
        The folder of a run, or ``"auto"``: that of `output.folder`, if it has checkpoints.
    overrides : sequence of str
        ``section.key=value``, for the settings of the run to resume.
    forced : bool
        As for `run_training`.

    Returns
    -------
    Task or None
        None where the run has ended with all its epochs.

    Raises
    ------
    SettingError
        If there is no such run, ``auto`` has no folder to look at, or a run that has ended is another training.
    """
    if resume is None:
        assert settings is not None
        return RunRequest(settings, "new")
    if resume == "auto":
        assert settings is not None
        if settings.output.folder is None:
            raise SettingError("--resume", resume, "needs output.folder (--out), where the run may have begun")
        folder = Path(settings.output.folder)
    else:
        folder = Path(resume)
        if settings is None:
            settings = settings_of_run(folder, overrides, running_ranks())
        if settings.output.folder not in (None, str(folder)):
            raise SettingError("output.folder", settings.output.folder, f"a run goes on in its own folder, {folder}")
        settings = settings.model_copy(update={"output": settings.output.model_copy(update={"folder": str(folder)})})
    if run_status(folder) == "finished" and settings.training.epochs <= len(read_history(folder).epochs):
        _require_same_training(read_config(folder), settings, forced=forced)
        return None
    if resume == "auto" and not checkpoint_folders(folder / CHECKPOINTS):
        return RunRequest(settings, "again")
    return RunRequest(settings, "resume")


def settings_of_run(folder: Path, overrides: Sequence[str], ranks: int) -> Settings:
    """The settings of the run in `folder`, to go on with on so many ranks.

    Where the layout changes, what the run had filled in for its own ranks is forgotten.

    Raises
    ------
    SettingError
        If there is no run, or an override is not allowed.
    """
    if run_status(folder) == "absent" or not os.path.lexists(folder / CONFIG):
        raise SettingError("--resume", str(folder), "is not a run folder")
    read_config(folder)  # which is named if it cannot be used, before anything in it is changed
    place = ["output.folder"]  # the folder may have been moved
    settings = load_settings(folder / CONFIG, overrides, forgotten=place)
    parallel = settings.parallel
    changed = any(text.strip().startswith("parallel.") for text in overrides)
    if not changed and not parallel.stages and parallel.pipeline * (parallel.batch or 1) * parallel.model == ranks:
        return settings
    given = {text.partition("=")[0].strip() for text in overrides}
    forgotten = [f"parallel.{key}" for key in RESOLVED if f"parallel.{key}" not in given]
    if not {"parallel.pipeline", "parallel.stages"} & given and _forgets_stages(parallel, ranks, given):
        forgotten.append("parallel.pipeline")
        if ranks == parallel.model and "parallel.method" not in given:  # one stage has no method
            forgotten.append("parallel.method")
    return load_settings(folder / CONFIG, overrides, forgotten=place + forgotten)


def _forgets_stages(parallel: ParallelSettings, ranks: int, given: set[str]) -> bool:
    """Whether the ranks become stages: for a method that is named now, or an exact one whose stages do not fit them."""
    if parallel.pipeline == 1:
        return "parallel.method" in given
    return bool(ranks % (parallel.pipeline * parallel.model)) and METHODS[parallel.method].exact


def _require_same_training(old: Settings, new: Settings, *, forced: bool) -> None:
    """Refuse to go on with a run as another training.

    Parameters
    ----------
    old, new : Settings
        Those of the run, and those to go on with.
    forced : bool
        Whether what the checkpoint allows may differ; the network, the optimizer's kind, the precision and the size of
        the minibatches may not.

    Raises
    ------
    SettingError
        For the first setting that differs, with both values.
    """
    for name, before, now in _differences(old, new):
        fixed = name in FIXED or name.startswith("model.")
        if fixed:
            raise SettingError(name, now, f"the run to resume has {before!r}; start a new run for another")
        if not forced:
            raise SettingError(name, now, f"the run to resume has {before!r}; --force trains on with the new value")


def _differences(old: Settings, new: Settings) -> list[tuple[str, Any, Any]]:
    free = {f"training.{key}" for key in FREE} | {"data.distribution", "data.file", "data.inputs", "model.init_from"}
    if new.schedule.name not in RATES_BY_LENGTH:
        free.add("training.epochs")
    before, now = by_dotted_name(old.model_dump()), by_dotted_name(new.model_dump())
    sections = ("model", "data", "training", "optimizer", "schedule")
    names = [name for name in before if name.startswith(sections) and name not in free]
    return [(name, before[name], now[name]) for name in names if before[name] != now[name]]


def data_identity(settings: Settings, data: PlacedData) -> str:
    """What tells one data set from another, as text that is the same on every rank."""
    source = settings.data.name or "a file"  # which may have been moved
    sizes = f"{data.train_samples} + {data.test_samples} samples, {data.features} features, {data.outputs} outputs"
    return f"{source}: {sizes}, {data.task}" + (f", SHA-256 {data.digest}…" if data.digest else "")


def resume(folder: Path, settings: Settings, trainer: Trainer, data: str, samples: int, *, forced: bool) -> Resumed:
    """Restore the newest valid checkpoint of the run in `folder`; collective.

    Parameters
    ----------
    folder : Path
    settings : Settings
    trainer : Trainer
    data : str
        Identity of its data.
    samples : int
        Training samples of them.
    forced : bool
        As for `run_training`.

    Raises
    ------
    SettingError, DataError
        On every rank: there is none, or it is of another training.
    """
    world = trainer.grid.world
    old = agree(world, lambda: read_config(folder))
    _require_same_training(old, settings, forced=forced)
    new = trainer.origin(data)
    refusal = partial(_impossible, new=new, trainer=trainer, samples=samples)
    found, problems = newest_valid(folder / CHECKPOINTS, world, refusal)
    if found is None:
        damaged = "; ".join(problems)
        raise DataError(f"{folder}: no checkpoint to go on from" + (f": {damaged}" if damaged else ""))
    _require_same_origin(found.manifest.origin, new, forced=forced)
    progress = found.manifest.progress
    done = progress.epoch - 1
    if settings.training.epochs < done:
        raise SettingError("training.epochs", settings.training.epochs, f"the run has already done {done}")
    trainer.restore(found)
    history, damage = agree(world, lambda: read_valid_history(folder))
    if damage:
        problems.append(damage)
    epochs = [record for record in history.epochs if record.epoch < progress.epoch]
    if settings.training.epochs == done and not epochs:
        lost = damage or f"{shown_path(folder / HISTORY)}: is cut off"
        raise DataError(f"{lost}; no epoch is on record and nothing is left to train: evaluate and export still work")
    return Resumed(found, problems, epochs)


def _impossible(manifest: Manifest, new: Origin, trainer: Trainer, samples: int) -> str:
    """Why no training of this network has written a checkpoint with such a manifest; empty where one may have."""
    progress, old = manifest.progress, manifest.origin
    per_epoch = ceil(samples / trainer.batch_size)
    if progress.minibatches >= per_epoch:
        return f"progress.minibatches = {progress.minibatches}, of an epoch of {per_epoch}"
    if progress.epoch - 1 + progress.minibatches > progress.step:  # of other data, an epoch may have had one step
        return f"progress.epoch = {progress.epoch} after {progress.step} steps"
    if progress.samples != progress.minibatches * trainer.batch_size:
        return f"progress.samples = {progress.samples} in {progress.minibatches} minibatches of {trainer.batch_size}"
    if set(manifest.weight_versions) != {progress.step}:
        return f"weight_versions = {sorted(set(manifest.weight_versions))} after {progress.step} steps"
    if old.model == new.model and manifest.shapes() != array_shapes(trainer.model, manifest.slots):
        return "the arrays are not those of its network"
    if old.optimizer == new.optimizer and manifest.slots != trainer.optimizer.slot_names:
        return "the arrays are not those of its optimizer"
    return ""


def _require_same_origin(old: Origin, new: Origin, *, forced: bool) -> None:
    if old.model != new.model:
        raise SettingError("model", new.model, f"the checkpoint is of {old.model}")
    if old.data != new.data and not forced:
        raise SettingError("data", new.data, f"the checkpoint is of {old.data}; --force trains on with the new data")
    layouts = [(origin.method, origin.stages, origin.partition) for origin in (old, new)]
    stale = not all(_is_exact(origin) for origin in (old, new))
    if stale and layouts[0] != layouts[1] and not forced:
        raise SettingError(
            "parallel",
            f"{new.method} over {new.stages}",
            f"the checkpoint is of {old.method} over {old.stages}, and stale methods train something else on another "
            "layout; --force goes on all the same",
        )


def _is_exact(origin: Origin) -> bool:
    return len(origin.stages) == 1 or METHODS[origin.method.split()[0]].exact
