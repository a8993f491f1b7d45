"""The folder of a study: which cells it has, what became of each, and who is running it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from hybridnn.errors import DataError, EnvironmentProblem, SettingError
from hybridnn.settings_errors import first_problem
from hybridnn.small_files import TOML_BYTES, FileError, read_json, read_text, shown_path
from hybridnn.study.cells import Cell, CellPlan
from hybridnn.study.study_file import Study
from hybridnn.training.history_file import HISTORY, run_status
from hybridnn.training.json_text import to_json
from hybridnn.training.run_folder import WEIGHTS
from hybridnn.training.settings import Settings
from hybridnn.training.settings_file import load_settings, to_toml
from hybridnn.whole_files import replace_whole

__all__ = ["Manifest", "ManifestCell", "StudyFolder", "read_manifest"]

MANIFEST = "study.json"
SETTINGS = "settings.toml"
FAILURE = "failure.txt"
LOCK = "lock"
FORMAT = 1

CellStatus = Literal["finished", "failed", "waiting"]


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
class Manifest:
    """What a study's folder is about: name, description, whether it is the reduced study, and its cells."""

    name: str
    description: str
    reduced: bool
    cells: tuple[ManifestCell, ...]


_MANIFEST = TypeAdapter(Manifest)


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

    def status(self, name: str) -> CellStatus:
        """Whether a cell is finished, failed when it was last tried, or waits for its first or next run."""
        if run_status(self.cell(name)) == "finished":
            return "finished"
        return "failed" if os.path.lexists(self.cell(name) / FAILURE) else "waiting"

    def check(self, study: Study, plan: CellPlan) -> None:
        """Refuse a folder that belongs to another study, or holds finished cells of other settings.

        Raises
        ------
        SettingError
            Naming the study, or the first cell that changed and the setting.
        """
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise SettingError("--out", str(self.path), "is a file, not a folder")
        if os.path.lexists(self.path / MANIFEST):
            there = read_manifest(self.path)
            if (there.name, there.reduced) != (study.name, study.reduced):
                held = there.name + ", reduced" * there.reduced
                raise SettingError("--out", str(self.path), f"holds another study ({held}); name another folder")
        for cell in plan.cells:
            if self.status(cell.id) == "finished" and (change := self._change(cell)):
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
        with self._named_if_unwritable():
            self.path.mkdir(parents=True, exist_ok=True)
            text = to_json({**about, "cells": cells}, indent=2) + "\n"
            # Jobs on several nodes may do this at once.
            replace_whole(self.path / MANIFEST, lambda file: file.write(text.encode()), alone=False)

    @contextlib.contextmanager
    def holding(self, name: str) -> Iterator[IO[str] | None]:
        """Hold a cell, so that no other process runs it; None where another one holds it already.

        The operating system gives the lock up when the last process that has the file open ends, however it ends, so
        a lock that nobody cleaned up never stands in the way. The file names the holder for people.

        Raises
        ------
        EnvironmentProblem
            If the folder cannot be written or locked.
        """
        with self._named_if_unwritable():
            self.cell(name).mkdir(parents=True, exist_ok=True)
            file = open(self.cell(name) / LOCK, "a+", encoding="utf-8")  # noqa: SIM115 - closed just below
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            except OSError as error:
                raise EnvironmentProblem(f"{file.name} cannot be locked: {error.strerror}") from error
            file.truncate(0)
            file.write(f"{socket.gethostname()} {os.getpid()}\n")
            file.flush()
            try:
                yield file
            finally:
                # A process of the launcher that outlives its run may still have the file open.
                fcntl.flock(file, fcntl.LOCK_UN)

    def holder(self, name: str) -> str:
        """Who held a cell last, for people."""
        host, _, process = read_text(self.cell(name) / LOCK, TOML_BYTES).strip().partition(" ")
        return f"process {process} on {host}"

    def prepare(self, cell: Cell) -> Path:
        """Write the settings of a cell and clear away a run of it that did not end; returns the settings file."""
        folder = self.cell(cell.id)
        with self._named_if_unwritable():
            for left_over in (HISTORY, WEIGHTS, FAILURE):
                (folder / left_over).unlink(missing_ok=True)
            (folder / SETTINGS).write_text(to_toml(cell.settings), encoding="utf-8")
        return folder / SETTINGS

    def fail(self, name: str, reason: str) -> None:
        """Note why a cell failed."""
        with self._named_if_unwritable():
            (self.cell(name) / FAILURE).write_text(reason + "\n", encoding="utf-8")

    def _change(self, cell: Cell) -> str:
        """The first setting of a finished cell that is another one now; empty if none is."""
        try:
            ran = load_settings(self.cell(cell.id) / SETTINGS)
        except SettingError as error:
            return str(error)
        before, now = _flat(ran), _flat(cell.settings)
        changed = [name for name in now if before[name] != now[name]]
        return f"{changed[0]} was {before[changed[0]]!r}, is {now[changed[0]]!r}" if changed else ""

    @contextlib.contextmanager
    def _named_if_unwritable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise EnvironmentProblem(f"{error.filename or self.path} cannot be written: {error.strerror}") from error


def read_manifest(folder: Path) -> Manifest:
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


def _flat(settings: Settings) -> dict[str, Any]:
    flat: dict[str, Any] = {}

    def walk(values: dict[str, Any], prefix: str) -> None:
        for key, value in values.items():
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")
            else:
                flat[prefix + key] = value

    walk(settings.model_dump(), "")
    return flat
