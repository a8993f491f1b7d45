"""Cells that run at once, and cells whose ranks take turns in one process."""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from hybridnn.errors import SettingError, StoppedBySignal
from hybridnn.runs.run_files import read_run
from hybridnn.study.cells import Cell
from hybridnn.study.report_files import csv_text, point_rows
from hybridnn.study.results import read_results
from hybridnn.study.runner import CellOutcome, StudyRun, TrainCommand, plan_study, run_study
from hybridnn.study.scaling import compare_points
from hybridnn.study.study_file import load_study
from mpi_runner.slowness import deadline

pytestmark = pytest.mark.timeout(600)

STUDY = 'name = "s"\n{keys}\naxes = {{seeds = {seeds}}}\n'
RENDEZVOUS = """
import sys, time
from pathlib import Path
settings, folder = map(Path, sys.argv[1:3])
(folder / "here").touch()
while len(list(folder.parent.glob("*/here"))) < {count}:
    time.sleep(0.01)
"""
FINISH = '(folder / "history.jsonl").write_text(\'{"kind": "end"}\\n\')\n'
WAIT = "time.sleep(1000)\n"


class View:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.threads: set[int | None] = set()

    def on_start(self, cells: int) -> None:
        self.calls.append(f"{cells} missing")

    def on_cell_start(self, cell: Cell) -> None:
        self.calls.append(f"start {cell.id}")
        self.threads.add(threading.current_thread().ident)

    def on_cell_end(self, outcome: CellOutcome) -> None:
        self.calls.append(f"{outcome.status} {outcome.cell.id}")
        self.threads.add(threading.current_thread().ident)


def _plan(tmp_path: Path, keys: str = "", seeds: str = "[0, 1, 2, 3]") -> StudyRun:
    (tmp_path / "s.toml").write_text(STUDY.format(keys=keys, seeds=seeds))
    return plan_study(load_study(tmp_path / "s.toml"), tmp_path / "out", "env")


def _fake(tmp_path: Path, body: str, count: int) -> TrainCommand:
    script = tmp_path / "fake_train.py"
    script.write_text(RENDEZVOUS.replace("{count}", str(count)) + body)
    return lambda settings, folder: [sys.executable, str(script), str(settings), str(folder)]


