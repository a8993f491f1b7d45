"""`hybridnn study`: runs, reports and submitted jobs of a study, and wrong input."""

import json
import re
import shlex
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from hybridnn.cli.study_view import StudyProgress
from hybridnn.config.settings import to_toml
from hybridnn.runs.run_files import read_run, run_status
from hybridnn.study.cells import make_cells
from hybridnn.study.runner import CellOutcome, plan_study
from hybridnn.study.study_file import load_study
from hybridnn.study.study_folder import StudyFolder
from mpi_runner.launch import find_mpirun, run_job
from reference.command_line import Run, error_line, output_of
from reference.finished_runs import write_run, write_study

STUDY = """
name = "tiny"
description = "two cells"
compares = "training"
[base.training]
epochs = 2
[base.model]
hidden = [8]
[base.data]
name = "synthetic"
rows = 200
synthetic = {test_samples = 50}
[axes]
ranks = [1, 2]
"""


@pytest.fixture
def study(run_hybridnn: Run) -> Run:
    """Run ``hybridnn study`` beside the study above, ``tiny.toml``."""
    Path("tiny.toml").write_text(STUDY)
    return partial(run_hybridnn, "study")


@pytest.mark.slow
def test_real_study_runs_resumes_and_is_reported(study: Run) -> None:
    run = ("run", "tiny.toml", "--limit", "60", "--launcher", f"{shlex.quote(str(find_mpirun()))} -n {{ranks}}")
    command = [sys.executable, "-m", "hybridnn", "study", *run]  # MPI may already be loaded in this process
    first = run_job(command, timeout=100)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "2 of 2 cells to run" in first.stdout
    assert "[2/2] finished ranks-2" in first.stdout
    folder = Path("runs/studies/tiny")
    cells = [folder / "cells" / f"ranks-{ranks}" for ranks in (1, 2)]
    assert [read_run(cell).header.ranks for cell in cells] == [1, 2]
    histories = [(cell / "history.jsonl").read_bytes() for cell in cells]
    code, text, _ = study(*run)
    assert (code, "0 of 2 cells to run" in text) == (0, True)
    assert [(cell / "history.jsonl").read_bytes() for cell in cells] == histories
    facts = json.loads(output_of(study("report", str(folder), "--format", "json")))
    assert (facts["study"], facts["finished_cells"], facts["unfinished"]) == ("tiny", 2, [])
    assert [point["ranks"] for point in facts["points"]] == [1, 2]
    assert facts["points"][0]["speed_up"]["value"] == 1
    assert (folder / "report" / "report.md").is_file()
    assert set(facts["files"]) == {f"runs/studies/tiny/report/{path.name}" for path in (folder / "report").iterdir()}


def test_end_of_a_study_names_the_command_of_its_report(study: Run, run_hybridnn: Run, tmp_path: Path) -> None:
    plan = make_cells(load_study(tmp_path / "tiny.toml"))
    for cell in plan.cells:
        folder = write_run(tmp_path / "a folder" / "cells" / cell.id, ranks=cell.ranks)
        (folder / "settings.toml").write_text(to_toml(cell.settings))
    run = ("run", "tiny.toml", "--out", "a folder", "--launcher", "env {ranks}")
    text = output_of(study(*run))
    command = text.splitlines()[-1].removeprefix("2 of 2 cells are finished; ").removesuffix(" writes the report")
    assert run_hybridnn(*shlex.split(command)[1:])[0] == 0
    assert (tmp_path / "a folder" / "report" / "report.md").is_file()
    assert study(*run, "--cell", "0")[1].splitlines()[-1] == "1 of 1 cells are finished"


SHARED = "2 ranks of 1 thread share 1 core of a node and take turns: their times are no scaling"
BUSY = "the machine is busy: load average 3.0, more than the 2 cores that 2 threads of a run leave free"


@pytest.mark.parametrize(
    ("cores", "load", "on_this_node", "warnings"),
    [
        (1, 0.0, True, [SHARED]),
        (2, 0.0, True, []),
        (1, 0.0, False, []),
        (4, 3.0, True, [f"{BUSY}: times will be disturbed"]),
        (4, 0.1, True, []),
        (4, 3.0, False, []),
    ],
)
def test_shared_cores_and_a_busy_machine_are_said(
    study, capsys, monkeypatch, cores, load, on_this_node, warnings
) -> None:
    planned = plan_study(load_study(Path("tiny.toml")), Path("out"), "env {ranks}")
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    with closing(StudyProgress(planned, on_this_node=on_this_node)) as view:
        view.on_start(2)
    assert re.findall(r"^warning: (.*)$", capsys.readouterr().out, re.MULTILINE) == warnings


