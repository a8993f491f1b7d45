"""``history.jsonl``: one record of a run per line, as it happened."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from hybridnn.errors import DataError
from hybridnn.training.checkpoints.manifest import Progress
from hybridnn.training.history import EpochRecord, History, StepRecord

__all__ = ["HISTORY", "lines_until", "read_history", "read_sound_history", "run_status"]

HISTORY = "history.jsonl"

Record = TypeVar("Record", StepRecord, EpochRecord)

RECORDS: Mapping[str, type[Any]] = MappingProxyType({"step": StepRecord, "epoch": EpochRecord})


def run_status(folder: Path) -> Literal["absent", "unfinished", "finished"]:
    """Whether `folder` holds no run, one that did not end well (or still runs), or one that did."""
    try:
        lines = (folder / HISTORY).read_bytes().splitlines()
    except FileNotFoundError:
        return "absent"
    return "finished" if lines and lines[-1].startswith(b'{"kind": "end"') else "unfinished"


def lines_until(path: Path, progress: Progress) -> list[str]:
    """The lines of a history up to a moment: steps up to it, and epochs that had ended; none after a damaged line."""
    return [line.text for line in _lines(path) if not line.problem and _is_until(line.values, progress)]


def _is_until(values: dict[str, Any], progress: Progress) -> bool:
    if values["kind"] == "step":
        return bool(values["step"] <= progress.step)
    if values["kind"] in ("epoch", "measured"):
        return bool(values["epoch"] < progress.epoch)
    return bool(values["kind"] != "end")


def read_history(folder: Path) -> History:
    """Read the records of a run; what was null comes back as NaN where a number is required.

    Raises
    ------
    DataError
        If there is no history, or a line of it is not a record. A last line that was cut off is left out.
    """
    history, damage = read_sound_history(folder)
    if damage:
        raise DataError(damage)
    return history


def read_sound_history(folder: Path) -> tuple[History, str]:
    """Read the records of a run up to a damaged line.

    Returns
    -------
    history : History
    damage : str
        Which line is damaged, and how; empty where none is.

    Raises
    ------
    DataError
        If there is no history.
    """
    history, damage = History(), ""
    for line in _lines(folder / HISTORY):
        damage = line.problem
        if line.values.get("kind") == "step":
            history.steps.append(line.record(StepRecord))
        elif line.values.get("kind") == "epoch":
            history.epochs.append(line.record(EpochRecord))
    return history, damage


@dataclass(frozen=True)
class _Line:
    """One line, or at the end of what can be read the problem with it."""

    text: str
    values: dict[str, Any]
    problem: str = ""

    def record(self, kind: type[Record]) -> Record:
        required = {field.name for field in fields(kind) if field.type == "float"}
        known = {key: value for key, value in self.values.items() if key != "kind"}
        complete: dict[str, Any] = {
            key: math.nan if value is None and key in required else value for key, value in known.items()
        }
        return kind(**complete)


def _lines(path: Path) -> Iterator[_Line]:
    """The lines up to the first that is not a record; one that was cut off when the run ended is left out."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    for number, raw in enumerate(content.splitlines(keepends=True), 1):
        if not raw.endswith(b"\n"):
            return
        try:
            line = _Line(raw.decode(), json.loads(raw))
            if line.values["kind"] in RECORDS:
                line.record(RECORDS[line.values["kind"]])
            elif line.values["kind"] == "measured":
                line.values["epoch"]
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            yield _Line("", {}, f"{path}, line {number}: not a record of a run: {error}")
            return
        yield line
