"""The folder of a run: resolved settings, history, learning curve, weights.

A run that did not end well never looks finished: ``weights.npz`` appears whole and only at the end, and only a run that
ended well has a last line of kind ``"end"`` in ``history.jsonl``.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import DataError, EnvironmentProblem, SettingError
from hybridnn.training.history import (
    EpochRecord,
    History,
    MeasuredStep,
    PredictedStep,
    RunHeader,
    RunSummary,
    StepRecord,
)
from hybridnn.training.json_text import to_json
from hybridnn.training.settings import Settings
from hybridnn.training.settings_file import to_toml

__all__ = ["RunFolder", "read_history", "run_status"]

CONFIG = "config.toml"
HISTORY = "history.jsonl"
LEARNING_CURVE = "learning_curve.png"
TRACE = "trace.json"
STANDARDIZATION = "standardization.npz"
WEIGHTS = "weights.npz"

KINDS = {StepRecord: "step", EpochRecord: "epoch", PredictedStep: "prediction", MeasuredStep: "measured"}

Record = TypeVar("Record", StepRecord, EpochRecord)


class RunFolder:
    """An open run folder; only one rank of a job has it.

    Attributes
    ----------
    path : Path
        The folder.
    """

    def __init__(self, path: Path, history: io.TextIOBase) -> None:
        self.path = path
        self._history = history

    @classmethod
    def create(cls, path: Path | str | None, name: str) -> RunFolder:
        """Make the folder, or take over one whose run did not end, and start its history.

        Parameters
        ----------
        path : Path, str or None
            None makes a new folder ``runs/NAME-YYYYmmdd-HHMMSS``.
        name : str
            What the run is called where `path` is None.

        Raises
        ------
        SettingError
            If the folder already holds a finished run or weights.
        EnvironmentProblem
            If the folder cannot be made or written.
        """
        folder = _new_folder(name) if path is None else Path(path)
        with _named_if_unwritable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if run_status(folder) == "finished":
                raise SettingError("output.folder", str(folder), "already holds a finished run; name another folder")
            if (folder / WEIGHTS).exists():
                raise SettingError("output.folder", str(folder), f"already holds a {WEIGHTS}; name another folder")
            (folder / LEARNING_CURVE).unlink(missing_ok=True)
            # Line buffering: every record is in the file as soon as it is written, whatever happens to the run.
            return cls(folder, open(folder / HISTORY, "w", encoding="utf-8", buffering=1))

    @property
    def learning_curve_path(self) -> Path:
        """Where the plot of the learning curve belongs."""
        return self.path / LEARNING_CURVE

    @property
    def trace_path(self) -> Path:
        """Where the trace belongs."""
        return self.path / TRACE

    def write_config(self, settings: Settings) -> None:
        """Write the resolved settings as ``config.toml``."""
        with _named_if_unwritable(self.path):
            (self.path / CONFIG).write_text(to_toml(settings), encoding="utf-8")

    def begin(self, header: RunHeader) -> None:
        """Add the first line: what the run is about to do."""
        self._append("header", asdict(header))

    def append(self, record: StepRecord | EpochRecord | PredictedStep | MeasuredStep) -> None:
        """Add one line to the history."""
        self._append(KINDS[type(record)], asdict(record))

    def end(self, summary: RunSummary) -> None:
        """Add the last line, which says that the run ended well; call it after everything else is written."""
        values = {"steps": summary.steps, "seconds": summary.seconds}
        self._append("end", {**values, "metric_name": summary.metric_name, "metric": summary.metric})

    def write_weights(self, arrays: Mapping[str, NDArray[Any]]) -> Path:
        """Write ``weights.npz`` whole or not at all.

        Parameters
        ----------
        arrays : mapping
            ``layers.0.weight`` (outputs, inputs), ``layers.0.bias`` (outputs,), and so on.
        """
        return self._write_arrays(WEIGHTS, arrays)

    def write_standardization(self, arrays: Mapping[str, NDArray[Any]]) -> Path:
        """Write the shift and scale of the data as ``standardization.npz``, whole or not at all."""
        return self._write_arrays(STANDARDIZATION, arrays)

    def close(self) -> None:
        """Close the history."""
        self._history.close()

    def __enter__(self) -> RunFolder:
        """Return the folder itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Close the history."""
        self.close()

    def _append(self, kind: str, values: Mapping[str, Any]) -> None:
        with _named_if_unwritable(self.path):
            self._history.write(to_json({"kind": kind, **values}) + "\n")

    def _write_arrays(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> Path:
        final, partial = self.path / name, self.path / f".{name}.partial"
        with _named_if_unwritable(self.path):
            try:
                with open(partial, "wb") as file:
                    np.savez(file, allow_pickle=False, **arrays)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(partial, final)
            finally:
                partial.unlink(missing_ok=True)
        return final


def run_status(folder: Path) -> Literal["absent", "unfinished", "finished"]:
    """Whether `folder` holds no run, one that did not end well (or still runs), or one that did."""
    try:
        lines = (folder / HISTORY).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return "absent"
    return "finished" if lines and lines[-1].startswith('{"kind": "end"') else "unfinished"


def read_history(folder: Path) -> History:
    """Read the records of a run; what was null comes back as NaN where a number is required.

    Raises
    ------
    DataError
        If there is no history, or a line of it is not a record. A last line that was cut off is left out.
    """
    path = folder / HISTORY
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    history = History()
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        try:
            values = json.loads(line)
            kind = values.pop("kind")
            if kind == "step":
                history.steps.append(_record(StepRecord, values))
            elif kind == "epoch":
                history.epochs.append(_record(EpochRecord, values))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise DataError(f"{path}, line {number}: not a record of a run: {error}") from error
    return history


def _record(kind: type[Record], values: dict[str, Any]) -> Record:
    required = {field.name for field in fields(kind) if field.type == "float"}
    complete: dict[str, Any] = {
        key: math.nan if value is None and key in required else value for key, value in values.items()
    }
    return kind(**complete)


def _new_folder(name: str) -> Path:
    stem = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    number = 1
    while True:
        folder = stem if number == 1 else stem.with_name(f"{stem.name}-{number}")
        with _named_if_unwritable(folder):
            try:
                folder.mkdir(parents=True)
            except FileExistsError:  # another run started in the same second
                number += 1
            else:
                return folder


@contextlib.contextmanager
def _named_if_unwritable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentProblem(f"output.folder = {str(folder)!r} cannot be written: {error.strerror}") from error