def test_repeats_of_disturbed_cells_are_shown_and_cells_of_others_are_counted_once(study, capsys, tmp_path) -> None:
    planned = plan_study(load_study(tmp_path / "tiny.toml"), tmp_path / "out", "env {ranks}")
    first, second = planned.chosen
    write_run(planned.folder.cell(first.id))  # ended by the other process in the meantime
    held = [CellOutcome(cell, "held", reason="process 7 is running it") for cell in (first, second)]
    with closing(StudyProgress(planned, on_this_node=False)) as view:
        view.on_repeat(CellOutcome(first, "finished", disturbance=0.35), 1)
        view.summarize(held)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "ranks-1: disturbed (others took 35%), repeat 1 of 2",
        "1 of 2 cells are finished",
        "another process runs 1 cell",
    ]


def test_failed_cell_gives_exit_code_one_and_its_error(study: Run) -> None:
    # This launcher starts one rank, which does not fit the grid of the second cell.
    with open("tiny.toml", "a") as file:
        file.write('layouts = ["batch"]\n')
    code, text, _ = study("run", "tiny.toml", "--launcher", "env -u {ranks}", "--out", "here")
    assert code == 1
    assert "1 of 2 cells are finished" in text
    assert "failed: here/cells/ranks-2_grid-2x1\n  exit code 2: Error: " in text
    assert run_status(Path("here/cells/ranks-1_grid-1x1")) == "finished"


def test_dry_run_is_a_table_and_what_was_left_out(study: Run, tmp_path: Path) -> None:
    Path("grids.toml").write_text(STUDY.replace("[1, 2]", "[1, 2, 3]") + 'layouts = ["batch", "2x1x1:1f1b"]\n')
    write_run(tmp_path / "out" / "cells" / "ranks-1_grid-1x1", ended=False)
    run = ("run", "grids.toml", "--launcher", "env -u {ranks}", "--out", "out")
    out = output_of(study(*run, "--dry-run"))
    rows = [line.split() for line in out.splitlines()]
    assert rows[2:6] == [
        ["0", "ranks-1_grid-1x1", "interrupted"],
        ["1", "ranks-2_grid-2x1", "never", "run"],
        ["2", "ranks-2_grid-2x1x1_method-1f1b", "never", "run"],
        ["3", "ranks-3_grid-3x1", "never", "run"],
    ]
    assert "\n2 left out: the layout has another number of ranks (ranks-1_grid-2x1x1 and 1 more)\n" in out
    assert "no machine file, and so no prediction of the time" in out
    assert "mpirun" not in out
    assert "env -u" not in out
    assert out.endswith("4 cells in out\n")
    code, commands, _ = study(*run, "--commands")
    settings = "out/cells/ranks-2_grid-2x1/settings.toml"
    threads = " ".join(f"{name}_NUM_THREADS=1" for name in ("OPENBLAS", "MKL", "BLIS", "OMP"))
    assert (code, len(commands.splitlines())) == (0, 4)
    expected = f"env -u 2 env {threads} {shlex.quote(sys.executable)} -m hybridnn train {settings} --set"
    assert commands.splitlines()[1].startswith(expected)
    assert not Path("out/study.json").exists()
    Path("often.toml").write_text(STUDY + "repeats = 5\n")
    out = study("run", "often.toml", *run[2:4], "--dry-run")[1]
    assert [" ".join(line.split()) for line in out.splitlines()[2:4]] == [
        "0, 2, 4, 6, 8 ranks-1 and 4 repeats never run",
        "1, 3, 5, 7, 9 ranks-2 and 4 repeats never run",
    ]
    # Without a launcher, it is found as by train.
    out = output_of(study("run", "tiny.toml", "--cell", "1", "--commands"))
    assert f" {shlex.quote(str(find_mpirun()))} -n 2 env OPENBLAS_NUM_THREADS=1 " in out


