"""The runner of a study: which cells run, at once or one by one, their results, failures and interrupts."""

import contextlib
import fcntl
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from hybridnn.errors import DataError, EnvironmentProblem, SettingError
from hybridnn.runs.run_files import read_run
from hybridnn.study.report import csv_text, point_rows
from hybridnn.study.results import read_results
from hybridnn.study.runner import default_folder, plan_study, run_study
from hybridnn.study.scaling import compare_points
from hybridnn.study.study_file import Study, load_study
from hybridnn.study.study_folder import StudyFolder, read_manifest
from mpi_runner.slowness import wait_until
from reference.finished_runs import write_run
from reference.stand_in_cells import (
    CRASH,
    FINISH,
    WAIT,
    View,
    calls_of,
    fake,
    in_a_process,
    plan_of,
    signal_when,
    states,
    statuses,
    study_of,
)

pytestmark = pytest.mark.timeout(600)

DISTURBED = """
import json
number = len((out / "calls").read_text().splitlines())
others = {others}[number - 1]
(folder / "checkpoints" / "step-1").mkdir(parents=True)
for name in ("weights.npz", "checkpoints/step-1/a"):
    (folder / name).write_text(str(others))
load = [{{"others": others, "cores": 2, "threads": 2}}]
(folder / "history.jsonl").write_text("".join(
    json.dumps(record) + "\\n" for record in ({{"kind": "load", "before": load, "during": load}}, {{"kind": "end"}})
))
"""


def test_every_cell_runs_once_on_its_ranks(tmp_path: Path) -> None:
    study, view, train = study_of(tmp_path, "ranks = [1, 4], seeds = [0]"), View(), fake(tmp_path)
    outcomes = run_study(plan_of(tmp_path, study), view, train=train)
    assert statuses(outcomes) == {"ranks-1_seed-0": "finished", "ranks-4_seed-0": "finished"}
    assert calls_of(tmp_path) == ["ranks-1_seed-0 on 1", "ranks-4_seed-0 on 4"]
    assert view.calls == [
        "2 missing",
        *("start ranks-1_seed-0", "finished ranks-1_seed-0"),
        *("start ranks-4_seed-0", "finished ranks-4_seed-0"),
    ]
    assert run_study(plan_of(tmp_path, study), View(), train=train) == []
    assert len(calls_of(tmp_path)) == 2


@pytest.mark.parametrize(
    ("compares", "others", "accepts", "repeats", "disturbance"),
    [
        ("times", [0.1], False, [], 0.0),
        ("times", [1.0, 0.1], False, ["50%"], 0.0),
        ("times", [1.0, 0.8, 0.6], False, ["50%", "40%"], 0.3),
        ("times", [0.6, 0.8, 1.0], False, ["30%", "30%"], 0.3),
        ("times", [0.8, 0.6, 1.0], False, ["40%", "30%"], 0.3),
        ("times", [0.6], True, [], 0.3),
        ("training", [1.0], False, [], 0.0),
    ],
)
def test_disturbed_cells_are_repeated_up_to_twice_and_the_least_disturbed_run_is_kept(
    tmp_path, compares, others, accepts, repeats, disturbance
) -> None:
    study, view = study_of(tmp_path, "ranks = [2], repeats = 1", f'compares = "{compares}"'), View()
    train = fake(tmp_path, DISTURBED.format(others=others))
    (outcome,) = run_study(plan_of(tmp_path, study), view, accept_disturbed=accepts, train=train)
    said = [f"repeat {number}: {share}" for number, share in enumerate(repeats, 1)]
    assert view.calls[2:] == [*said, "finished ranks-2"]
    assert (len(calls_of(tmp_path)), outcome.disturbance) == (1 + len(repeats), disturbance)
    assert ("disturbed: processes of others took 30%" in outcome.reason) == (disturbance > 0)
    cell = tmp_path / "out" / "cells" / "ranks-2"
    kept = json.loads((cell / "history.jsonl").read_text().splitlines()[0])["during"][0]["others"]
    assert kept == min(others)
    assert (cell / "weights.npz").read_text() == (cell / "checkpoints" / "step-1" / "a").read_text() == f"{kept}"
    assert not (cell / "repeat").exists()


