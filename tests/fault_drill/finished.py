"""What a run left in its folder, read without the program's own functions, and compared with an undisturbed run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Finished", "checkpoints", "differences", "read_finished"]

CHANGING = ("samples_per_second", "compute_seconds", "communication_seconds", "waiting_seconds", "bytes_sent")
"""Of a record: what is never twice the same, or depends on where the run was taken up."""

TOLERANCE = 1e-10
LOCK = ".lock"


@dataclass(frozen=True)
class Finished:
    """A run that has ended.

    Attributes
    ----------
    weights : dict
        Global arrays, by name.
    records : list of dict
        Its steps and epochs, in the order of the history.
    resumed : bool
        Whether it went on from a checkpoint.
    """

    weights: dict[str, NDArray[Any]]
    records: list[dict[str, Any]]
    resumed: bool = False


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    return sorted(run.glob("checkpoints/step-*"), reverse=True)


def read_finished(run: Path) -> Finished:
    """What a run that has ended left behind.

    Raises
    ------
    ValueError, OSError
        If it has not ended, or left what it should not have left.
    """
    text = (run / "history.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    if lines[-1]["kind"] != "end":
        raise ValueError(f"the last line of the history is of kind {lines[-1]['kind']!r}")
    hidden = (path.name for pattern in (".*", "checkpoints/.*") for path in run.glob(pattern))
    leftovers = [name for name in hidden if name != LOCK]  # a dead process holds no lock
    if leftovers:
        raise ValueError(f"left over: {', '.join(leftovers)}")
    with np.load(run / "weights.npz") as arrays:
        weights = {name: arrays[name] for name in arrays.files}
    records = [line for line in lines if line["kind"] in ("step", "epoch")]
    kept = [{key: one[key] for key in one if key not in CHANGING} for one in records]
    return Finished(weights, kept, any(line["kind"] == "resumed" for line in lines))


def differences(found: Finished, expected: Finished, *, same_bits: bool) -> list[str]:
    """In what a run differs from an undisturbed one, a line each.

    Parameters
    ----------
    found, expected : Finished
    same_bits : bool
        Whether it ran on the same layout all the time, so that every bit must be the same; otherwise numbers may
        differ by 1e-10 of the largest of their array, or of themselves.
    """
    said = []
    if found.weights.keys() != expected.weights.keys():
        said.append(f"weights of {sorted(found.weights)}, not of {sorted(expected.weights)}")
    for name in found.weights.keys() & expected.weights.keys():
        one, other = found.weights[name], expected.weights[name]
        if one.dtype != other.dtype or one.shape != other.shape:
            said.append(f"{name}: {one.dtype}{one.shape}, not {other.dtype}{other.shape}")
        elif not (np.array_equal(one, other) if same_bits else _close(one, other)):
            said.append(f"{name}: differs by up to {np.abs(one - other).max():.3g}")
    places, expected_places = ([_place(one) for one in run.records] for run in (found, expected))
    if places != expected_places:
        missing = [f"{kind} {number}" for kind, number in expected_places if (kind, number) not in places]
        twice = sorted({f"{kind} {number}" for kind, number in places if places.count((kind, number)) > 1})
        return [*said, f"history: missing {missing}, twice {twice}, {len(places)} records of {len(expected_places)}"]
    for record, right in zip(found.records, expected.records, strict=True):
        for key in sorted(record.keys() | right.keys()):
            value, due = record.get(key), right.get(key)
            both = [number for number in (value, due) if isinstance(number, float)]
            near = not same_bits and len(both) == 2 and isclose(*both, rel_tol=TOLERANCE)
            if value != due and not near:
                said.append(f"history: {key} of {record['kind']} {_place(record)[1]} is {value}, not {due}")
    return said


def _close(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return bool(np.abs(one - other).max() <= TOLERANCE * np.abs(other).max())


def _place(record: dict[str, Any]) -> tuple[str, int]:
    kind = record["kind"]
    return kind, record[kind]
