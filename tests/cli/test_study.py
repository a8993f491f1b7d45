"""`hybridnn study`: runs, reports and submitted jobs of a study, and wrong input."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridnn.cli.study import _StudyProgress
from hybridnn.config.settings import to_toml
from hybridnn.runs.run_files import read_run, run_status
from hybridnn.study.cells import make_cells
from hybridnn.study.runner import plan_study
from hybridnn.study.study_file import load_study
from hybridnn.study.study_folder import StudyFolder
from mpi_runner.launch import JobResult, find_mpirun, job_environment
from mpi_runner.slowness import deadline
from reference.command_line import Run, error_line
from reference.finished_runs import write_run

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
synthetic = {samples = 200, test_samples = 50}
[axes]
ranks = [1, 2]
"""


def _hybridnn(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, as MPI may already be loaded in this one."""
    command = [sys.executable, "-m", "hybridnn", *arguments]
    return subprocess.run(
        command, cwd=folder, env=job_environment(), capture_output=True, text=True, timeout=deadline(100), check=False
    )


@pytest.mark.slow
def test_real_study_runs_resumes_and_is_reported(run_hybridnn: Run, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(STUDY)
    run = ["study", "run", "tiny.toml", "--limit", "60", "--launcher", f"{find_mpirun()} -n {{ranks}}"]
    first = _hybridnn(tmp_path, *run)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "2 of 2 cells to run" in first.stdout
    assert "[2/2] finished ranks-2" in first.stdout
    folder = tmp_path / "runs" / "studies" / "tiny"
    assert [read_run(folder / "cells" / f"ranks-{ranks}").header.ranks for ranks in (1, 2)] == [1, 2]
    histories = [(folder / "cells" / f"ranks-{ranks}" / "history.jsonl").read_bytes() for ranks in (1, 2)]

    code, text, _ = run_hybridnn(*run)
    assert code == 0
    assert "0 of 2 cells to run" in text
    assert [(folder / "cells" / f"ranks-{ranks}" / "history.jsonl").read_bytes() for ranks in (1, 2)] == histories

    code, text, err = run_hybridnn("study", "report", "runs/studies/tiny", "--format", "json")
    assert code == 0, err
    facts = json.loads(text)
    assert (facts["study"], facts["finished_cells"], facts["unfinished"]) == ("tiny", 2, [])
    assert [point["ranks"] for point in facts["points"]] == [1, 2]
    assert facts["points"][0]["speed_up"]["value"] == 1
    assert (folder / "report" / "index.html").is_file()
    assert set(facts["files"]) == {f"runs/studies/tiny/report/{path.name}" for path in (folder / "report").iterdir()}


def test_end_of_a_study_names_the_command_of_its_report(run_hybridnn: Run, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(STUDY)
    plan = make_cells(load_study(tmp_path / "tiny.toml"))
    for cell in plan.cells:
        folder = write_run(tmp_path / "a folder" / "cells" / cell.id, ranks=cell.ranks)
        (folder / "settings.toml").write_text(to_toml(cell.settings))
    run = ("study", "run", "tiny.toml", "--out", "a folder", "--launcher", "env {ranks}")
    code, text, err = run_hybridnn(*run)
    assert code == 0, err
    command = text.splitlines()[-1].removeprefix("2 of 2 cells are finished; ").removesuffix(" writes the report")
    assert run_hybridnn(*shlex.split(command)[1:])[0] == 0
    assert (tmp_path / "a folder" / "report" / "index.html").is_file()
    assert run_hybridnn(*run, "--cell", "0")[1].splitlines()[-1] == "1 of 1 cells are finished"


def test_study_says_that_ranks_will_share_cores(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tiny.toml").write_text(STUDY)
    planned = plan_study(load_study(tmp_path / "tiny.toml"), tmp_path / "out", "env {ranks}")
    for cores, on_this_node, expected in ((1, True, True), (2, True, False), (1, False, False)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        with _StudyProgress(planned, on_this_node=on_this_node) as view:
            view.on_start(2)
        warning = "warning: 2 ranks of 1 thread share 1 core of a node and take turns"
        assert (warning in capsys.readouterr().out) == expected


def test_failed_cell_gives_exit_code_one_and_its_error(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(STUDY + 'grids = ["batch"]\n')
    # This launcher starts one rank, which does not fit the grid of the second cell.
    result = _hybridnn(tmp_path, "study", "run", "tiny.toml", "--launcher", "env -u {ranks}", "--out", "here")
    assert result.returncode == 1
    assert "1 of 2 cells are finished" in result.stdout
    assert "failed: here/cells/ranks-2_grid-2x1\n  exit code 2: Error: " in result.stdout
    assert run_status(tmp_path / "here" / "cells" / "ranks-1_grid-1x1") == "finished"


def test_dry_run_lists_cells_commands_and_skipped_combinations(run_hybridnn: Run, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(STUDY + 'grids = ["1x1", "2x1"]\n')
    write_run(tmp_path / "out" / "cells" / "ranks-1_grid-1x1", ended=False)
    code, out, _ = run_hybridnn(
        "study", "run", "tiny.toml", "--launcher", "env -u {ranks}", "--out", "out", "--dry-run"
    )
    assert code == 0
    assert "   0  interrupted  ranks-1_grid-1x1\n" in out
    assert "   1  never run    ranks-2_grid-2x1\n" in out
    settings = "out/cells/ranks-2_grid-2x1/settings.toml"
    threads = " ".join(f"{name}_NUM_THREADS=1" for name in ("OPENBLAS", "MKL", "BLIS", "OMP"))
    assert f"env -u 2 env {threads} {sys.executable} -m hybridnn train {settings} --set" in out
    assert "      skipped   ranks-2_grid-1x1\n" in out
    assert out.endswith("2 cells, 2 skipped, in out\n")
    assert not (tmp_path / "out" / "study.json").exists()


def test_study_finds_its_launcher_as_train_does(run_hybridnn: Run, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(STUDY)
    code, out, _ = run_hybridnn("study", "run", "tiny.toml", "--cell", "1", "--dry-run")
    assert code == 0
    assert f" {find_mpirun()} -n 2 env OPENBLAS_NUM_THREADS=1 " in out


def test_cells_can_be_run_by_number(run_hybridnn: Run, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(STUDY)
    code, out, _ = run_hybridnn("study", "run", "tiny.toml", "--cell", "1", "--launcher", "env {ranks}", "--dry-run")
    assert code == 0
    assert out.startswith("   1  never run    ranks-2\n")
    assert out.endswith("1 cells, 0 skipped, in runs/studies/tiny\n")


def test_submit_prints_the_jobs_or_submits_them(
    run_hybridnn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.toml").write_text(STUDY)
    monkeypatch.setenv("PATH", str(tmp_path))
    options = ("--partition", "p", "--time", "5", "--account", "a", "--sbatch", "--exclusive")
    submit = ("study", "submit", "tiny.toml", *options)
    code, out, _ = run_hybridnn(*submit, "--dry-run")
    assert code == 0
    assert out.startswith("#!/usr/bin/env bash\n")
    named = "--cpus-per-task=1 --partition=p --time=5 --account=a --exclusive runs/studies/tiny/slurm/1/study"
    assert f"--array=0 --ntasks=1 {named}" in out
    assert "--array=1 --ntasks=2 --cpus-per-task=1 --partition=p" in out
    assert "--dependency=afterany:JOB:JOB " in out
    assert not (tmp_path / "runs").exists()

    expected = "Error: study submit needs Slurm: there is no program 'sbatch' (--dry-run shows the script)"
    assert error_line(run_hybridnn(*submit)) == expected
    assert not (tmp_path / "runs").exists()

    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (tmp_path / "sbatch").chmod(0o755)
    code, out, _ = run_hybridnn(*submit)
    assert code == 0
    assert out == (
        "job 7: 1 cell on 1 rank\njob 7: 1 cell on 2 ranks\njob 7: the report, when they have ended\n"
        "script and output in runs/studies/tiny/slurm/1\n"
    )

    (tmp_path / "squeue").write_text("#!/bin/sh\necho 7_0\necho 7_1\n")
    (tmp_path / "squeue").chmod(0o755)
    record = tmp_path / "runs" / "studies" / "tiny" / "slurm" / "1" / "jobs.json"
    record.write_text(json.dumps({"arrays": [{"job": 7, "cells": {"0": "ranks-1", "1": "ranks-2"}}]}))
    code, out, _ = run_hybridnn(*submit)
    assert (code, out) == (
        0,
        "all 2 cells are finished or queued: nothing to submit\njob 7: 2 cells of an earlier submission\n",
    )


def test_ready_studies_are_listed_and_run_by_name(run_hybridnn: Run) -> None:
    code, out, _ = run_hybridnn("study", "list")
    assert code == 0
    assert "laugier-figure-6\n" in out
    assert ": never run\n" in out
    code, out, _ = run_hybridnn("study", "list", "--format", "json")
    studies = {study["name"]: study for study in json.loads(out)}
    assert [form["state"] for form in studies["laugier-figure-7"]["forms"]] == ["never run", "never run"]
    options = ("--reduced", "--dry-run", "--launcher", "env N={ranks}")
    code, out, _ = run_hybridnn("study", "run", "laugier-figure-5", *options)
    assert code == 0
    assert out.endswith("in runs/studies/laugier-figure-5-reduced\n")


def test_wrong_statement_is_one_line_with_file_and_key(run_hybridnn: Run, tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    statement = '[[statements]]\nsays = "A."\nquantity = "speed"\nat_least = 1\n'
    file.write_text(f'name = "s"\naxes = {{widths = [8]}}\n{statement}')
    code, out, err = run_hybridnn("study", "run", str(file), "--dry-run")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{file}: statements[0].quantity = 'speed': must be 'speed_up', " in err
    file.write_text(file.read_text().replace("speed", "memory") + "where = {width = 8}\nagainst = {width = 16}\n")
    code, _, err = run_hybridnn("study", "run", str(file), "--dry-run")
    assert (code, err.endswith("statements[0].against.width = 16: not a value of this axis: 8\n")) == (2, True)


def test_study_does_not_run_inside_a_job(run_mpi: Callable[..., JobResult], tmp_path: Path) -> None:
    result = run_mpi(2, [sys.executable, "-m", "hybridnn", "study", "run", "laugier-figure-5"], cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.count("Error: study run starts the launcher itself") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["study", "run", "none.toml"], "study = 'none.toml': cannot be read"),
        (["study", "run", "bad.toml"], "axes = 'colour': not an axis; known are ranks, nodes, ranks_per_node"),
        (["study", "run", "tiny.toml", "--only", "zz", "--launcher", "env {ranks}"], "--only = 'zz': matches no cell"),
        (["study", "run", "tiny.toml", "--cell", "2", "--launcher", "env {ranks}"], "--cell = 2: must be 0 to 1"),
        (["study", "submit", "none.toml"], "study = 'none.toml': cannot be read"),
        (["study", "run", "tiny.toml", "--launcher", "nothing {ranks}"], "there is no program 'nothing'"),
        (["study", "run", "tiny.toml", "--launcher", "env"], "must hold {ranks}"),
        (["study", "run", "tiny.toml", "--reduced"], "--reduced = 'tiny.toml': this study has no [reduced]"),
        (["study", "report", "."], "is not the folder of a study"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_two(
    run_hybridnn: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "tiny.toml").write_text(STUDY)
    (tmp_path / "bad.toml").write_text('name = "bad"\naxes = {colour = ["red"]}')
    assert message in error_line(run_hybridnn(*arguments))


def test_text_report_lists_unfinished_cells(run_hybridnn: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "s" / "cells" / "a", seconds=[2.0])
    cells = [{"id": name, "ranks": 1, "values": {"seed": seed}} for seed, name in enumerate("ab")]
    about = {"name": "s", "description": "", "reduced": False, "cells": cells}
    (tmp_path / "s" / "study.json").write_text(json.dumps(about))
    code, out, _ = run_hybridnn("study", "report", "s", "--out", "elsewhere")
    assert code == 0
    assert "1 of 2 cells are not finished: 1 never run\n  never run    b\n" in out
    assert "elsewhere/index.html\n" in out
    assert (tmp_path / "elsewhere" / "tables.md").is_file()


@pytest.mark.parametrize("form", ["text", "json"])
def test_report_with_failed_cells_has_exit_code_one(run_hybridnn: Run, tmp_path: Path, form: str) -> None:
    write_run(tmp_path / "s" / "cells" / "a", seconds=[9.0])
    write_run(tmp_path / "s" / "cells" / "b", seconds=[1.0], ranks=4)
    folder = StudyFolder(tmp_path / "s")
    folder.cell("c").mkdir()
    folder.fail("c", "timed out", "ended after the limit of 3 s: it printed no error")
    cells = [{"id": name, "ranks": ranks, "values": {"ranks": ranks}} for name, ranks in (("a", 1), ("b", 4), ("c", 8))]
    about = {"name": "s", "description": "", "reduced": False, "cells": cells}
    (tmp_path / "s" / "study.json").write_text(json.dumps(about))
    code, out, _ = run_hybridnn("study", "report", "s", "--format", form)
    assert code == 1
    reason = "ended after the limit of 3 s: it printed no error"
    if form == "text":
        assert "warning: ranks 4: efficiency 225%, more than" in out
        assert f"1 of 3 cells are not finished: 1 timed out\n  timed out    c: {reason}\n" in out
    else:
        facts = json.loads(out)
        assert facts["unfinished"] == [{"id": "c", "status": "timed out", "reason": reason}]
        assert [warning[:24] for warning in facts["warnings"]] == ["ranks 4: efficiency 225%"]


def test_dry_run_prices_the_study(run_hybridnn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYBRIDNN_MACHINE", raising=False)
    (tmp_path / "s.toml").write_text('name = "s"\naxes = {ranks = [1]}')
    code, out, _ = run_hybridnn("study", "run", "s.toml", "--launcher", "", "--dry-run")
    assert code == 0
    assert "no machine file, and so no prediction of the time" in out
    (tmp_path / "s.toml").write_text('name = "s"\nmachine = "cluster-1024"\naxes = {ranks = [1]}')
    code, out, _ = run_hybridnn("study", "run", "s.toml", "--launcher", "", "--dry-run")
    assert code == 0
    assert "\n                predicted: " in out
    assert "\npredicted by cluster-1024: " in out
    assert " HYBRIDNN_MACHINE=cluster-1024 " in out


def test_folders_are_compared_unless_they_are_of_different_studies(run_hybridnn: Run, tmp_path: Path) -> None:
    for name, study in (("old", "s"), ("new", "s"), ("other", "t")):
        write_run(tmp_path / name / "cells" / "one", seconds=[2.0 if name == "old" else 1.0])
        about = {"format": 1, "name": study, "description": "", "reduced": False}
        cells = [{"id": "one", "ranks": 1, "values": {"width": 8}}]
        (tmp_path / name / "study.json").write_text(json.dumps({**about, "cells": cells}))
    code, out, _ = run_hybridnn("study", "report", "old", "new")
    assert code == 0
    assert "2.000" in out
    assert (tmp_path / "old" / "comparison" / "index.html").is_file()
    code, out, _ = run_hybridnn("study", "report", "old", "new", "--format", "json")
    assert json.loads(out)["equal_points"][0]["times_as_fast"]["new"]["value"] == 2
    assert "holds another study (t) than old does" in error_line(run_hybridnn("study", "report", "old", "other"))
    assert "is not the folder of a study" in error_line(run_hybridnn("study", "report", "old", "none"))


def test_a_machine_file_that_is_gone_is_one_line_and_what_ran_stays(run_hybridnn: Run, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text('machine = "gone.toml"\n' + STUDY)
    first = make_cells(load_study(tmp_path / "tiny.toml")).cells[0]
    folder = write_run(tmp_path / "out" / "cells" / first.id)
    (folder / "settings.toml").write_text(to_toml(first.settings))
    history = (folder / "history.jsonl").read_bytes()
    for options in ((), ("--dry-run",)):
        line = error_line(
            run_hybridnn("study", "run", "tiny.toml", "--launcher", "env {ranks}", "--out", "out", *options)
        )
        assert "gone.toml" in line
    assert "gone.toml" in error_line(run_hybridnn("study", "submit", "tiny.toml", "--out", "out"))
    assert (folder / "history.jsonl").read_bytes() == history


def test_a_placement_that_the_launcher_cannot_do_is_one_line(run_hybridnn: Run, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(STUDY.replace("ranks = [1, 2]", "ranks = [2]\nnodes = [2]"))
    run = ("study", "run", "tiny.toml", "--launcher", "env {ranks}", "--out", "out")
    assert "does not place ranks: nodes = 2 needs {nodes} in it" in error_line(run_hybridnn(*run))
    assert not (tmp_path / "out").exists()
    code, out, _ = run_hybridnn(*run, "--dry-run")
    assert code == 0
    assert "cannot be started here: --launcher = 'env {ranks}': does not place ranks" in out
