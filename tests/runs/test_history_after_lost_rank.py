"""History of a run after a lost rank: completed from the records that every remaining rank has in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hybridnn.checkpoints.progress import Progress
from hybridnn.runs.records import ResumeRecord
from hybridnn.runs.recovery import complete_history
from hybridnn.runs.run_files import to_line
from hybridnn.training.records import EpochRecord, EvaluationRecord, History, MeasuredStep, StepRecord


def in_memory() -> History:
    """Return the records of two epochs of four steps each, every second one logged, with evaluations."""
    return History(
        [StepRecord(step, (step + 3) // 4, 1 / step, 0.1, 9.0, 1.0, 1.0, 7) for step in (2, 4, 6, 8)],
        [EpochRecord(4 * epoch, epoch, 0.3, 0.1, 0.6, None, 0.7, 9.0, 1.0, 1.0, 7) for epoch in (1, 2)],
        [MeasuredStep(epoch, 0.1, {}, 0.0, 0.0) for epoch in (1, 2)],
        evaluations=[EvaluationRecord(5, 2, 0.5, None, 0.1)],
    )


def complete_file() -> list[str]:
    """Lines of the complete history; the loss of the first step is unlike the one in memory."""
    history = in_memory()
    steps, measured, epochs = history.steps, history.measured, history.epochs
    first = [ResumeRecord(0, 1, "step-00000000"), replace(steps[0], train_loss=0.123), steps[1], measured[0], epochs[0]]
    second = [history.evaluations[0], *steps[2:], measured[1], epochs[1]]
    return [to_line(record) for record in (*first, *second)]  # type: ignore[arg-type]  # records


@pytest.mark.parametrize(
    ("progress", "complete"),
    [
        (Progress(step=1, epoch=1, minibatches=1), 1),
        (Progress(step=3, epoch=1, minibatches=3), 2),
        (Progress(step=4, epoch=2), 5),
        (Progress(step=7, epoch=2, minibatches=3), 7),
        (Progress(step=8, epoch=3), 10),
    ],
)
def test_missing_records_are_added_in_order_and_written_ones_kept(
    tmp_path: Path, progress: Progress, complete: int
) -> None:
    path, lines = tmp_path / "history.jsonl", complete_file()
    for written in range(1, len(lines) + 1):
        path.write_text("".join(lines[:written]) + '{"kind": "st')
        complete_history(tmp_path, in_memory(), progress)
        found, expected = path.read_text().splitlines(keepends=True), lines[: max(complete, written)]
        if written == 1 < complete:
            expected[1] = json.dumps(json.loads(expected[1]) | {"train_loss": 0.5}) + "\n"
        assert found == expected
    assert [entry.name for entry in tmp_path.iterdir()] == ["history.jsonl"]
