"""What the ranks that are left add to the history of a run."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hybridnn.checkpoints.manifest import Progress
from hybridnn.runs.recovery import complete_history
from hybridnn.training.records import EpochRecord, History, MeasuredStep, StepRecord

LOSSES = {2: 0.5, 4: 0.4, 6: 0.3, 8: 0.2}


def held() -> History:
    """Return what every rank has after two epochs of four steps, each second one logged."""
    return History(
        [StepRecord(step, (step + 3) // 4, loss, 0.1, 9.0, 1.0, 1.0, 7) for step, loss in LOSSES.items()],
        [EpochRecord(4 * epoch, epoch, 0.3, 0.1, 0.6, None, 0.7, 9.0, 1.0, 1.0, 7) for epoch in (1, 2)],
        [MeasuredStep(epoch, 0.1, {}, 0.0, 0.0) for epoch in (1, 2)],
    )


def line(kind: str, record: StepRecord | MeasuredStep | EpochRecord) -> str:
    return json.dumps({"kind": kind, **asdict(record)})


def written() -> list[str]:
    """Return the lines of all of it, of which one has a number of its own."""
    history = held()
    history.steps[0] = replace(history.steps[0], train_loss=0.123)
    steps, epochs = (
        [line(kind, one) for one in records] for kind, records in (("step", history.steps), ("epoch", history.epochs))
    )
    measured = [line("measured", one) for one in history.measured]
    return ['{"kind": "header", "ranks": 3}', *steps[:2], measured[0], epochs[0], *steps[2:], measured[1], epochs[1]]


WRITTEN = written()


@pytest.mark.parametrize("torn", ["", '{"kind": "st'])
@pytest.mark.parametrize("lines", range(1, len(WRITTEN) + 1))
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
def test_what_is_missing_is_added_in_order(
    tmp_path: Path, progress: Progress, complete: int, lines: int, torn: str
) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text("".join(line + "\n" for line in WRITTEN[:lines]) + torn)
    complete_history(path, held(), progress)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = [(line["kind"], line.get("step"), line.get("epoch")) for line in found]
    expected = [json.loads(line) for line in WRITTEN[: max(complete, lines)]]
    assert kinds == [(line["kind"], line.get("step"), line.get("epoch")) for line in expected]
    assert found[:lines] == expected[:lines]  # what was written stays as it was
    for line in found[lines:]:
        if line["kind"] == "step":
            assert line["train_loss"] == LOSSES[line["step"]]
    assert [entry.name for entry in tmp_path.iterdir()] == ["history.jsonl"]