@pytest.mark.parametrize("end", ["SIGTERM", "SIGUSR1", "limit", "its process", "the study"])
def test_a_run_that_has_ended_stands_when_its_repeat_does_not_end(tmp_path: Path, end: str) -> None:
    waits = "if folder.name == 'repeat': time.sleep(3600)\n" + DISTURBED.format(others=[1.0])
    study = study_of(tmp_path, "ranks = [2, 3], repeats = 1", 'compares = "times"')
    plan, train = plan_of(tmp_path, study, only="ranks-2"), fake(tmp_path, waits)
    cell = plan.folder.cell("ranks-2")
    here = cell / "repeat" / "here"

    def is_repeated() -> bool:
        return here.exists() and here.read_text() != ""

    if end in ("SIGTERM", "SIGUSR1"):
        thread = signal_when(is_repeated, getattr(signal, end))
        with pytest.raises(KeyboardInterrupt) if end == "SIGTERM" else contextlib.nullcontext():
            assert statuses(run_study(plan, View(), train=train)) == {"ranks-2": "finished"}
        thread.join()
    elif end == "limit":
        assert statuses(run_study(plan, View(), limit=5, train=train)) == {"ranks-2": "finished"}
    elif end == "its process":

        def kill() -> None:
            wait_until(is_repeated, 60)
            os.kill(int(here.read_text()), signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        assert statuses(run_study(plan, View(), train=train)) == {"ranks-2": "finished"}
        thread.join()
    else:
        study_process = in_a_process(tmp_path, "ranks-2")
        wait_until(is_repeated, 60)
        study_process.kill()
        study_process.wait()
        os.kill(int(here.read_text()), signal.SIGKILL)
    assert (cell / "history.jsonl").read_text().endswith('{"kind": "end"}\n')
    assert (cell / "weights.npz").read_text() == "1.0"
    assert not (cell / "failure.txt").exists()
    assert plan.folder.state("ranks-2").status == "finished"
    assert run_study(plan_of(tmp_path, study, only="ranks-2"), View(), train=train) == []


@pytest.mark.parametrize("moved", range(4))
def test_a_cell_has_a_finished_run_at_every_moment_of_its_replacement(tmp_path, monkeypatch, moved) -> None:
    plan = plan_of(tmp_path)
    cell, place = plan.folder.cell("seed-0"), plan.chosen[0]
    write_run(cell)
    for folder in (cell, plan.folder.prepare(place, repeat=True)):
        write_run(folder)
        (folder / "checkpoints" / "step-1").mkdir(parents=True)
    replace, done = Path.replace, list[Path]()

    def dies(path: Path, target: Path) -> Path:
        if len(done) == moved:
            raise KeyboardInterrupt
        done.append(path)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        plan.folder.end_repeat("seed-0", keep=True)
    assert plan.folder.state("seed-0").status == "finished"
    assert read_run(cell).epochs


def test_a_cell_whose_launcher_does_not_start_is_started_again(tmp_path: Path) -> None:
    fails = "if len((out / 'calls').read_text().splitlines()) < 3: sys.exit(213)\n"
    (outcome,) = run_study(plan_of(tmp_path, only="seed-0"), View(), train=fake(tmp_path, fails + FINISH))
    assert (outcome.status, len(calls_of(tmp_path))) == ("finished", 3)


def test_crash_is_reported_and_only_missing_cells_are_run_again(tmp_path: Path) -> None:
    outcomes = run_study(plan_of(tmp_path), View(), train=fake(tmp_path, CRASH + FINISH))
    assert statuses(outcomes) == {"seed-0": "finished", "seed-1": "failed", "seed-2": "finished"}
    assert outcomes[1].reason == "exit code 3: Error: broken on purpose"
    folder = StudyFolder(tmp_path / "out")
    assert folder.state("seed-1").status == "failed"
    assert "Traceback" in (folder.cell("seed-1") / "stderr.log").read_text()
    manifest = read_manifest(tmp_path / "out")
    cells = [(cell.id, cell.ranks, cell.values) for cell in manifest.cells]
    assert cells == [(f"seed-{seed}", 1, {"seed": seed}) for seed in (0, 1, 2)]
    assert (manifest.name, manifest.reduced) == ("s", False)
    # The cell begins anew, without the files of the run that failed.
    checks = 'assert not any((folder / name).exists() for name in ("weights.npz", "history.jsonl", "failure.txt"))\n'
    (folder.cell("seed-1") / "weights.npz").write_text("left over")
    outcomes = run_study(plan_of(tmp_path), View(), train=fake(tmp_path, checks + FINISH))
    assert statuses(outcomes) == {"seed-1": "finished"}
    assert calls_of(tmp_path) == [f"seed-{seed} on 1" for seed in (0, 1, 2, 1)]
    assert folder.state("seed-1").status == "finished"


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("", "failed", "exit code 0: it printed no error"),
        (WAIT, "timed out", "ended after the limit of 0.5 s"),
        (
            "print('Error: stopped by SIGTERM after step 3', file=sys.stderr); sys.exit(75)",
            "interrupted",
            "exit code 75: Error: stopped by SIGTERM after step 3",
        ),
    ],
)
def test_cell_that_does_not_finish_has_a_status_and_a_reason(tmp_path, body, status, reason) -> None:
    limit = 0.5 if body == WAIT else None
    (outcome,) = run_study(plan_of(tmp_path, only="seed-0"), View(), limit=limit, train=fake(tmp_path, body))
    assert (outcome.status, outcome.reason[: len(reason)]) == (status, reason)


