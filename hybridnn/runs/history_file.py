"""History of a run: ``history.jsonl``, one record of `hybridnn.training.records` per line, in order of time."""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from hybridnn.checkpoints.progress import Progress
from hybridnn.errors import DataError, one_line
from hybridnn.training.records import (
    EndRecord,
    EpochRecord,
    History,
    MeasuredStep,
    PredictedStep,
    Record,
    ResumeRecord,
    RunHeader,
    StepRecord,
)
from hybridnn.utils.files import LINE_BYTES, parse_json, read_lines, read_tail
from hybridnn.utils.settings_models import first_problem
from hybridnn.utils.text import shown_path, to_json

HISTORY = "history.jsonl"

RECORD_CLASSES: dict[str, type[Record]] = {
    record_class.kind: record_class
    for record_class in (RunHeader, ResumeRecord, PredictedStep, StepRecord, MeasuredStep, EpochRecord, EndRecord)
}


def to_line(record: Record) -> str:
    """The line of a record: a JSON object with its ``kind`` first, and null for numbers that are not finite."""
    return to_json({"kind": record.kind, **asdict(record)}) + "\n"  # type: ignore[call-overload]  # all are dataclasses


def run_status(folder: Path) -> Literal["absent", "unfinished", "finished"]:
    """Whether `folder` holds no run, one that is running or ended with an error, or one that completed.

    Raises
    ------
    DataError
        If there is a history that cannot be read.
    """
    if not os.path.lexists(folder / HISTORY):
        return "absent"
    *_, last, partial = [b"", *read_tail(folder / HISTORY).split(b"\n")]
    return "finished" if not partial and last.startswith(b'{"kind": "end"') else "unfinished"


def read_records(path: Path) -> tuple[list[Record], str]:
    """Read the records of a history file up to the first damaged line; an incomplete last line is left out.

    Returns
    -------
    records : list of Record
    damage : str
        Number of the damaged line and what is wrong with it; empty if all lines are valid.

    Raises
    ------
    DataError
        If there is no history, or it cannot be read.
    """
    records: list[Record] = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.endswith(b"\n") and len(line) < LINE_BYTES:
            break
        try:
            records.append(_parse(line))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            reason = first_problem(error) if isinstance(error, ValidationError) else one_line(str(error))
            return records, f"{shown_path(path)}, line {number}: not a record of a run: {reason}"
    return records, ""


def records_until(path: Path, progress: Progress) -> list[Record]:
    """The records of a history file up to `progress`: its steps, and the epochs that had ended.

    Records after a damaged line are left out.
    """
    return [record for record in read_records(path)[0] if _is_until(record, progress)]


def _is_until(record: Record, progress: Progress) -> bool:
    if isinstance(record, StepRecord):
        return record.step <= progress.step
    if isinstance(record, EpochRecord | MeasuredStep):
        return record.epoch < progress.epoch
    return not isinstance(record, EndRecord)


def read_history(folder: Path) -> History:
    """Read the steps and epochs of the run in `folder`.

    Raises
    ------
    DataError
        If there is no history, or a line of it is damaged.
    """
    history, damage = read_valid_history(folder)
    if damage:
        raise DataError(damage)
    return history


def read_valid_history(folder: Path) -> tuple[History, str]:
    """Read the steps and epochs of the run in `folder` up to the first damaged line; see `read_records`."""
    records, damage = read_records(folder / HISTORY)
    history = History(
        [record for record in records if isinstance(record, StepRecord)],
        [record for record in records if isinstance(record, EpochRecord)],
        [record for record in records if isinstance(record, MeasuredStep)],
    )
    return history, damage


def _parse(line: bytes) -> Record:
    values = parse_json(line)
    kind = values.pop("kind")
    if kind not in RECORD_CLASSES:
        raise ValueError(f"kind = {kind!r}")
    record: Record = _adapter(kind).validate_json(to_json(values))
    return record


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(RECORD_CLASSES[kind])
