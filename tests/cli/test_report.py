"""`hybridnn report`: one run, tables of several runs, the JSON with the same figures, and wrong input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from reference.command_line import Run, error_line
from reference.finished_runs import load_line, prediction_line, write_run

MEASURED = {
    "kind": "measured",
    "epoch": 1,
    "seconds_per_step": 0.2,
    "instructions": {"forward": 0.04},
    "communication": 0.09,
    "waiting": 0.03,
}


def _rows(text: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


def test_one_run_shows_measured_beside_predicted(run_hybridnn: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", ranks=2, seconds=[2.0], lines=[prediction_line(0.25), MEASURED])
    code, out, _ = run_hybridnn("report", "run")
    assert code == 0
    rows = _rows(out)
    assert ["whole step", "200", "250", "+25%"] in rows
    assert ["forward", "40", "50", "+25%"] in rows
    assert ["update", "-", "25", "-"] in rows
    assert ["bytes per step", "500", "4,000"] in rows
    assert "compute 20%, overhead 20%, communicate 45%, bubble 0%, wait 15%" in out
    assert "limited by: communicate, 45% of the step" in out
    assert "predicted for laptop, ms per step: computing 150, communication 50" in out
    assert "2 x 1 (batch x model)" in out
    write_run(tmp_path / "plain", seconds=[2.0])
    code, out, _ = run_hybridnn("report", "plain")
    assert (code, "predicted for" in out) == (0, False)
    assert ["whole step", "200", "-", "-"] in _rows(out)


def test_several_runs_make_a_scaling_table(run_hybridnn: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "four", ranks=4, grid=(1, 2, 2), seconds=[1.0], lines=[prediction_line(0.05)])
    write_run(tmp_path / "one", seconds=[3.0], lines=[prediction_line(0.2)], communication_share=0.0)
    write_run(tmp_path / "two", ranks=2, seconds=[2.0])
    code, out, _ = run_hybridnn("report", "four", "one", "two")
    assert code == 0
    assert "64-64-64-10 on digits (1,000 training samples); speed-up against 1 rank, one\n" in out
    rows = _rows(out)
    assert ["1", "1x1", "-", "100", "3", "1.00", "100%", "1.00", "-33%", "0%", "-", "-"] in rows
    assert ["2", "2x1", "-", "100", "2", "1.50", "75%", "-", "-", "25%", "-", "-"] in rows
    assert ["4", "2x2", "-", "100", "1", "3.00", "75%", "4.00", "-50%", "25%", "-", "-"] in rows
    assert "2 ranks, 2x1: communicate and wait, 25% of the step" in out


def test_json_has_the_same_figures_with_units(run_hybridnn: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "one", seconds=[3.0], lines=[prediction_line(0.2), MEASURED])
    write_run(tmp_path / "two", ranks=2, seconds=[2.0])
    code, out, _ = run_hybridnn("report", "one", "--format", "json")
    facts = json.loads(out)
    assert (facts["seconds_per_step"], facts["predicted_seconds_per_step"]) == (0.3, 0.2)
    assert facts["bytes_per_step"] == 500
    forward = facts["instructions"][0]
    assert (forward["kind"], forward["seconds_per_step"]) == ("forward", 0.04)
    assert forward["predicted_seconds_per_step"] == pytest.approx(0.04)
    assert forward["error"] == pytest.approx(0.0)
    assert facts["prediction"]["machine"] == "laptop"
    code, out, _ = run_hybridnn("report", "one", "two", "--format", "json")
    assert code == 0
    (group,) = json.loads(out)["groups"]
    assert (group["base"], group["base_ranks"]) == ("one", 1)
    assert [run["speed_up"] for run in group["runs"]] == [1, 1.5]
    assert [run["efficiency"] for run in group["runs"]] == [1, 0.75]
    assert group["runs"][1]["predicted_speed_up"] is None


def test_doubtful_machine_files_are_named(run_hybridnn: Run, tmp_path: Path) -> None:
    doubt = "the machine file laptop is doubtful, and so are its predictions: noise 85%, more than 30%"
    for name, ranks in (("one", 1), ("two", 2)):
        write_run(tmp_path / name, ranks=ranks, lines=[prediction_line(0.2, doubt=doubt)])
    for folders in (["one"], ["one", "two"]):
        assert run_hybridnn("report", *folders)[1].count(f"warning: {doubt}\n") == 1
    assert json.loads(run_hybridnn("report", "one", "--format", "json")[1])["prediction"]["doubt"] == doubt
    (group,) = json.loads(run_hybridnn("report", "one", "two", "--format", "json")[1])["groups"]
    assert group["warnings"] == [doubt]


def test_a_disturbed_run_is_named(run_hybridnn: Run, tmp_path: Path) -> None:
    for others, is_named in ((0.1, False), (0.5, True)):
        write_run(tmp_path / str(others), ranks=2, lines=[load_line(others)])
        warning = "warning: disturbed: processes of others took 25% of the cores in use\n"
        assert (warning in run_hybridnn("report", str(others))[1]) == is_named


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["foreign"], "foreign is not a run folder"),
        (["done", "unfinished"], "unfinished: the run did not end well, or is still running"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_two(
    run_hybridnn: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "foreign").mkdir()
    write_run(tmp_path / "done")
    write_run(tmp_path / "unfinished", ended=False)
    assert message in error_line(run_hybridnn("report", *arguments))


def test_runs_that_differ_in_more_than_the_layout_have_tables_of_their_own_or_warnings(
    run_hybridnn: Run, tmp_path: Path
) -> None:
    write_run(tmp_path / "one", seconds=[7.9], threads=2)
    write_run(tmp_path / "two", ranks=2, seconds=[1.0])
    write_run(tmp_path / "small", ranks=2, seconds=[1.0], batch_size=50)
    code, out, _ = run_hybridnn("report", "one", "two", "small")
    assert code == 0
    network = "64-64-64-10 on digits (1,000 training samples)"
    assert [line for line in out.splitlines() if "speed-up against" in line] == [
        f"{network}, training.batch_size = 100; speed-up against 1 rank, one",
        f"{network}, training.batch_size = 50; speed-up against 2 ranks, small",
    ]
    assert "warning: 2 ranks, 2x1: efficiency 395%, " in out
    assert "warning: the runs differ in BLAS threads per rank (1, 2): " in out
    (group,) = json.loads(run_hybridnn("report", "one", "two", "--format", "json")[1])["groups"]
    assert len(group["warnings"]) == 2
    assert [run["threads_per_rank"] for run in group["runs"]] == [2, 1]


def test_mean_staleness_is_told_by_stage(run_hybridnn: Run) -> None:
    train = ("train", "--in-process", "3", "--pipeline", "3", "--method", "vanilla", "--hidden", "8,8", "--epochs", "1")
    assert run_hybridnn(*train, "--set", "output.folder=run")[0] == 0
    facts = json.loads(run_hybridnn("report", "run", "--format", "json")[1])
    assert facts["stage_staleness"] == pytest.approx([(13 * 2 + 1) / 15, 14 / 15, 0.0])  # min(t, K-1-k), 15 minibatches