def test_run_that_outlives_its_study_still_holds_its_cell(tmp_path: Path) -> None:
    train = fake(tmp_path, WAIT)
    plan = plan_of(tmp_path)
    here = plan.folder.cell("seed-1") / "here"
    parent = in_a_process(tmp_path, "seed-1")
    try:
        wait_until(lambda: here.exists() and here.read_text() != "", 60)
        outcomes = run_study(plan_of(tmp_path, only="seed-1"), View(), train=train)
        assert f"process {parent.pid} on " in outcomes[0].reason
    finally:
        parent.kill()
        parent.wait()
    outcomes = run_study(plan, View(), train=fake(tmp_path))
    assert statuses(outcomes) == {"seed-0": "finished", "seed-1": "held", "seed-2": "finished"}
    os.kill(int(here.read_text()), signal.SIGKILL)
    assert (plan.folder.cell("seed-1") / "lock").exists(), "it is there, and not locked"
    wait_until(lambda: statuses(run_study(plan, View(), train=fake(tmp_path))) != {"seed-1": "held"}, 60)
    assert states(plan) == ["finished"] * 3


def test_file_system_without_locks_is_tolerated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: object, kind: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)

    def train(settings: Path, folder: Path) -> list[str]:
        write_run(folder)
        return ["true"]

    assert set(statuses(run_study(plan_of(tmp_path), View(), train=train)).values()) == {"finished"}
    assert len(read_results(tmp_path / "out").cells) == 3


