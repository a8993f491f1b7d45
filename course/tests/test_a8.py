"""A8: its checks on simulated data, on data of real runs, and through the grader's processes."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from hybridnn.cost.machine_file import read_machine
from hybridnn.utils.files import shipped_folder
from hybridnn_course.answers import NOT_WRITTEN
from hybridnn_course.assignments.a8_scaling import __main__ as command
from hybridnn_course.assignments.a8_scaling.assignment import ASSIGNMENT
from hybridnn_course.assignments.a8_scaling.checks import CLAIMS_CHECKS, JOB_CHECKS, RESULTS_CHECKS, STUDY_CHECKS
from hybridnn_course.assignments.a8_scaling.machines import machine_of
from hybridnn_course.assignments.a8_scaling.solution import all_texts, job_text, study_text
from hybridnn_course.assignments.a8_scaling.submitted import (
    CLAIMS,
    FILES,
    JOB,
    RESULTS,
    STUDY,
    Submitted,
    parse_script,
)
from hybridnn_course.carrier import Worker
from hybridnn_course.checks import TaskKey, TrustedRunner, check_task
from hybridnn_course.execution import StudentError
from hybridnn_course.handout import render_handout
from hybridnn_course.work_folder import Manifest, start_files, write_files

STANDARD = ASSIGNMENT.standard

# Columns of the results.csv of a study that ran under MPI. Its report: 0.0421 [0.0408, 0.0424] s on one rank,
# 0.0586 [0.0577, 0.0876] s on two, speed-up 0.72 [0.47, 0.74], efficiency 0.36.
MEASURED = """\
id,outcome,axis.ranks,axis.grid,axis.repeat,ranks,threads_per_rank,network,batch_size,seconds_per_epoch,seconds_per_step,\
cpu_model,cores_per_node,launcher,version.hybridnn
ranks-1_grid-1x1,finished,1,1x1,1,1,1,64-512-512-10,256,0.04079468400004771,0.0067991140,EPYC,2,mpirun,0.1.0
ranks-2_grid-2x1,finished,2,2x1,1,2,1,64-512-512-10,256,0.0586263630002577,0.0097710605,EPYC,2,mpirun,0.1.0
ranks-1_grid-1x1_repeat-2,finished,1,1x1,2,1,1,64-512-512-10,256,0.042442843000117136,0.0070738071,EPYC,2,mpirun,0.1.0
ranks-2_grid-2x1_repeat-2,finished,2,2x1,2,2,1,64-512-512-10,256,0.057661318999635114,0.0096102198,EPYC,2,mpirun,0.1.0
ranks-1_grid-1x1_repeat-3,finished,1,1x1,3,1,1,64-512-512-10,256,0.0421133039999404,0.0070188839,EPYC,2,mpirun,0.1.0
ranks-2_grid-2x1_repeat-3,finished,2,2x1,3,2,1,64-512-512-10,256,0.08756840399973953,0.0145947339,EPYC,2,mpirun,0.1.0
"""


def kind_of(checks, name, texts, variant=STANDARD):
    """Kind of the failure of a check; empty where it passes."""
    try:
        checks[name](Submitted({**dict.fromkeys(FILES, ""), **texts}, variant))
    except StudentError as error:
        return error.failure.kind
    return ""


@pytest.mark.slow
def test_texts_are_checked_in_the_graders_processes():
    texts = all_texts(STANDARD)
    keys = {task.name: TaskKey(ASSIGNMENT, task, STANDARD) for task in ASSIGNMENT.tasks}
    with Worker(ASSIGNMENT, texts) as worker:
        outcomes = {name: check_task(worker, key) for name, key in keys.items()}
    assert sum(outcome.points for outcome in outcomes.values()) == pytest.approx(40)
    wrong = {**texts, STUDY: study_text(STANDARD, repeats=1)}
    with Worker(ASSIGNMENT, wrong) as worker:
        outcome = check_task(worker, keys["study"])
    assert [check.mistake for check in outcome.checks if not check.passed] == ["one-repeat"]


@pytest.mark.slow
def test_the_files_of_a_new_folder_earn_nothing():
    files = start_files(ASSIGNMENT, Manifest(assignment="a8", variant=STANDARD))
    texts = {name: files[name] for name in FILES}
    for task in ASSIGNMENT.tasks:
        key = TaskKey(ASSIGNMENT, task, STANDARD)
        outcome = check_task(TrustedRunner({task.name: lambda: texts}), key)
        assert outcome.points == 0
        assert "not written yet" in outcome.checks[0].message
    with pytest.raises(StudentError) as error:
        Submitted(texts, STANDARD).require_written(JOB)
    assert error.value.failure.kind == NOT_WRITTEN


@pytest.mark.slow
def test_the_command_simulates_the_study_of_a_folder(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "work"
    write_files(folder, start_files(ASSIGNMENT, Manifest(assignment="a8", student="ann", variant=STANDARD)))
    monkeypatch.chdir(folder)
    assert command.main(["simulate"]) == 2
    assert "study.toml: not written yet" in capsys.readouterr().err
    Path(STUDY).write_text(study_text(STANDARD, repeats=3))
    assert command.main(["simulate"]) == 0
    assert read_machine(Path("machine.toml")) == machine_of("slow")
    texts = {STUDY: Path(STUDY).read_text(), RESULTS: Path(RESULTS).read_text()}
    assert [kind_of(RESULTS_CHECKS, name, texts) for name in RESULTS_CHECKS] == [""] * len(RESULTS_CHECKS)
    capsys.readouterr()
    assert command.main(["table"]) == 0
    (point,) = Submitted(texts, STANDARD).points_of({"ranks": 8})
    files = Submitted(texts, STANDARD)
    assert f"speed_up           {files.measured('speed_up', point, files.base_of(point)).format('.5g')}" in (
        capsys.readouterr().out
    )
    assert command.main([]) == 2


# -- data of real runs ------------------------------------------------------------------------------------------------


def test_the_data_of_real_runs_say_what_their_report_says():
    files = Submitted({RESULTS: MEASURED}, STANDARD)
    one, two = files.points
    assert files.measured("seconds_per_epoch", one, None).format(".4g") == "0.0421 [0.0408, 0.0424]"
    assert files.measured("speed_up", two, files.base_of(two)).format(".2f") == "0.72 [0.47, 0.74]"
    assert f"{files.measured('efficiency', two, files.base_of(two)).value:.2f}" == "0.36"
    speed_up = statistics.median(one.times()) / statistics.median(two.times())
    serial = files.measured("serial_fraction", two, files.base_of(two))
    assert serial.value == pytest.approx((1 / speed_up - 1 / 2) / (1 - 1 / 2))


def test_real_data_pass_where_the_study_is_theirs():
    study = study_text(STANDARD, ranks=[1, 2], repeats=3)
    texts = {STUDY: study, RESULTS: MEASURED}
    kinds = {name: kind_of(RESULTS_CHECKS, name, texts) for name in RESULTS_CHECKS}
    assert kinds.pop("ranks of the data") == "ranks are missing"
    assert not any(kinds.values())
    # 8 tasks on nodes of 2 cores
    assert kind_of(JOB_CHECKS, "cores for all threads", {**texts, JOB: job_text()}) == "more threads than cores"


# -- further submissions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "check", "kind"),
    [
        ({"top": "baseline = {ranks = 1}"}, "serial baseline", ""),
        ({"top": 'baseline = {grid = "1x1"}'}, "serial baseline", ""),
        ({"top": "baseline = {ranks = 4}"}, "serial baseline", "the baseline is parallel"),
        ({"axes": "widths = [512]"}, "network and data", ""),
        ({"axes": "widths = [512, 64]"}, "network and data", "another network"),
        ({"axes": "batch_sizes = [256]"}, "the same minibatch everywhere", ""),
        ({"axes": "batch_sizes = [256, 512]"}, "the same minibatch everywhere", "the minibatch differs between cells"),
        ({"top": 'base.data.name = "mnist"'}, "network and data", "other data"),
        ({"axes": "rank = [1]"}, "it can be read", "study cannot be read"),
        ({"repeats": 1000, "axes": "threads = [1, 2, 3]"}, "it can be read", "study cannot be read"),
        ({"repeats": 2}, "at least 3 repeats", "too few repeats"),
    ],
)
def test_checks_of_a_study(change, check, kind):
    assert kind_of(STUDY_CHECKS, check, {STUDY: study_text(STANDARD, **change)}) == kind


def test_a_study_that_is_no_toml_is_refused_with_its_line():
    with pytest.raises(StudentError, match=r"study\.toml") as error:
        _ = Submitted({STUDY: "name = \n"}, STANDARD).cells
    assert "/tmp" not in error.value.failure.text


def test_scripts_are_read_as_slurm_reads_them():
    script = parse_script(
        "#!/bin/sh\n#SBATCH -N 2 --exclusive\n#SBATCH -t10:00 # limit\n\necho \\\n one\n#SBATCH -n 4\n"
    )
    assert script.options == {"nodes": "2", "exclusive": "", "time": "10:00"}
    assert (script.late, script.commands) == (("#SBATCH -n 4",), ("echo   one",))


def test_the_script_of_the_library_passes():
    text = (shipped_folder("hpc_jobs") / "strong_scaling.sbatch").read_text()
    text = text.replace("study=strong_scaling.toml ", "study=study.toml ").replace("per-node=16", "per-node=8")
    texts = {JOB: text, STUDY: study_text(STANDARD)}
    assert [kind_of(JOB_CHECKS, check, texts) for check in JOB_CHECKS] == [""] * len(JOB_CHECKS)


@pytest.mark.parametrize("text", ["claims = []", "claims = 1", "x", "[[claims]]\nsays = 'x'"])
def test_claims_that_cannot_be_read(text):
    texts = {**all_texts(STANDARD), CLAIMS: text}
    for name in CLAIMS_CHECKS:
        assert kind_of(CLAIMS_CHECKS, name, texts) in ("no claims", "claims cannot be read")


def test_a_superlinear_speed_up_may_be_explained():
    mistake = next(mistake for mistake in ASSIGNMENT.task("claims").mistakes if "superlinear" in mistake.name)
    texts = mistake.function(STANDARD)()
    check = "superlinear speed-ups are explained"
    assert kind_of(CLAIMS_CHECKS, check, texts) == "unexplained superlinear speed-up"
    reason = "because = 'The weights and gradients of a rank fit its cache only from four ranks on.'\n\n["
    explained = {**texts, CLAIMS: texts[CLAIMS].replace("\n\n[", "\n" + reason)}
    assert kind_of(CLAIMS_CHECKS, check, explained) == ""


def test_changed_seconds_are_found_in_the_simulated_data():
    texts = all_texts(STANDARD)
    last = Submitted(texts, STANDARD).rows[-1].columns["seconds_per_epoch"]
    changed = {**texts, RESULTS: texts[RESULTS].replace(last, str(float(last) * 0.999))}
    assert kind_of(RESULTS_CHECKS, "as measured", changed) == "changed data"


def test_the_handout_has_the_rubric_and_the_numbers_of_its_example():
    text = render_handout(ASSIGNMENT, STANDARD)
    for item in ASSIGNMENT.rubric:
        assert f"| {item.name} | {item.points:g} |" in text
    speed_up = 8.0 / 2.5
    serial = (1 / speed_up - 1 / 4) / (1 - 1 / 4)
    assert (speed_up, speed_up / 4) == (3.2, 0.8)
    assert f"{serial:.3f}" in text.replace("\n", " ")
