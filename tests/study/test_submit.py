from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from hybridnn.errors import EnvironmentProblem, SettingError
from hybridnn.study.study_file import load_study
from hybridnn.study.study_folder import read_manifest
from hybridnn.study.submit import SlurmOptions, Submission, array_indices, filled_in, plan_submission, submit
from hybridnn.training.settings_file import to_toml
from reference.finished_runs import write_run

STUDY = 'name = "s"\naxes = {ranks = [1, 4], seeds = [0, 1, 2]}'
FAKE_SBATCH = """#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word"; done >>"$CALLS"
echo --- >>"$CALLS"
number=$(grep -c -e --- "$CALLS")
if [ "$number" -ge "$FAILS_AT" ]; then
  printf 'sbatch: error: noise\\nsbatch: error: invalid partition\\n' >&2
  exit 1
fi
echo "$((number + 100));cluster"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a stand-in for sbatch on the path; it writes its words into the file that is returned."""
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(FAKE_SBATCH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("FAILS_AT", "99")
    return tmp_path / "calls"


def _plan(tmp_path: Path, text: str = STUDY, options: SlurmOptions | None = None) -> Submission:
    file = tmp_path / "study.toml"
    file.write_text(text)
    return plan_submission(load_study(file), str(file), tmp_path / "out", options or SlurmOptions())


def _finish(submission: Submission, number: int) -> None:
    cell = submission.plan.cells[number]
    write_run(submission.folder.cell(cell.id))
    (submission.folder.cell(cell.id) / "settings.toml").write_text(to_toml(cell.settings))


def _jobs(calls: Path) -> list[list[str]]:
    return [job.splitlines() for job in calls.read_text().split("---\n") if job]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([0], "0"), ([0, 1], "0-1"), ([0, 2], "0,2"), ([0, 1, 2, 5, 7, 8], "0-2,5,7-8"), ([3, 4, 5], "3-5"), ([], "")],
)
def test_indices_are_written_as_spans(numbers: list[int], text: str) -> None:
    assert array_indices(numbers) == text


def test_each_number_of_ranks_has_an_array_of_its_missing_cells(tmp_path: Path) -> None:
    _finish(_plan(tmp_path), 4)
    arrays = _plan(tmp_path).arrays
    assert [(array.ranks, array.cells) for array in arrays] == [(1, (0, 1, 2)), (4, (3, 5))]


def test_jobs_are_submitted_with_the_report_after_them(tmp_path: Path, calls: Path) -> None:
    options = SlurmOptions(partition="long", time="0:30:00", account="mine", more=("--constraint=a&b", "-c2"))
    submission = _plan(tmp_path, options=options)
    assert submit(submission) == (["101", "102"], "103")
    ones, fours, report = _jobs(calls)
    script = str(tmp_path / "out" / "slurm" / "1" / "study_array.sbatch")
    named = ["--partition=long", "--time=0:30:00", "--account=mine", "--constraint=a&b", "-c2"]
    output = f"--output={tmp_path}/out/slurm/1/%x-%A_%a.out"
    assert ones == ["--parsable", "--job-name=s-1", output, "--array=0-2", "--ntasks=1", *named, script]
    assert fours == ["--parsable", "--job-name=s-4", output, "--array=3-5", "--ntasks=4", *named, script]
    assert "--dependency=afterany:101:102" in report
    assert report[-2:] == ["--ntasks=1", script]
    assert [cell.id for cell in read_manifest(tmp_path / "out").cells][3] == "ranks-4_seed-0"


def test_jobs_use_a_copy_of_the_study(tmp_path: Path, calls: Path) -> None:
    submit(_plan(tmp_path))
    (tmp_path / "study.toml").write_text("changed")
    copy = tmp_path / "out" / "slurm" / "1" / "study.toml"
    assert copy.read_text() == STUDY
    lines = (copy.parent / "study_array.sbatch").read_text().splitlines()
    (named,) = [line for line in lines if line.startswith("study=")]
    assert named.split(" ")[0] == f"study={copy}"


def test_every_submission_has_a_place_of_its_own(tmp_path: Path, calls: Path) -> None:
    for number in (1, 2):
        submission = _plan(tmp_path)
        assert submission.place == tmp_path / "out" / "slurm" / str(number)
        submit(submission)


def test_refused_job_is_named_with_what_was_submitted_before(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS_AT", "2")
    with pytest.raises(EnvironmentProblem) as error:
        submit(_plan(tmp_path))
    assert str(error.value) == ("sbatch refused the job: sbatch: error: invalid partition; already submitted: 101")


def test_nothing_missing_is_nothing_to_submit(tmp_path: Path) -> None:
    _finish(_plan(tmp_path, one := 'name = "s"\naxes = {seeds = [0]}'), 0)
    assert _plan(tmp_path, one).arrays == ()


def test_folder_of_another_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    manifest = {"name": "other", "description": "", "reduced": False, "cells": []}
    (tmp_path / "out" / "study.json").write_text(json.dumps(manifest))
    with pytest.raises(SettingError, match="holds another study"):
        _plan(tmp_path)


def test_values_reach_the_shell_as_they_are(tmp_path: Path) -> None:
    value = """a 'b' "c" $HOME # d \\ e"""
    script = filled_in('first=1   # stays\nvalue=""  # what it means\necho "$value"\n', {"value": value})
    assert script.startswith("first=1   # stays\nvalue=")
    assert "# what it means\n" in script
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout == value + "\n"


@pytest.mark.parametrize("script", ["", "value=1\nvalue=2\n", "export value=1\n"])
def test_variable_must_be_set_once(script: str) -> None:
    with pytest.raises(SettingError, match="exactly one line"):
        filled_in(script, {"value": "x"})
