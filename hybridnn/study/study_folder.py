"""Folder of a study: its manifest, and the settings, lock, state and run of every cell."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from hybridnn.checkpoints.folder import checkpoint_folders
from hybridnn.config.settings import load_settings, to_toml
from hybridnn.errors import DataError, EnvironmentProblem, SettingError
from hybridnn.runs.folder import FolderLock
from hybridnn.runs.run_files import CHECKPOINTS, HISTORY, read_divergence, run_status
from hybridnn.study.cells import Cell, CellPlan
from hybridnn.study.study_file import Study
from hybridnn.utils.files import JSON_BYTES, FileError, read_bytes, read_json, replace_atomically, write_atomically
from hybridnn.utils.settings_models import by_dotted_name, first_problem
from hybridnn.utils.text import counted, shown_path, to_json

MANIFEST = "study.json"
SETTINGS = "settings.toml"
STARTED = "started.txt"
FAILURE = "failure.txt"
LOCK = "lock"
REPEAT = "repeat"
STALL = "stall"
FORMAT = 1

CellStatus = Literal["finished", "diverged", "running", "failed", "timed out", "interrupted", "never run"]
ENDED: tuple[CellStatus, ...] = ("finished", "diverged")
"""States of a cell that has a result and is not run again."""

Failure = Literal["failed", "timed out", "interrupted"]
FAILURES: tuple[Failure, ...] = ("failed", "timed out", "interrupted")
"""States of a cell that was started, has no result and is not running."""


@dataclass(frozen=True)
class CellState:
    """State of a cell; `reason` is one line, which may be empty.

    ``"diverged"``: the loss or the weights became infinite or NaN, which is a result; ``"failed"``: by an error of its
    own; ``"timed out"``: at the limit of a cell or of a batch job; ``"interrupted"``: by a signal, or without a trace,
    as by the loss of a node.
    """

    status: CellStatus
    reason: str = ""


@dataclass(frozen=True)
class ManifestCell:
    """A cell in the manifest; its folder below ``cells/`` has the name `id`. Fields as in `Cell`."""

    id: Annotated[str, Field(pattern="^[^/\0]+$", max_length=255)]
    ranks: Annotated[int, Field(ge=1)]
    values: dict[str, Any]


@dataclass(frozen=True)
class StudyManifest:
    """Content of ``study.json``.

    `baseline`, `paper`, `compares` and `margin` are those of the `Study`, `conclusions` those of the `CellPlan`.
    """

    name: str
    description: str
    reduced: bool
    cells: tuple[ManifestCell, ...]
    threads: int = 1
    baseline: dict[str, str] = field(default_factory=dict)
    paper: str = ""
    conclusions: dict[str, Any] = field(default_factory=dict)
    compares: Literal["times", "training"] = "training"
    margin: float | None = None


_MANIFEST = TypeAdapter(StudyManifest)


class StudyFolder:
    """The folder of one study; every cell has a run folder with ``settings.toml`` and the output of its run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def cell(self, name: str) -> Path:
        """The folder of a cell."""
        return self.path / "cells" / name

    def has_ended(self, name: str) -> bool:
        """Whether the run of a cell has finished or diverged, so that the cell is not run again."""
        return run_status(self.cell(name)) in ENDED

    def progress(self) -> str:
        """How many cells have ended, as text; ``"never run"`` without a manifest."""
        if not os.path.lexists(self.path / MANIFEST):
            return "never run"
        cells = read_manifest(self.path).cells
        return f"{sum(self.has_ended(cell.id) for cell in cells)} of {counted(len(cells), 'cell')} finished"

    def state(self, name: str) -> CellState:
        """State of a cell, with the reason.

        A cell that was started, is not running and has no recorded end was killed.
        """
        folder = self.cell(name)
        run = run_status(folder)
        if run == "finished":
            return CellState("finished")
        if run == "diverged":
            return CellState("diverged", reason_of_divergence(folder))
        if (holder := FolderLock.holder(folder, LOCK)) is not None:
            return CellState("running", holder)
        if (failure := _read_line(folder / FAILURE)) is not None:
            kind, _, reason = failure.partition(": ")
            status = next((status for status in FAILURES if status == kind), None)
            return CellState("failed", failure) if status is None else CellState(status, reason)
        if (start := _read_line(folder / STARTED)) is not None:
            cause = "killed, perhaps at a time limit, or its disk was full"
            return CellState("interrupted", f"{start} and left no end: {cause}")
        if run == "unfinished":
            return CellState("interrupted", "its run left no end")
        return CellState("never run")

    def check(self, study: Study, plan: CellPlan) -> None:
        """Raise `SettingError` if the folder has another study, or finished cells of other settings or threads."""
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise SettingError("--out", str(self.path), "is a file, not a folder")
        if os.path.lexists(self.path / MANIFEST):
            manifest = read_manifest(self.path)
            if (manifest.name, manifest.reduced) != (study.keys.name, study.reduced):
                other = manifest.name + ", reduced" * manifest.reduced
                raise SettingError("--out", str(self.path), f"holds another study ({other}); name another folder")
            finished = [cell.id for cell in manifest.cells if self.has_ended(cell.id)]
            if manifest.threads != study.keys.threads and finished:
                problem = f"cell {finished[0]} ran with {manifest.threads} BLAS threads per rank; name another folder"
                raise SettingError("threads", study.keys.threads, f"in {self.path} {problem}")
            if manifest.margin != study.keys.margin and finished:
                problem = f"in {self.path} cells ran before with margin = {manifest.margin}; name another folder"
                raise SettingError("margin", study.keys.margin, problem)
        for cell in plan.cells:
            if self.has_ended(cell.id) and (change := self._change(cell)):
                raise SettingError(
                    "--out", str(self.path), f"cell {cell.id} ran with other settings: {change}; name another folder"
                )

    def begin(self, study: Study, plan: CellPlan) -> None:
        """Create the folder and write the manifest; raises `EnvironmentProblem` if that fails."""
        cells = [{"id": cell.id, "ranks": cell.ranks, "values": cell.values} for cell in plan.cells]
        about = study.keys.model_dump(include={"name", "description", "threads", "paper", "compares", "margin"})
        about |= {"format": FORMAT, "reduced": study.reduced, "baseline": dict(study.baseline)}
        about |= {"conclusions": plan.conclusions, "cells": cells}
        with self._write_errors():
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / MANIFEST, about)

    def lock(self, name: str) -> FolderLock:
        """Lock a cell, so that no other process runs it, until the returned lock is released.

        The operating system releases the lock when the last process that has the file open ends, for whatever reason.
        Raises `FolderInUse` if another process has locked it, `EnvironmentProblem` if the folder cannot be written.
        """
        with self._write_errors():
            self.cell(name).mkdir(parents=True, exist_ok=True)
            return FolderLock.take(self.cell(name), LOCK)

    def prepare(self, cell: Cell, *, resume: bool = False, repeat: bool = False) -> Path:
        """Remove an unfinished run, write the settings of a cell and the record of its start; returns the run's folder.

        With `resume`, a run that has checkpoints is kept. A `repeat` has a folder beside the run that has ended.
        """
        folder = self.cell(cell.id) / REPEAT if repeat else self.cell(cell.id)
        with self._write_errors():
            if repeat:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
            (folder / FAILURE).unlink(missing_ok=True)
            if not (resume and checkpoint_folders(folder / CHECKPOINTS)):
                for file in (folder / HISTORY, *folder.glob("*.npz")):
                    file.unlink(missing_ok=True)
                for subfolder in (folder / CHECKPOINTS, folder / STALL):
                    if subfolder.exists():
                        shutil.rmtree(subfolder)
            write_atomically(folder / SETTINGS, to_toml(cell.settings))
            write_atomically(folder / STARTED, _start_text(os.environ))
        return folder

    def end_repeat(self, name: str, *, keep: bool) -> None:
        """Remove the repeat of a cell or, to `keep` it, the run that it repeats, which is the same training.

        The history is replaced last: at every moment the cell has a run that has ended.
        """
        folder, repeat = self.cell(name), self.cell(name) / REPEAT
        with self._write_errors():
            for path in sorted(repeat.iterdir(), key=lambda path: path.name == HISTORY) if keep else ():
                if (folder / path.name).is_dir():
                    shutil.rmtree(folder / path.name)
                path.replace(folder / path.name)
            shutil.rmtree(repeat)

    def fail(self, name: str, status: Failure, reason: str) -> None:
        """Record the failure of a cell and its reason."""
        with self._write_errors():
            write_atomically(self.cell(name) / FAILURE, f"{status}: {reason}\n")

    def _change(self, cell: Cell) -> str:
        """The first setting of a finished cell that has another value now, or an empty text."""
        try:
            ran = load_settings(self.cell(cell.id) / SETTINGS)
        except SettingError as error:
            return str(error)
        before, now = by_dotted_name(ran.model_dump()), by_dotted_name(cell.settings.model_dump())
        left_out = {f"parallel.{key}" for key in cell.settings.parallel.foreign_keys()}  # which the file has not
        changed = [name for name in now if name not in left_out and before.get(name) != now[name]]
        return f"{changed[0]} was {before.get(changed[0])!r}, is {now[changed[0]]!r}" if changed else ""

    @contextlib.contextmanager
    def _write_errors(self) -> Iterator[None]:
        """Turn `OSError` into `EnvironmentProblem` with the name of the file."""
        try:
            yield
        except OSError as error:
            raise EnvironmentProblem(f"{error.filename or self.path} cannot be written: {error.strerror}") from error


