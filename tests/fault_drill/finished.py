"""Results in a run folder, read without functions of hybridnn, and compared with those of an undisturbed run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fault_drill.outcomes import Outcome

__all__ = ["Finished", "checkpoints", "compare", "differences", "read_finished"]

CHANGING = ("samples_per_second", "compute_seconds", "communication_seconds", "waiting_seconds", "bytes_sent")
"""Keys of a record whose values differ from run to run, or depend on the point of resumption."""

TOLERANCE = 1e-10
LOCK = ".lock"


@dataclass(frozen=True)
class Finished:
    """Results of a run that has ended."""

    weights: dict[str, NDArray[Any]]  # global arrays, by name
    records: list[dict[str, Any]]  # step and epoch records, in the order of the history
    resumed: bool = False  # whether it resumed from a checkpoint


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    return sorted(run.glob("checkpoints/step-*"), reverse=True)


def read_finished(run: Path) -> Finished:
    """Read the results of a run; `ValueError` or `OSError` if it has not ended, or has left temporary files."""
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
    kept = [{key: record[key] for key in record if key not in CHANGING} for record in records]
    return Finished(weights, kept, any(line["kind"] == "resumed" for line in lines))


def compare(run: Path, expected: Finished, outcome: Outcome, *, same_bits: bool) -> None:
    """Note in an outcome how the results of a run differ from those of an undisturbed one."""
    try:
        found = read_finished(run)
    except (OSError, ValueError) as error:
        outcome.complaints.append(f"the run folder is not that of a finished run: {error}")
        return
    lost = differences(found, expected, same_bits=same_bits)
    outcome.resumed, outcome.lost = found.resumed, bool(lost)
    outcome.complaints += lost


def differences(found: Finished, expected: Finished, *, same_bits: bool) -> list[str]:
    """Differences between a run and an undisturbed one, one line each.

    Where they need not be of the same bits, elements may differ by 1e-10 relative to the largest of their array, and
    figures by 1e-10 relative.
    """
    messages = []
    if found.weights.keys() != expected.weights.keys():
        messages.append(f"weights of {sorted(found.weights)}, not of {sorted(expected.weights)}")
    for name in found.weights.keys() & expected.weights.keys():
        array, reference = found.weights[name], expected.weights[name]
        if array.dtype != reference.dtype or array.shape != reference.shape:
            messages.append(f"{name}: {array.dtype}{array.shape}, not {reference.dtype}{reference.shape}")
        elif not (np.array_equal(array, reference) if same_bits else _close(array, reference)):
            messages.append(f"{name}: differs by up to {np.abs(array - reference).max():.3g}")
    places, expected_places = ([_place(record) for record in run.records] for run in (found, expected))
    if places != expected_places:
        missing = [f"{kind} {number}" for kind, number in expected_places if (kind, number) not in places]
        twice = sorted({f"{kind} {number}" for kind, number in places if places.count((kind, number)) > 1})
        return [
            *messages,
            f"history: missing {missing}, twice {twice}, {len(places)} records of {len(expected_places)}",
        ]
    for record, correct in zip(found.records, expected.records, strict=True):
        for key in sorted(record.keys() | correct.keys()):
            value, expected_value = record.get(key), correct.get(key)
            both = [number for number in (value, expected_value) if isinstance(number, float)]
            near = not same_bits and len(both) == 2 and isclose(*both, rel_tol=TOLERANCE)
            if value != expected_value and not near:
                messages.append(
                    f"history: {key} of {record['kind']} {_place(record)[1]} is {value}, not {expected_value}"
                )
    return messages


def _close(array: NDArray[Any], reference: NDArray[Any]) -> bool:
    return bool(np.abs(array - reference).max() <= TOLERANCE * np.abs(reference).max())


def _place(record: dict[str, Any]) -> tuple[str, int]:
    kind = record["kind"]
    return kind, record[kind]