def _signal_when_two_run(plan: StudyRun, number: int) -> threading.Thread:
    main = threading.main_thread().ident
    assert main is not None

    def send() -> None:
        end = time.monotonic() + deadline(60)
        while len(list((plan.folder.path / "cells").glob("*/here"))) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        signal.pthread_kill(main, number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_two_cells_run_at_once(tmp_path: Path) -> None:
    plan, view = _plan(tmp_path), View()
    # A cell ends only when another one has begun, so that one after the other would never end.
    outcomes = run_study(plan, view, jobs=2, limit=deadline(60), train=_fake(tmp_path, FINISH, 2))
    assert sorted(outcome.cell.id for outcome in outcomes) == [f"seed-{seed}" for seed in range(4)]
    assert {outcome.status for outcome in outcomes} == {"finished"}
    assert view.calls[:3] == ["4 missing", "start seed-0", "start seed-1"]
    running = most = 0
    for call in view.calls[1:]:
        running += 1 if call.startswith("start") else -1
        most = max(most, running)
    assert (running, most) == (0, 2)
    assert view.threads == {threading.current_thread().ident}
    assert run_study(plan, View(), jobs=2) == []


def test_a_failed_cell_does_not_stop_those_beside_it(tmp_path: Path) -> None:
    body = 'if folder.name == "seed-1":\n    sys.exit("Error: broken on purpose")\n' + FINISH
    outcomes = run_study(_plan(tmp_path), View(), jobs=3, train=_fake(tmp_path, body, 2))
    statuses = {outcome.cell.id: outcome.status for outcome in outcomes}
    assert statuses == {"seed-0": "finished", "seed-1": "failed", "seed-2": "finished", "seed-3": "finished"}


def test_the_limit_ends_each_cell(tmp_path: Path) -> None:
    outcomes = run_study(_plan(tmp_path, seeds="[0, 1]"), View(), jobs=2, limit=0.3, train=_fake(tmp_path, WAIT, 0))
    assert [outcome.status for outcome in outcomes] == ["timed out"] * 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_running_cells_and_starts_no_other(tmp_path: Path, number: int) -> None:
    plan, view, before = _plan(tmp_path), View(), signal.getsignal(signal.SIGTERM)
    thread = _signal_when_two_run(plan, number)
    with pytest.raises(KeyboardInterrupt, match=signal.Signals(number).name):
        run_study(plan, view, jobs=2, train=_fake(tmp_path, WAIT, 0))
    thread.join()
    states = [plan.folder.state(f"seed-{seed}") for seed in range(4)]
    assert [state.status for state in states] == ["interrupted", "interrupted", "never run", "never run"]
    assert all(state.reason == f"ended by {signal.Signals(number).name}" for state in states[:2])
    assert signal.getsignal(signal.SIGTERM) == before
    assert run_study(plan, View(), jobs=2, train=_fake(tmp_path, FINISH, 0))[0].status == "finished"


@pytest.mark.parametrize("interrupted", ["restart", "resume"])
def test_the_warning_before_a_time_limit_ends_all_running_cells(tmp_path: Path, interrupted: str) -> None:
    plan = _plan(tmp_path, f'interrupted = "{interrupted}"')
    # With a checkpoint to write a run is sent SIGUSR1 first, which ends this one.
    thread = _signal_when_two_run(plan, signal.SIGUSR1)
    if interrupted == "resume":
        with pytest.raises(StoppedBySignal, match="run the study again to go on"):
            run_study(plan, View(), jobs=2, train=_fake(tmp_path, WAIT, 0))
    else:
        outcomes = run_study(plan, View(), jobs=2, train=_fake(tmp_path, WAIT, 0))
        assert [outcome.status for outcome in outcomes] == ["timed out"] * 2
    thread.join()
    statuses = [plan.folder.state(f"seed-{seed}").status for seed in range(4)]
    assert statuses == ["timed out", "timed out", "never run", "never run"]


def test_an_error_of_the_runner_ends_the_other_cells(tmp_path: Path) -> None:
    plan = _plan(tmp_path, seeds="[0, 1]")
    fake = _fake(tmp_path, WAIT, 0)
    calls: list[Path] = []

    def train(settings: Path, folder: Path) -> list[str]:
        calls.append(folder)
        if folder.name == "seed-1" and calls.count(folder) > 1:  # the first call checks the command
            end = time.monotonic() + deadline(60)
            while plan.folder.state("seed-0").status != "running":
                assert time.monotonic() < end
                time.sleep(0.02)
            raise RuntimeError("on purpose")
        return fake(settings, folder)

    with pytest.raises(RuntimeError, match="on purpose"):
        run_study(plan, View(), jobs=2, train=train)
    assert plan.folder.state("seed-0").status == "interrupted"


def test_cells_whose_times_are_compared_do_not_run_at_once(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('name = "s"\naxes = {ranks = [1, 2]}\n')
    plan = plan_study(load_study(tmp_path / "s.toml"), tmp_path / "out", "env -u {ranks}")
    with pytest.raises(SettingError, match=r"--jobs = 2: 1 for a study that compares times"):
        run_study(plan, View(), jobs=2)
    assert not (tmp_path / "out").exists()


IN_PROCESS = """
name = "stages"
in_process = true
[base]
model = {hidden = [8, 8, 8]}
training = {epochs = 2, evaluate_every = 2}
data = {name = "synthetic", synthetic = {samples = 100, test_samples = 20}}
[axes]
ranks = [2, 3]
methods = ["pipedream", "fr"]
"""


def test_stages_in_one_process_have_results_and_no_times(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(IN_PROCESS)
    study = load_study(tmp_path / "s.toml")
    assert (study.compares, [axis.name for axis, _ in study.axes]) == ("training", ["ranks", "methods"])
    plan = plan_study(study, tmp_path / "out")
    command = plan.command(plan.chosen[0])
    assert command[0] == "env", "no launcher"
    assert command[-2:] == ["--in-process", "2"]
    outcomes = run_study(plan, View(), jobs=2)
    assert [outcome.status for outcome in outcomes] == ["finished"] * 4
    results = read_results(tmp_path / "out")
    run = read_run(plan.folder.cell("ranks-3_method-fr"))
    assert (run.header.in_process, run.header.ranks, run.untimed) == (
        True,
        3,
        "its ranks took turns in one process",
    )
    assert all("seconds per epoch" not in row for row in point_rows(results))
    assert "limited by" not in point_rows(results)[0] or {r["limited by"] for r in point_rows(results)} == {
        "not measured"
    }
    assert compare_points(results) == {}
    assert all(point.metric is not None for point in results.points)
    assert "nan" not in csv_text(results)


def test_keys_that_contradict_ranks_in_one_process_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(IN_PROCESS.replace("in_process = true", 'in_process = true\ncompares = "times"'))
    with pytest.raises(SettingError, match=r"compares = 'times': ranks that take turns"):
        load_study(tmp_path / "s.toml")
    for name in ("speed_up", "seconds_to_target"):
        stated = f'target = 0.5\nstatements = [{{says = "Fast.", quantity = "{name}", at_least = 1.0}}]\n'
        (tmp_path / "s.toml").write_text(stated + IN_PROCESS)
        with pytest.raises(SettingError, match=rf"statements\[0\].quantity = '{name}': ranks that take turns"):
            load_study(tmp_path / "s.toml")
    (tmp_path / "s.toml").write_text(IN_PROCESS + "ranks_per_node = [1]\n")
    plan = plan_study(load_study(tmp_path / "s.toml"), tmp_path / "out")
    with pytest.raises(SettingError, match="cannot be placed"):
        run_study(plan, View())


def test_a_launcher_starts_the_one_process(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(IN_PROCESS)
    plan = plan_study(load_study(tmp_path / "s.toml"), tmp_path / "out", "env LAUNCHED={ranks}")
    command = plan.command(plan.chosen[-1])
    assert command[:2] == ["env", "LAUNCHED=1"]
    assert command[-2:] == ["--in-process", "3"]
