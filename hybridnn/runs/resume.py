"""Resuming of a run from its newest valid checkpoint, on the same layout or another one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path

from hybridnn.checkpoints.folder import Manifest, Origin, checkpoint_folders
from hybridnn.checkpoints.reading import Checkpoint, newest_valid
from hybridnn.checkpoints.shards import array_shapes
from hybridnn.checkpoints.writing import origin_of
from hybridnn.comm.agreement import agree
from hybridnn.comm.mpi import running_ranks
from hybridnn.config.settings import Settings, load_settings, stage_shapes
from hybridnn.errors import DataError, GridError, SettingError
from hybridnn.nn.learning_rates import Cosine, WarmupLinear
from hybridnn.pipeline.schedules.methods import METHODS
from hybridnn.runs.data import PlacedData
from hybridnn.runs.folder import Start
from hybridnn.runs.records import epochs_without_improvement
from hybridnn.runs.run_files import CHECKPOINTS, CONFIG, HISTORY, read_config, read_epochs, run_status
from hybridnn.training.records import EpochRecord
from hybridnn.training.trainer import Trainer
from hybridnn.utils.settings_models import by_dotted_name
from hybridnn.utils.text import shown_path

FREE_SETTINGS = frozenset(
    {
        "data.distribution",
        "data.file",
        "data.inputs",
        "training.evaluate_every",
        "training.patience",
        "training.evaluate_every_steps",
        "training.checkpoint_every",
        "training.keep",
    }
)
"""Settings that do not change the training."""

FIXED_SETTINGS = frozenset({"optimizer.name", "training.dtype", "training.batch_size"})
"""Settings that must equal those of the checkpoint, even with ``--force``; so must those of ``[model]``."""

PIPELINE_CHOICES = ("microbatches", "chunks", "partition", "order")
"""Keys of ``[parallel]`` that a run chooses for its stages; stale methods train something else with others."""
RESOLVED_KEYS = ("batch", *PIPELINE_CHOICES)
"""Keys of ``[parallel]`` that a run sets for its number of ranks."""


@dataclass(frozen=True)
class Resumed:
    """State of a resumed run: its checkpoint, the records of the completed epochs, and damage."""

    checkpoint: Checkpoint
    problems: list[str]  # newer checkpoints, which were skipped, and the damaged end of the history
    epochs: list[EpochRecord]


def resolve_request(
    settings: Settings | None, resume: str | None, overrides: Sequence[str], *, forced: bool = False
) -> tuple[Settings, Start] | None:
    """Resolve the options of ``hybridnn train`` to the settings of a run, and how it starts in its folder.

    Without settings on the command line, they are those of the run in the folder `resume`, with `overrides`; ``"auto"``
    is the run in `output.folder`, if it has checkpoints. The result is None if the run has completed all its epochs, or
    has ended for lack of an improvement.

    Raises `SettingError` if there is no such run, ``auto`` is given without a folder, or a finished run differs in its
    settings.
    """
    if resume is None:
        assert settings is not None
        return settings, "new"
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
    if run_status(folder) == "finished":
        epochs, damage = read_epochs(folder)
        if damage:
            raise DataError(damage)
        patience = settings.training.patience
        is_over = patience is not None and epochs_without_improvement(epochs, settings.training.monitor) >= patience
        if settings.training.epochs <= len(epochs) or is_over:
            _require_same_training(training_settings(read_config(folder)), training_settings(settings), forced=forced)
            return None
    if resume == "auto" and not checkpoint_folders(folder / CHECKPOINTS):
        return settings, "again"
    return (_with_layout_of_run(settings, folder) if resume == "auto" else settings), "resume"


def _with_layout_of_run(settings: Settings, folder: Path) -> Settings:
    """Take over the pipeline's automatic choices from the run in `folder`, if it has the same stages and method."""
    run, now = read_config(folder).parallel, settings.parallel
    given = {key for key in PIPELINE_CHOICES if key in now.model_fields_set}
    if now.auto or any(getattr(run, key) != getattr(now, key) for key in ("method", *given)):
        return settings
    try:
        same = stage_shapes(run, running_ranks()) == stage_shapes(now, running_ranks())
    except (GridError, SettingError):  # of other ranks
        return settings
    update = {key: getattr(run, key) for key in PIPELINE_CHOICES if same}
    return settings.model_copy(update={"parallel": now.model_copy(update=update)})


def settings_of_run(folder: Path, overrides: Sequence[str], ranks: int) -> Settings:
    """The settings with which `ranks` ranks resume the run in `folder`.

    If the layout changes, settings that the run had resolved for its own ranks are dropped.

    Raises `SettingError` if there is no run, or an override is not allowed.
    """
    if run_status(folder) == "absent" or not os.path.lexists(folder / CONFIG):
        raise SettingError("--resume", str(folder), "is not a run folder")
    read_config(folder)  # a damaged file is refused before overrides are applied
    moved = ["output.folder"]  # the folder may have been moved
    settings = load_settings(folder / CONFIG, overrides, ignored=moved)
    parallel = settings.parallel
    changed = any(text.strip().startswith("parallel.") for text in overrides)
    if not changed and not parallel.stages and parallel.pipeline * (parallel.batch or 1) * parallel.model == ranks:
        return settings
    given = {text.partition("=")[0].strip() for text in overrides}
    dropped = [f"parallel.{key}" for key in RESOLVED_KEYS if f"parallel.{key}" not in given]
    # Stages are chosen again if a method is given now, or they do not fit the ranks.
    is_misfit = bool(ranks % (parallel.pipeline * parallel.model)) and METHODS[parallel.method].exact
    chooses = is_misfit if parallel.pipeline > 1 else "parallel.method" in given
    if chooses and not {"parallel.pipeline", "parallel.stages"} & given:
        dropped.append("parallel.pipeline")
        if ranks == parallel.model and "parallel.method" not in given:  # one stage has no method
            dropped.append("parallel.method")
    return load_settings(folder / CONFIG, overrides, ignored=moved + dropped)


