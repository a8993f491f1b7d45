"""``history.jsonl``: one record of a run per line, as it happened."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from hybridnn.checkpoints.manifest import Progress
from hybridnn.errors import DataError, one_line
from hybridnn.training.records import EpochRecord, History, StepRecord
from hybridnn.utils.files import LINE_BYTES, parse_json, read_lines, read_tail
from hybridnn.utils.settings_models import first_problem
from hybridnn.utils.text import shown_path

HISTORY = "history.jsonl"

Record = TypeVar("Record", StepRecord, EpochRecord)

RECORDS: Mapping[str, type[Any]] = MappingProxyType({"step": StepRecord, "epoch": EpochRecord})


def run_status(folder: Path) -> Literal["absent", "unfinished", "finished"]:
    """Whether `folder` holds no run, one that did not end well (or still runs), or one that did.

    Raises
    ------
    DataError
        If there is a history that cannot be read.
    """
    if not os.path.lexists(folder / HISTORY):
        return "absent"
    *_, last, cut = [b"", *read_tail(folder / HISTORY).split(b"\n")]
    return "finished" if not cut and last.startswith(b'{"kind": "end"') else "unfinished"


def records_until(path: Path, progress: Progress) -> list[str]:
    """The lines of a history up to a moment: steps up to it, and epochs that had ended; none after a damaged line."""
    return [line.text for line in history_lines(path) if not line.problem and _is_until(line.values, progress)]


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
    history, damage = read_valid_history(folder)
    if damage:
        raise DataError(damage)
    return history


def read_valid_history(folder: Path) -> tuple[History, str]:
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
    for line in history_lines(folder / HISTORY):
        damage = line.problem
        if isinstance(line.record, StepRecord):
            history.steps.append(line.record)
        elif isinstance(line.record, EpochRecord):
            history.epochs.append(line.record)
    return history, damage


@dataclass(frozen=True)
class HistoryLine:
    """One line, or at the end of what can be read the problem with it.

    Attributes
    ----------
    text : str
        With its end.
    values : dict
        Its ``kind`` is text.
    record : StepRecord, EpochRecord or None
        None for lines of other kinds.
    problem : str
        What is wrong with the line, with its place; then the other attributes are empty.
    """

    text: str
    values: dict[str, Any]
    record: StepRecord | EpochRecord | None = None
    problem: str = ""


def history_lines(path: Path) -> Iterator[HistoryLine]:
    """The lines up to the first that is damaged; one that was cut off when the run ended is left out.

    Raises
    ------
    DataError
        If there is no history, or it cannot be read.
    """
    for number, raw in enumerate(read_lines(path), 1):
        if not raw.endswith(b"\n") and len(raw) < LINE_BYTES:
            return
        try:
            yield _line_of(raw)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            reason = first_problem(error) if isinstance(error, ValidationError) else one_line(str(error))
            yield HistoryLine("", {}, problem=f"{shown_path(path)}, line {number}: not a record of a run: {reason}")
            return


def _line_of(raw: bytes) -> HistoryLine:
    values = parse_json(raw)
    kind = values["kind"]
    if not isinstance(kind, str):
        raise TypeError(f"kind = {kind!r}")
    if kind == "measured" and not isinstance(values["epoch"], int):
        raise TypeError(f"epoch = {values['epoch']!r}")
    record = _record(RECORDS[kind], values) if kind in RECORDS else None
    return HistoryLine(raw.decode(), values, record)


def _record(kind: type[Record], values: Mapping[str, Any]) -> Record:
    required = {field.name for field in fields(kind) if field.type == "float"}
    given: dict[str, Any] = {
        key: math.nan if value is None and key in required else value for key, value in values.items()
    }
    del given["kind"]
    _model_of(kind).model_validate(given)  # type: ignore[arg-type]  # a class is hashable
    return kind(**given)


@cache
def _model_of(kind: Any) -> type[BaseModel]:
    """A pydantic model with the keys of a record: all must be there that have no default, with the types as written."""
    hints = get_type_hints(kind)
    defaults = {field.name: ... if field.default is MISSING else field.default for field in fields(kind)}
    keys: dict[str, Any] = {name: (hints[name], default) for name, default in defaults.items()}
    return create_model(kind.__name__, __config__=ConfigDict(extra="forbid", strict=True), **keys)
