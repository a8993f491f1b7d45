"""Result of a trial: its run folder, read without functions of hybridnn, equals that of an undisturbed run."""

import json
from dataclasses import dataclass, field
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHANGING = ("samples_per_second", "compute_seconds", "communication_seconds", "waiting_seconds", "bytes_sent")
"""Keys of a record whose values differ from run to run, or depend on the point of resumption."""

TOLERANCE = 1e-10
LOCK = ".lock"


@dataclass
class Outcome:
    """Result of a trial."""

    complaints: list[str] = field(default_factory=list)  # descriptions of all errors
    injected: bool = False  # whether the fault was injected before the run had ended
    named: bool = True  # whether every fault was reported
    ended: bool = False  # whether the training was completed
    resumed: bool = False  # whether the training resumed from a checkpoint
    hung: bool = False  # whether a job exceeded its time limit, or a process outlived its job
    lost: bool = True  # whether the results differ from those of an undisturbed run
    end_seconds: float = 0.0  # longest time from a fault until all processes had ended


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
    tolerance = 0.0 if same_bits else TOLERANCE
    if found.weights.keys() != expected.weights.keys():
        return [f"weights of {sorted(found.weights)}, not of {sorted(expected.weights)}"]
    messages = []
    for name, reference in expected.weights.items():
        limit = tolerance * np.abs(reference).max()
        try:
            np.testing.assert_allclose(found.weights[name], reference, rtol=0, atol=limit, strict=True, err_msg=name)
        except AssertionError as error:
            messages.append(str(error))
    places, expected_places = ([_place(record) for record in run.records] for run in (found, expected))
    if places != expected_places:
        return [*messages, f"history: {places}, not {expected_places}"]
    for record, correct in zip(found.records, expected.records, strict=True):
        for key in sorted(record.keys() | correct.keys()):
            value, right = record.get(key), correct.get(key)
            if isinstance(value, float) and isinstance(right, float) and isclose(value, right, rel_tol=tolerance):
                continue
            if value != right:
                messages.append(f"history: {key} of {' '.join(map(str, _place(record)))} is {value}, not {right}")
    return messages


def _place(record: dict[str, Any]) -> tuple[str, int]:
    return record["kind"], record[record["kind"]]
