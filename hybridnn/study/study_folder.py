"""The folder of a study: which cells it has, what became of each, and who is running it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from hybridnn.checkpoints.folder import checkpoint_folders
from hybridnn.config.file import load_settings, to_toml
from hybridnn.errors import DataError, EnvironmentProblem, SettingError
from hybridnn.runs.folder import CHECKPOINTS
from hybridnn.runs.history_file import HISTORY, run_status
from hybridnn.runs.lock import FolderLock
from hybridnn.study.cells import Cell, CellPlan
from hybridnn.study.study_file import Study
from hybridnn.utils.files import JSON_BYTES, FileError, parse_json, read_bytes, read_json, replace_atomically
from hybridnn.utils.settings_models import by_dotted_name, first_problem
from hybridnn.utils.text import shown_path, to_json

MANIFEST = "study.json"
SETTINGS = "settings.toml"
STARTED = "started.json"
FAILURE = "failure.txt"
LOCK = "lock"
STALL = "stall"
FORMAT = 1

CellStatus = Literal["finished", "running", "failed", "timed out", "interrupted", "never run"]
Failure = Literal["failed", "timed out", "interrupted"]
FAILURES: tuple[Failure, ...] = ("failed", "timed out", "interrupted")
"""States of a cell that was run and did not end well."""


@dataclass(frozen=True)
class CellState:
    """What has become of a cell.

    Attributes
    ----------
    status : str
        ``"failed"``: by an error of its own; ``"timed out"``: at the limit of a cell or of a batch job;
        ``"interrupted"``: by a signal, or without a trace, as by the loss of a node.
    reason : str
        Why, in one line; empty where there is nothing to say.
    """

    status: CellStatus
    reason: str = ""


@dataclass(frozen=True)
class ManifestCell:
    """A cell as the folder's manifest names it.

    Attributes
    ----------
    id : str
        Its folder below ``cells/``.
    ranks : int
    values : dict
        Value of every axis by its label.
    """

    id: Annotated[str, Field(pattern="^[^/\0]+$", max_length=255)]
    ranks: Annotated[int, Field(ge=1)]
    values: dict[str, Any]


@dataclass(frozen=True)
class StudyManifest:
    """What a study's folder is about.

    Attributes
    ----------
    name, description : str
    reduced : bool
        Whether it is the reduced study.
    cells : tuple of ManifestCell
    threads : int or None
        BLAS threads per rank; None in a folder of an earlier version, which did not fix them.
    """

    name: str
    description: str
    reduced: bool
    cells: tuple[ManifestCell, ...]
    threads: int | None = None


_MANIFEST = TypeAdapter(StudyManifest)


class StudyFolder:
    """Where the cells of one study run; each is a run folder with ``settings.toml`` and the output of its run.

    Parameters
    ----------
    path : Path
        Need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def cell(self, name: str) -> Path:
        """The folder of a cell."""
        return self.path / "cells" / name

    def is_finished(self, name: str) -> bool:
        """Whether a cell has ended well."""
        return run_status(self.cell(name)) == "finished"

    def status(self, name: str) -> CellStatus:
        """What has become of a cell, in a word."""
        return self.state(name).status

    def state(self, name: str) -> CellState:
        """What has become of a cell, with the reason.

        A cell that was started, is not running and has left no end was killed: nothing but its start is on record.
        """
        folder = self.cell(name)
        if self.is_finished(name):
            return CellState("finished")
        if (holder := FolderLock.holder(folder, LOCK)) is not None:
            return CellState("running", holder)
        if (failure := _text_of(folder / FAILURE)) is not None:
            status, _, reason = failure.partition(": ")
            known = next((word for word in FAILURES if word == status), None)
            return CellState("failed", failure) if known is None else CellState(known, reason)
        if (started := _text_of(folder / STARTED)) is not None:
            return CellState("interrupted", f"{_who_started(started)} and left no end: killed, perhaps at a time limit")
        if run_status(folder) == "unfinished":  # started by an earlier version
            return CellState("interrupted", "its run left no end")
        return CellState("never run")

    def check(self, study: Study, plan: CellPlan) -> None:
        """Refuse a folder that belongs to another study, or holds finished cells of other settings or threads.

        Raises
        ------
        SettingError
            Naming the study, the threads, or the first cell that changed and the setting.
        """
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise SettingError("--out", str(self.path), "is a file, not a folder")
        if os.path.lexists(self.path / MANIFEST):
            there = read_manifest(self.path)
            if (there.name, there.reduced) != (study.name, study.reduced):
                held = there.name + ", reduced" * there.reduced
                raise SettingError("--out", str(self.path), f"holds another study ({held}); name another folder")
            finished = [cell.id for cell in there.cells if self.is_finished(cell.id)]
            if there.threads not in (None, study.threads) and finished:
                held = f"cell {finished[0]} ran with {there.threads} BLAS threads per rank; name another folder"
                raise SettingError("threads", study.threads, f"in {self.path} {held}")
        for cell in plan.cells:
            if self.is_finished(cell.id) and (change := self._change(cell)):
                raise SettingError(
                    "--out", str(self.path), f"cell {cell.id} ran with other settings: {change}; name another folder"
                )

    def begin(self, study: Study, plan: CellPlan) -> None:
        """Make the folder, and write what the study is.

        Raises
        ------
        EnvironmentProblem
            If it cannot be written.
        """
        cells = [{"id": cell.id, "ranks": cell.ranks, "values": cell.values} for cell in plan.cells]
        about = {"format": FORMAT, "name": study.name, "description": study.description, "reduced": study.reduced}
        about["threads"] = study.threads
        with self._named_if_unwritable():
            self.path.mkdir(parents=True, exist_ok=True)
            text = to_json({**about, "cells": cells}, indent=2) + "\n"
            # Jobs on several nodes may do this at once.
            replace_atomically(self.path / MANIFEST, lambda file: file.write(text.encode()), exclusive=False)

    def holding(self, name: str) -> FolderLock:
        """Hold a cell, so that no other process runs it; release what is returned.

        The operating system gives the lock up when the last process that has the file open ends, however it ends, so
        a lock that was left behind never stands in the way.

        Raises
        ------
        FolderInUse
            If another process holds it.
        EnvironmentProblem
            If the folder cannot be written.
        """
        with self._named_if_unwritable():
            self.cell(name).mkdir(parents=True, exist_ok=True)
            return FolderLock.take(self.cell(name), LOCK)

    def prepare(self, cell: Cell, *, resume: bool = False) -> Path:
        """Write the settings of a cell and a note of its start, after clearing away a run that did not end.

        Parameters
        ----------
        cell : Cell
        resume : bool
            Keep a run that has checkpoints, which is to go on from them.

        Returns
        -------
        Path
            The settings file.
        """
        folder = self.cell(cell.id)
        with self._named_if_unwritable():
            (folder / FAILURE).unlink(missing_ok=True)
            if not (resume and checkpoint_folders(folder / CHECKPOINTS)):
                for file in (folder / HISTORY, *folder.glob("*.npz")):
                    file.unlink(missing_ok=True)
                for left_over in (folder / CHECKPOINTS, folder / STALL):
                    if left_over.exists():
                        shutil.rmtree(left_over)
            (folder / SETTINGS).write_text(to_toml(cell.settings), encoding="utf-8")
            (folder / STARTED).write_text(to_json(_start_of(os.environ)) + "\n", encoding="utf-8")
        return folder / SETTINGS

    def fail(self, name: str, status: Failure, reason: str) -> None:
        """Note how and why a cell did not end well."""
        with self._named_if_unwritable():
            (self.cell(name) / FAILURE).write_text(f"{status}: {reason}\n", encoding="utf-8")

    def _change(self, cell: Cell) -> str:
        """The first setting of a finished cell that is another one now; empty if none is."""
        try:
            ran = load_settings(self.cell(cell.id) / SETTINGS)
        except SettingError as error:
            return str(error)
        before, now = by_dotted_name(ran.model_dump()), by_dotted_name(cell.settings.model_dump())
        changed = [name for name in now if before[name] != now[name]]
        return f"{changed[0]} was {before[changed[0]]!r}, is {now[changed[0]]!r}" if changed else ""

    @contextlib.contextmanager
    def _named_if_unwritable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise EnvironmentProblem(f"{error.filename or self.path} cannot be written: {error.strerror}") from error


def read_manifest(folder: Path) -> StudyManifest:
    """Read what a study's folder is about.

    Raises
    ------
    DataError
        If `folder` is not the folder of a study.
    """
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


def _text_of(path: Path) -> str | None:
    """A small file as one line; None without it."""
    try:
        return " ".join(read_bytes(path, JSON_BYTES).decode(errors="replace").split())
    except FileError as error:
        return None if error.is_missing else str(error)


def _start_of(environment: Mapping[str, str]) -> dict[str, Any]:
    """When, where and by which job a cell is started."""
    job = environment.get("SLURM_JOB_ID")
    if (array := environment.get("SLURM_ARRAY_JOB_ID")) and (task := environment.get("SLURM_ARRAY_TASK_ID")):
        job = f"{array}_{task}"
    when = datetime.now().isoformat(" ", "seconds")
    return {"time": when, "host": socket.gethostname(), "process": os.getpid(), "slurm_job": job}


def _who_started(text: str) -> str:
    try:
        start = parse_json(text)
        by = f"Slurm job {start['slurm_job']}" if start["slurm_job"] else f"process {start['process']}"
        return f"started {start['time']} by {by} on {start['host']}"
    except (ValueError, LookupError, TypeError):  # cut off by a full disk
        return "started"
