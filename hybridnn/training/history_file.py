"""``history.jsonl``: one record of a run per line, as it happened."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from hybridnn.errors import DataError
from hybridnn.training.checkpoints.manifest import Progress
from hybridnn.training.history import EpochRecord, History, StepRecord

__all__ = ["HISTORY", "lines_until", "read_history", "run_status"]

HISTORY = "history.jsonl"

Record = TypeVar("Record", StepRecord, EpochRecord)


def run_status(folder: Path) -> Literal["absent", "unfinished", "finished"]:
    """Whether `folder` holds no run, one that did not end well (or still runs), or one that did."""
    try:
        lines = (folder / HISTORY).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return "absent"
    return "finished" if lines and lines[-1].startswith('{"kind": "end"') else "unfinished"


def lines_until(path: Path, progress: Progress) -> list[str]:
    """The lines of a history up to a moment: steps up to it, and epochs that had ended.

    Raises
    ------
    DataError
        If a line of it is not a record.
    """
    kept = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), 1):
        if not line.endswith("\n"):  # cut off when the run ended
            break
        try:
            if _is_until(json.loads(line), progress):
                kept.append(line)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise DataError(f"{path}, line {number}: not a record of a run: {error}") from error
    return kept


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