def test_new_study_of_a_settings_file_can_run(study: Run) -> None:
    Path("mine.toml").write_text("[training]\nbatch_size = 64\n[model]\nhidden = [8, 8, 8]\n[parallel]\nbatch = 2\n")
    out = output_of(study("new", "mine.toml", "--ranks", "2,4"))
    assert out.endswith("edit it, then: hybridnn study run mine-layouts.toml\n")
    planned = load_study(Path("mine-layouts.toml"))
    assert (planned.keys.compares, planned.keys.base["training"]) == ("times", {"batch_size": 64})
    cells = make_cells(planned).cells
    assert {cell.ranks for cell in cells} == {1, 2, 4}
    assert len(cells) == 5 * (1 + 3 + 5)
    assert study("new", "mine.toml", "--ranks", "2", "--force")[0] == 0
    assert len(make_cells(load_study(Path("mine-layouts.toml"))).cells) == 5 * (1 + 3), "two ranks have no grid of both"
    assert "is there already; --force replaces it" in error_line(study("new", "mine.toml"))
    assert "--ranks = '2,': must be numbers of ranks" in error_line(
        study("new", "mine.toml", "--ranks", "2,", "--force")
    )
    assert "none.toml" in error_line(study("new", "none.toml"))


def test_submit_prints_the_jobs_or_submits_them(study: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    Path("tiny.toml").write_text(STUDY.replace('"training"', '"times"') + "repeats = 1\n")
    options = ("--partition", "p", "--time", "5", "--sbatch", "--constraint=a", "--share-nodes")
    submit = ("submit", "tiny.toml", *options)
    out = output_of(study(*submit, "--dry-run"))
    assert out.startswith("#!/usr/bin/env bash\n")
    named = "--cpus-per-task=1 --partition=p --time=5 --constraint=a runs/studies/tiny/slurm/1/study"
    assert f"--array=0 --ntasks=1 {named}" in out
    assert "--dependency=afterany:JOB:JOB " in out
    shared = "warning: --share-nodes: other jobs on the nodes of the cells may disturb their times\n"
    assert out.endswith(shared)
    assert " --exclusive " in study("submit", "tiny.toml", "--dry-run")[1]
    assert "there is no program 'sbatch' (--dry-run shows the script)" in error_line(study(*submit))
    assert not Path("runs").exists()

    Path("sbatch").write_text("#!/bin/sh\necho 7\n")
    Path("sbatch").chmod(0o755)
    code, out, _ = study(*submit)
    assert (code, out) == (
        0,
        "job 7: 1 cell on 1 rank\njob 7: 1 cell on 2 ranks\njob 7: the report, when they have ended\n"
        f"script and output in runs/studies/tiny/slurm/1\n{shared}",
    )
    Path("squeue").write_text("#!/bin/sh\necho 7_0\necho 7_1\n")
    Path("squeue").chmod(0o755)
    record = Path("runs/studies/tiny/slurm/1/jobs.json")
    record.write_text(json.dumps({"arrays": [{"job": 7, "cells": {"0": "ranks-1", "1": "ranks-2"}}]}))
    code, out, _ = study(*submit)
    assert (code, out) == (
        0,
        "all 2 cells are finished or queued: nothing to submit\njob 7: 2 cells of an earlier submission\n",
    )


def test_ready_studies_are_listed_and_run_by_name(study: Run) -> None:
    code, out, _ = study("list")
    assert (code, "laugier-figure-6\n" in out, ": never run\n" in out) == (0, True, True)
    studies = {entry["name"]: entry for entry in json.loads(study("list", "--format", "json")[1])}
    assert [form["state"] for form in studies["laugier-figure-7"]["forms"]] == ["never run", "never run"]
    code, out, _ = study("run", "laugier-figure-5", "--reduced", "--dry-run", "--launcher", "env N={ranks}")
    assert (code, out.endswith("in runs/studies/laugier-figure-5-reduced\n")) == (0, True)


def test_without_a_distribution_of_studies_the_list_says_what_to_install(study, monkeypatch) -> None:
    monkeypatch.setattr("hybridnn.study.study_file.entry_points", lambda **_: ())
    message = "Error: no studies are installed; pip install hybridnn-papers adds those of the papers"
    assert error_line(study("list")) == message


def test_conclusions_without_the_distribution_that_evaluates_them_say_what_to_install(
    study, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("hybridnn.study.study_file.entry_points", lambda **_: ())
    Path("said.toml").write_text(STUDY + '[[statements]]\nsays = "A."\n')
    write_study(tmp_path / "s", {"a": ({}, {})}, more={"conclusions": {"columns": ["memory"]}})
    for command in (["run", "said.toml", "--dry-run"], ["submit", "said.toml"], ["report", "s"]):
        assert error_line(study(*command)).endswith(" of a study need hybridnn-papers: pip install hybridnn-papers")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "none.toml"], "study = 'none.toml': "),
        (["run", "tiny.toml", "--cell", "2", "--launcher", "env {ranks}"], "--cell = 2: must be 0 to 1"),
        (["run", "nodes.toml", "--launcher", "env {ranks}"], "does not place ranks: nodes = 2 needs {nodes} in it"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_two(study: Run, arguments: list[str], message: str) -> None:
    Path("nodes.toml").write_text(STUDY.replace("ranks = [1, 2]", "ranks = [2]\nnodes = [2]"))
    assert message in error_line(study(*arguments))
    assert not Path("runs").exists()
    if arguments[1] == "nodes.toml":
        code, out, _ = study(*arguments, "--dry-run")
        assert (code, "cannot be started here: --launcher = 'env {ranks}': " in out) == (0, True)


def test_report_lists_unfinished_cells_and_has_exit_code_one_with_failed_ones(study: Run, tmp_path: Path) -> None:
    runs = {
        name: ({"ranks": ranks}, {"ranks": ranks, "seconds": [9 / ranks**2]}) for name, ranks in (("a", 1), ("b", 4))
    }
    write_study(tmp_path / "s", runs, missing={"c": {"ranks": 8}})
    out = output_of(study("report", "s", "--out", "elsewhere"))
    assert "1 of 3 cells are not finished: 1 never run\n  never run    c\n" in out
    assert "elsewhere/report.md\n" in out
    assert Path("elsewhere/tables.tex").is_file()
    folder = StudyFolder(tmp_path / "s")
    folder.cell("c").mkdir()
    reason = "ended after the limit of 3 s: it printed no error"
    folder.fail("c", "timed out", reason)
    code, out, _ = study("report", "s")
    assert code == 1
    assert "warning: ranks 4: efficiency 400%, more than" in out
    assert f"1 of 3 cells are not finished: 1 timed out\n  timed out    c: {reason}\n" in out
    code, out, _ = study("report", "s", "--format", "json")
    assert code == 1
    facts = json.loads(out)
    assert facts["unfinished"] == [{"id": "c", "status": "timed out", "reason": reason}]
    assert [warning[:24] for warning in facts["warnings"]] == ["ranks 4: efficiency 400%"]


def test_dry_run_prices_the_study(study: Run) -> None:
    Path("s.toml").write_text('name = "s"\nmachine = "cluster-1024"\naxes = {ranks = [1]}')
    out = output_of(study("run", "s.toml", "--launcher", "", "--dry-run"))
    assert re.search(r"\n +0 +ranks-1 +never run +[\d.]+ +[\d.e-]+\n", out)
    assert "\npredicted by cluster-1024: " in out
    assert " HYBRIDNN_MACHINE=cluster-1024 " in study("run", "s.toml", "--launcher", "", "--commands")[1]


def test_folders_are_compared(study: Run, tmp_path: Path) -> None:
    for name, seconds in (("old", 2.0), ("new", 1.0)):
        write_study(tmp_path / name, {"one": ({"ranks": 1}, {"seconds": [seconds]})})
    assert "2.00" in output_of(study("report", "old", "new"))
    assert Path("old/comparison/report.md").is_file()


def test_a_machine_file_that_is_gone_is_one_line_and_what_ran_stays(study: Run, tmp_path: Path) -> None:
    Path("tiny.toml").write_text('machine = "gone.toml"\n' + STUDY)
    first = make_cells(load_study(tmp_path / "tiny.toml")).cells[0]
    folder = write_run(tmp_path / "out" / "cells" / first.id)
    (folder / "settings.toml").write_text(to_toml(first.settings))
    history = (folder / "history.jsonl").read_bytes()
    run = ("run", "tiny.toml", "--launcher", "env {ranks}", "--out", "out")
    for command in (run, (*run, "--dry-run"), ("submit", "tiny.toml", "--out", "out")):
        assert "gone.toml" in error_line(study(*command))
    assert (folder / "history.jsonl").read_bytes() == history