def training_settings(settings: Settings) -> dict[str, str]:
    """Values of the settings that change the training, as JSON, by name."""
    rates_depend_on_epochs = isinstance(settings.schedule, WarmupLinear | Cosine)
    free = FREE_SETTINGS if rates_depend_on_epochs else FREE_SETTINGS | {"training.epochs"}
    sections = ("model.", "data.", "training.", "optimizer.", "schedule.")
    values = by_dotted_name(settings.model_dump())
    return {name: json.dumps(value) for name, value in values.items() if name.startswith(sections) and name not in free}


def _require_same_training(old: Mapping[str, str], new: Mapping[str, str], *, forced: bool) -> None:
    """Refuse new settings that change the training; if `forced`, those of the network and `FIXED_SETTINGS` alone."""
    for name in old:
        now = new.get(name, "null")
        if now == old[name]:
            continue
        before, now = json.loads(old[name]), json.loads(now)
        if name in FIXED_SETTINGS or name.startswith("model."):
            raise SettingError(name, now, f"the run to resume has {before!r}; start a new run for another")
        if not forced:
            raise SettingError(name, now, f"the run to resume has {before!r}; --force trains on with the new value")


def data_identity(settings: Settings, data: PlacedData) -> str:
    """Identity of a data set as text, the same on every rank."""
    source = settings.data.name or "a file"  # files may have been moved
    counts = f"{data.train_samples} + {data.test_samples}"
    if data.validation_samples:
        counts += f" + {data.validation_samples}"
    sizes = f"{counts} samples, {data.features} features, {data.outputs} outputs"
    return f"{source}: {sizes}, {data.task}" + (f", SHA-256 {data.digest}…" if data.digest else "")


def resume(folder: Path, settings: Settings, trainer: Trainer, data: str, samples: int, *, forced: bool) -> Resumed:
    """Restore the newest valid checkpoint of the run in `folder`; collective.

    Raises `SettingError` or `DataError` on every rank: there is no valid checkpoint, or it is of another training, by
    the identity of the `data` and the number of training samples too.
    """
    world = trainer.grid.world
    agree(world, lambda: read_config(folder))  # a damaged one is refused
    new = origin_of(trainer, data, training_settings(settings))
    objection = partial(_inconsistency, new=new, trainer=trainer, samples=samples)
    checkpoint, problems = newest_valid(folder / CHECKPOINTS, world, objection)
    if checkpoint is None:
        damaged = "; ".join(problems)
        raise DataError(f"{folder}: no checkpoint to go on from" + (f": {damaged}" if damaged else ""))
    _require_same_training(checkpoint.manifest.origin.settings, new.settings, forced=forced)
    _require_same_origin(checkpoint.manifest.origin, new, forced=forced)
    progress = checkpoint.manifest.progress
    done = progress.epoch - 1
    if settings.training.epochs < done:
        raise SettingError("training.epochs", settings.training.epochs, f"the run has already done {done}")
    trainer.restore(checkpoint.read_into, progress)
    epochs, damage = agree(world, lambda: read_epochs(folder))
    if damage:
        problems.append(damage)
    epochs = [record for record in epochs if record.epoch < progress.epoch]
    if settings.training.epochs == done and not epochs:
        lost = damage or f"{shown_path(folder / HISTORY)}: is cut off"
        raise DataError(f"{lost}; no epoch is on record and nothing is left to train: evaluate and export still work")
    return Resumed(checkpoint, problems, epochs)


def _inconsistency(manifest: Manifest, new: Origin, trainer: Trainer, samples: int) -> str:
    """Why the manifest cannot be that of a training of this network; empty if it can."""
    progress, old = manifest.progress, manifest.origin
    if old.settings.get("training.batch_size") != new.settings["training.batch_size"]:
        return ""  # refused later, by name
    per_epoch = ceil(samples / trainer.batch_size)
    if progress.minibatches >= per_epoch:
        return f"progress.minibatches = {progress.minibatches}, of an epoch of {per_epoch}"
    if progress.epoch - 1 + progress.minibatches > progress.step:  # of other data, an epoch may have had one step
        return f"progress.epoch = {progress.epoch} after {progress.step} steps"
    if progress.samples != progress.minibatches * trainer.batch_size:
        return f"progress.samples = {progress.samples} in {progress.minibatches} minibatches of {trainer.batch_size}"
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
    layouts = old.layout, new.layout
    before, now = ((layout.method, layout.stages, layout.layers) for layout in layouts)
    stale = not all(layout.exact for layout in layouts)
    if stale and before != now and not forced:
        raise SettingError(
            "parallel",
            new.layout.describe(),
            f"the checkpoint is of {old.layout.describe()}, and stale methods train something else on another "
            "layout; --force goes on all the same",
        )
