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
from hybridnn.training.records import EpochRecord, EvaluationRecord, History, MeasuredStep, Record, StepRecord

LOSSES = {2: 0.5, 4: 0.4, 6: 0.3, 8: 0.2}
WRITTEN_LOSS = 0.123
"""Loss of the first step in the file, unlike the one in memory: a written record is kept."""


def in_memory() -> History:
    """Return the records of two epochs of four steps each, every second one logged."""
    return History(
        [StepRecord(step, (step + 3) // 4, loss, 0.1, 9.0, 1.0, 1.0, 7) for step, loss in LOSSES.items()],
        [EpochRecord(4 * epoch, epoch, 0.3, 0.1, 0.6, None, 0.7, 9.0, 1.0, 1.0, 7) for epoch in (1, 2)],
        [MeasuredStep(epoch, 0.1, {}, 0.0, 0.0) for epoch in (1, 2)],
    )


def complete_file() -> list[str]:
    history = in_memory()
    steps, measured, epochs = history.steps, history.measured, history.epochs
    first_step = replace(steps[0], train_loss=WRITTEN_LOSS)
    first_epoch: list[Record] = [ResumeRecord(0, 1, "step-00000000"), first_step, steps[1], measured[0], epochs[0]]
    return [to_line(record) for record in [*first_epoch, *steps[2:], measured[1], epochs[1]]]


COMPLETE = complete_file()


@pytest.mark.parametrize("partial_line", ["", '{"kind": "st'])
@pytest.mark.parametrize("lines", range(1, len(COMPLETE) + 1))
@pytest.mark.parametrize(
    ("progress", "complete"),
    [
        (Progress(step=1, epoch=1, minibatches=1), 1),
        (Progress(step=3, epoch=1, minibatches=3), 2),
        (Progress(step=4, epoch=2), 5),
        (Progress(step=6, epoch=2, minibatches=2), 6),
        (Progress(step=7, epoch=2, minibatches=3), 6),
        (Progress(step=8, epoch=3), 9),
    ],
)
def test_missing_records_are_added_in_order(
    tmp_path: Path, progress: Progress, complete: int, lines: int, partial_line: str
) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text("".join(COMPLETE[:lines]) + partial_line)
    complete_history(tmp_path, in_memory(), progress)
    found = path.read_text().splitlines(keepends=True)
    expected = COMPLETE[: max(complete, lines)]
    if lines == 1 and complete > 1:
        first_step = json.loads(expected[1]) | {"train_loss": LOSSES[2]}
        expected[1] = json.dumps(first_step) + "\n"
    assert found == expected
    assert [entry.name for entry in tmp_path.iterdir()] == ["history.jsonl"]


def test_evaluations_between_steps_are_kept_up_to_the_progress(tmp_path: Path) -> None:
    history = in_memory()
    history.evaluations = [EvaluationRecord(step, (step + 3) // 4, 0.5, None, 0.1) for step in (3, 6, 7)]
    (tmp_path / "history.jsonl").write_text(to_line(history.evaluations[0]))
    complete_history(tmp_path, history, Progress(step=6, epoch=2, minibatches=2))
    kept = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in kept if line["kind"] == "evaluation"] == [3, 6]