def read_manifest(folder: Path) -> StudyManifest:
    """Read the manifest of a study's folder; raises `DataError` if `folder` has none or a damaged one."""
    path = folder / MANIFEST
    try:
        values = read_json(path)
    except FileError as error:
        if error.is_missing:
            raise DataError(f"{shown_path(folder)} is not the folder of a study: it has no {MANIFEST}") from error
        raise
    try:
        return _MANIFEST.validate_python(values)
    except ValidationError as error:
        raise FileError(path, f"not written by `hybridnn study run`: {first_problem(error)}") from error


def write_json(path: Path, value: object) -> None:
    """Write a JSON file of a study atomically; jobs on several nodes may write the same one."""
    text = to_json(value, indent=2) + "\n"
    replace_atomically(path, lambda file: file.write(text.encode()), exclusive=False)


def reason_of_divergence(folder: Path) -> str:
    """Return why the run in a folder diverged."""
    try:
        return read_divergence(folder)
    except DataError as error:
        return str(error)


def _read_line(path: Path) -> str | None:
    """Content of a small file as one line; None without the file."""
    try:
        return " ".join(read_bytes(path, JSON_BYTES).decode(errors="replace").split())
    except FileError as error:
        return None if error.is_missing else str(error)


def _start_text(environment: Mapping[str, str]) -> str:
    """Time, Slurm job or process, and host of a cell's start."""
    job = environment.get("SLURM_JOB_ID")
    if (array := environment.get("SLURM_ARRAY_JOB_ID")) and (task := environment.get("SLURM_ARRAY_TASK_ID")):
        job = f"{array}_{task}"
    by = f"Slurm job {job}" if job else f"process {os.getpid()}"
    return f"started {datetime.now().isoformat(' ', 'seconds')} by {by} on {socket.gethostname()}\n"
