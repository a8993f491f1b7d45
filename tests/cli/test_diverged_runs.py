"""Runs that diverge: what they record, and how a study counts them."""

import json
from math import isfinite, isnan
from pathlib import Path

import pytest

from hybridnn.errors import DataError
from hybridnn.runs.run_files import read_run, run_status
from hybridnn.study.report import csv_text, point_rows
from hybridnn.study.results import read_results
from hybridnn.study.scaling import compare_points
from hybridnn.study.study_folder import StudyFolder
from reference.command_line import Run, output_of, records_of

DIGITS = ("--hidden", "16,16,16", "--epochs", "3", "--set", "output.log_every=1", "-q")
TOO_FAST = ("--lr", "1e15")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "options", [(), ("--in-process", "3", "--pipeline", "3", "--method", "pipedream")], ids=["exact", "asynchronous"]
)
def test_a_run_that_diverges_records_the_step_and_the_steps_before(run_hybridnn, tmp_path, options) -> None:
    code, text, err = run_hybridnn("train", *DIGITS, *TOO_FAST, *options, "--out", str(tmp_path / "run"))
    assert (code, text) == (1, "")
    (line,) = err.splitlines()
    assert all(part in line for part in ("Try a lower optimizer.lr", "layer", "clip_norm")), line
    assert not (tmp_path / "run" / "weights.npz").exists()
    (diverged,) = records_of(tmp_path / "run", "diverged")
    assert records_of(tmp_path / "run")[-1] == diverged
    assert line.startswith(f"Error: {diverged['reason']}; ")
    steps = records_of(tmp_path / "run", "step")
    assert [record["step"] for record in steps] == list(range(1, diverged["step"]))
    assert all(isfinite(record["train_loss"]) for record in steps)
    assert run_status(tmp_path / "run") == "diverged"
    run = read_run(tmp_path / "run")
    assert (run.diverged is not None, run.epochs, len(run.steps)) == (True, (), len(steps))
    assert isnan(run.seconds_per_epoch)
    assert run.steps_per_epoch == 15  # 1,437 samples in minibatches of 100


def test_a_diverged_cell_is_a_result_of_its_study(run_hybridnn: Run) -> None:
    Path("rates.toml").write_text(
        'name = "rates"\nbase = {model = {hidden = [16]}, training = {epochs = 2}}\naxes.optimizer.lr = [0.005, 1e15]\n'
    )
    command = ("study", "run", "rates.toml", "--out", "out", "--launcher", "env")
    text = output_of(run_hybridnn(*command))
    assert "2 of 2 cells are finished, 1 of them diverged" in text
    assert "0 of 2 cells to run" in run_hybridnn(*command)[1], "a diverged cell is not run again"
    states = [StudyFolder(Path("out")).state(f"optimizer.lr-{rate}") for rate in ("0.005", "1000000000000000.0")]
    assert [state.status for state in states] == ["finished", "diverged"]
    assert states[1].reason.startswith("the loss became")
    facts = json.loads(output_of(run_hybridnn("study", "report", "out", "--format", "json")))
    assert (len(facts["diverged"]), facts["unfinished"]) == (1, [])
    results = read_results(Path("out"))
    (good, bad) = sorted(results.points, key=lambda point: point.cells[0].diverged)
    assert (good.cells[0].diverged, bad.cells[0].diverged) == (False, True)
    assert good.cells[0].run.steps
    assert (good.metric is None, bad.metric is None, isnan(bad.seconds_per_epoch.value)) == (False, True, True)
    assert list(compare_points(results)) == [good.cells[0].id]
    assert len(point_rows(results)) == 2
    assert [line.split(",")[1] for line in csv_text(results).splitlines()] == ["outcome", "finished", "diverged"]
    assert "diverged: " in run_hybridnn("study", "report", "out")[1]
    # A study of diverged cells alone has a report, too.
    about = json.loads(Path("out/study.json").read_text())
    about["cells"] = [cell for cell in about["cells"] if cell["id"] == bad.cells[0].id]
    Path("out/study.json").write_text(json.dumps(about))
    text = output_of(run_hybridnn("study", "report", "out"))
    assert "nan" not in text.replace("became nan", "")


def test_a_diverged_run_resumes_with_a_lower_rate(run_hybridnn: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    rising = ("--set", "schedule.name=step", "--set", "schedule.factor=1e15", "--set", "schedule.milestones=[1]")
    options = (*DIGITS, "--set", "training.checkpoint_every=5", "--out", str(folder))
    assert run_hybridnn("train", *options, *rising)[0] == 1
    assert records_of(folder)[-1]["kind"] == "diverged"
    output_of(run_hybridnn("train", "--resume", str(folder), "--force", "-q", "--set", "schedule.factor=1.0"))
    assert records_of(folder)[-1]["kind"] == "end"
    assert records_of(folder, "diverged") == []
    assert read_run(folder).diverged is None


def test_a_damaged_record_of_a_divergence_is_named(tmp_path: Path) -> None:
    cell = tmp_path / "cells" / "a"
    cell.mkdir(parents=True)
    (cell / "history.jsonl").write_text('{"kind": "diverged", "step": \n')
    state = StudyFolder(tmp_path).state("a")
    assert (state.status, "damaged" in state.reason) == ("diverged", True)
    (cell / "config.toml").write_text("")
    with pytest.raises(DataError):
        read_run(cell)