def test_cell_without_a_recorded_end_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tmp_path)
    for name, value in (("JOB_ID", "70"), ("ARRAY_JOB_ID", "63"), ("ARRAY_TASK_ID", "1")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert plan.folder.state("seed-0").status == "never run"
    with plan.folder.lock("seed-0"):
        plan.folder.prepare(plan.chosen[0])
        running = plan.folder.state("seed-0")
        assert (running.status, running.reason.split(" on ")[0]) == ("running", f"process {os.getpid()}")
    state = plan.folder.state("seed-0")
    assert state.status == "interrupted"
    assert " by Slurm job 63_1 on " in state.reason
    assert state.reason.endswith("left no end: killed, perhaps at a time limit, or its disk was full")


def test_files_of_an_unfinished_run_are_removed_unless_it_resumes(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    for resume, left in ((False, False), (True, True)):
        cell = write_run(plan.folder.cell("seed-0"), ended=False)
        (cell / "checkpoints" / "step-00000001").mkdir(parents=True)
        (cell / "weights.npz").write_text("left over")
        plan.folder.prepare(plan.chosen[0], resume=resume)
        assert [(cell / name).exists() for name in ("history.jsonl", "checkpoints/step-00000001")] == [left] * 2
    (cell / "checkpoints" / "step-00000001").rmdir()
    plan.folder.prepare(plan.chosen[0], resume=True)
    assert {path.name for path in cell.iterdir()} == {"config.toml", "settings.toml", "started.txt"}


def test_threads_of_every_rank_are_those_of_the_study(tmp_path: Path) -> None:
    names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "OMP_NUM_THREADS")
    body = f"(folder / 'seen').write_text(' '.join(os.environ[name] for name in {names}))\n"
    for keys, threads in (("", "1"), ("threads = 3", "3")):
        plan = plan_of(tmp_path, study_of(tmp_path, "seeds = [0]", keys))
        run_study(plan, View(), train=fake(tmp_path, body))
        assert (plan.folder.cell("seed-0") / "seen").read_text() == " ".join([threads] * 4)
    write_run(plan.folder.cell("seed-0"))
    with pytest.raises(SettingError, match=r"threads = 2: in .*out cell seed-0 ran with 3 BLAS threads per rank; name"):
        plan_of(tmp_path, study_of(tmp_path, "seeds = [0]", "threads = 2"))
    assert json.loads((tmp_path / "out" / "study.json").read_text())["threads"] == 3


def test_finished_cells_of_other_settings_are_refused_and_unfinished_ones_take_them(tmp_path: Path) -> None:
    run_study(plan_of(tmp_path, only="seed-0"), View(), train=fake(tmp_path, ""))
    changed = 'base = {training.epochs = 3, parallel.partition = "uniform"}'  # of stages: not in the file of one stage
    run_study(plan_of(tmp_path, study_of(tmp_path, keys=changed)), View(), train=fake(tmp_path))
    assert "epochs = 3" in (tmp_path / "out" / "cells" / "seed-0" / "settings.toml").read_text()
    with pytest.raises(SettingError, match=r"cell seed-0 ran with other settings: training\.epochs was 3, is 10"):
        plan_of(tmp_path, study_of(tmp_path))
    more = study_of(tmp_path, "seeds = [0, 1, 2, 3]", changed)
    assert statuses(run_study(plan_of(tmp_path, more), View(), train=fake(tmp_path))) == {"seed-3": "finished"}
    (tmp_path / "study.toml").write_text('name = "other"\naxes = {seeds = [5]}')
    with pytest.raises(SettingError, match=r"holds another study \(s\)"):
        plan_of(tmp_path, load_study(tmp_path / "study.toml"))


def test_only_is_a_part_of_the_id_or_a_pattern(tmp_path: Path) -> None:
    study = study_of(tmp_path, "ranks = [1, 2], seeds = [1, 2]")
    for pattern, count in (("ranks-2", 2), ("*-1", 2), ("ranks-1_seed-2", 1), ("ranks-?_seed-*", 4)):
        assert len(plan_of(tmp_path, study, only=pattern).chosen) == count
    with pytest.raises(SettingError, match="matches no cell; the first of 4 is ranks-1_seed-1"):
        plan_of(tmp_path, study, only="grid")


@pytest.mark.parametrize(
    ("launcher", "error", "message"),
    [
        ("env", SettingError, r"must hold \{ranks\}"),
        ("env '{ranks}", SettingError, "cannot be split into words"),
        ("no-such-launcher -n {ranks}", EnvironmentProblem, "there is no program 'no-such-launcher'"),
    ],
)
def test_launcher_is_checked_before_anything_runs(tmp_path, launcher, error, message) -> None:
    with pytest.raises(error, match=message):
        plan_of(tmp_path, study_of(tmp_path, "ranks = [2]"), launcher=launcher)
    assert not (tmp_path / "out").exists()


def test_missing_data_are_named_before_anything_runs(tmp_path: Path) -> None:
    study = study_of(tmp_path, keys="base = {data = {file = 'none.csv', targets = ['y']}}")
    with pytest.raises(DataError, match=r"data\.file = 'none\.csv': no such file"):
        plan_of(tmp_path, study)
    assert not (tmp_path / "out").exists()


def test_folders(tmp_path: Path) -> None:
    study = study_of(tmp_path, keys="reduced = {}")
    assert default_folder(study) == Path("runs/studies/s")
    assert default_folder(load_study(tmp_path / "study.toml", reduced=True)) == Path("runs/studies/s-reduced")
    (tmp_path / "out").write_text("a file")
    with pytest.raises(SettingError, match="is a file, not a folder"):
        plan_of(tmp_path)
    (tmp_path / "out").unlink()
    plan = plan_of(tmp_path)
    (tmp_path / "out").write_text("a file")
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        run_study(plan, View(), train=fake(tmp_path))


IN_PROCESS = """
in_process = true
[base]
model = {hidden = [8, 8, 8]}
training = {epochs = 2, evaluate_every = 2}
data = {name = "synthetic", rows = 100, synthetic = {test_samples = 20}}
[axes]
ranks = [3]
layouts = ["pipeline:pipedream,fr"]
"""


def _in_process(tmp_path: Path, before: str = "", after: str = "") -> Study:
    (tmp_path / "s.toml").write_text(f'name = "stages"\n{before}{IN_PROCESS}{after}')
    return load_study(tmp_path / "s.toml")


def test_stages_in_one_process_have_results_and_no_times(tmp_path: Path) -> None:
    study = _in_process(tmp_path)
    assert (study.keys.compares, [axis.name for axis, _ in study.axes]) == ("training", ["ranks", "layouts", "layouts"])
    command = plan_of(tmp_path, study, "env LAUNCHED={ranks}").command(plan_of(tmp_path, study).chosen[0])
    assert command[:2] == ["env", "LAUNCHED=1"], "a launcher starts the one process"
    plan = plan_study(study, tmp_path / "out")
    command = plan.command(plan.chosen[0])
    assert (command[0], command[-2:]) == ("env", ["--in-process", "3"])
    assert [outcome.status for outcome in run_study(plan, View(), jobs=2)] == ["finished"] * 2
    results = read_results(tmp_path / "out")
    run = read_run(plan.folder.cell("ranks-3_grid-3x1x1_method-fr"))
    assert (run.header.in_process, run.header.ranks) == (True, 3)
    assert run.untimed == "its ranks took turns in one process"
    assert all("seconds per epoch" not in row for row in point_rows(results))
    assert {row.get("limited by", "not measured") for row in point_rows(results)} == {"not measured"}
    assert compare_points(results) == {}
    assert all(point.metric is not None for point in results.points)
    assert "nan" not in csv_text(results)


def test_keys_that_contradict_ranks_in_one_process_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"compares = 'times': ranks that take turns"):
        _in_process(tmp_path, 'compares = "times"\n')
    plan = plan_study(_in_process(tmp_path, after="ranks_per_node = [1]\n"), tmp_path / "out")
    with pytest.raises(SettingError, match="cannot be placed"):
        run_study(plan, View())
