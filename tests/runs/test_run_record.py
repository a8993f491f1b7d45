"""Runs read from their folders: figures of the records, and refused records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridnn.errors import DataError
from hybridnn.runs.run_files import read_run
from reference.finished_runs import prediction_line, write_run

MEASURED = {
    "kind": "measured",
    "epoch": 1,
    "seconds_per_step": 0.2,
    "instructions": {"forward": 0.05},
    "communication": 0.1,
    "waiting": 0.02,
}


def test_everything_in_the_folder_is_read(tmp_path: Path) -> None:
    write_run(tmp_path, ranks=4, grid=(2, 1, 2), lines=[prediction_line(0.25), MEASURED])
    run = read_run(tmp_path)
    layout = run.header.layout
    assert (layout.ranks, len(layout.stages), layout.method, layout.layers) == (4, 2, "1f1b", (1, 1))
    assert run.header.sizes == (64, 64, 64, 10)
    assert run.settings.parallel.model == 2
    assert len(run.epochs) == 4
    assert run.prediction is not None
    assert (run.prediction.machine, run.prediction.seconds_per_epoch) == ("laptop", 2.5)
    assert [(step.epoch, step.waiting) for step in run.measured] == [(1, 0.02)]


def test_time_of_an_epoch_is_the_median_without_the_first(tmp_path: Path) -> None:
    assert read_run(write_run(tmp_path / "a", seconds=[9, 2, 1, 3])).seconds_per_epoch == 2
    assert read_run(write_run(tmp_path / "b", seconds=[9])).seconds_per_epoch == 9
    run = read_run(write_run(tmp_path / "c", seconds=[9, 2]))
    assert (run.steps_per_epoch, run.prediction, run.measured) == (10, None, ())


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(DataError, match="is not a run folder"):
            read_run(path)
    (tmp_path / "history.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="did not end well"):
        read_run(tmp_path)
    with pytest.raises(DataError, match="did not end well, or is still running"):
        read_run(write_run(tmp_path / "unfinished", ended=False))
    with pytest.raises(DataError, match="has no epoch"):
        read_run(write_run(tmp_path / "b", seconds=[]))
    (write_run(tmp_path / "c") / "config.toml").unlink()
    with pytest.raises(DataError, match=r"config\.toml': cannot be read"):
        read_run(tmp_path / "c")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"kind": "prediction", "machine": "x"}, "seconds_per_step: "),
        (prediction_line(0.25, seconds_per_epoch="abc"), "seconds_per_epoch: "),
        (prediction_line(0.25, parts=None), "parts: "),
        ({**MEASURED, "instructions": {"forward": "x"}}, r"instructions\.forward: "),
        ({**MEASURED, "seconds_per_step": 0}, "measured steps without time"),
    ],
)
def test_values_that_no_run_has_are_refused(tmp_path: Path, line: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"history\.jsonl.*: not .*{message}") as error:
        read_run(write_run(tmp_path, lines=[line]))
    assert "\n" not in str(error.value)


def change_records(folder: Path, kind: str, key: str, value: object) -> None:
    """Replace a value in all lines of a kind."""
    history = folder / "history.jsonl"
    records = [json.loads(line) for line in history.read_text().splitlines()]
    changed = [{**record, key: value} if record["kind"] == kind else record for record in records]
    history.write_text("".join(json.dumps(record) + "\n" for record in changed))


@pytest.mark.parametrize(("kind", "key"), [("epoch", "epoch"), ("epoch", "step"), ("header", "ranks")])
def test_counts_that_no_run_has_are_refused(tmp_path: Path, kind: str, key: str) -> None:
    for value in (0, None, "abc"):
        change_records(write_run(tmp_path), kind, key, value)
        with pytest.raises(DataError, match=r"history\.jsonl") as error:
            read_run(tmp_path)
        assert "\n" not in str(error.value)


def test_run_without_finite_losses_is_read(tmp_path: Path) -> None:
    change_records(write_run(tmp_path), "epoch", "train_loss", None)
    assert read_run(tmp_path).seconds_per_epoch == 2
