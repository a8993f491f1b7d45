"""Cells that run at once, and the signals and errors that end running cells."""

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from hybridnn.errors import SettingError, StoppedBySignal
from hybridnn.study.runner import run_study
from mpi_runner.slowness import deadline, wait_until
from reference.stand_in_cells import (
    CRASH,
    FINISH,
    WAIT,
    View,
    calls_of,
    fake,
    plan_of,
    signal_when,
    states,
    statuses,
    study_of,
)

pytestmark = pytest.mark.timeout(600)

RENDEZVOUS = """
while len(list(folder.parent.glob("*/here"))) < 2:
    time.sleep(0.01)
"""


def test_two_cells_run_at_once_and_a_failed_one_does_not_stop_the_others(tmp_path: Path) -> None:
    study, view = study_of(tmp_path, "seeds = [0, 1, 2, 3]"), View()
    # A cell ends only when another one has begun, so that one after the other would never end.
    train = fake(tmp_path, RENDEZVOUS + CRASH + FINISH)
    outcomes = run_study(plan_of(tmp_path, study), view, jobs=2, limit=deadline(60), train=train)
    assert statuses(outcomes) == {f"seed-{n}": "failed" if n == 1 else "finished" for n in range(4)}
    assert view.calls[:3] == ["4 missing", "start seed-0", "start seed-1"]
    running = most = 0
    for call in view.calls[1:]:
        running += 1 if call.startswith("start") else -1
        most = max(most, running)
    assert (running, most) == (0, 2)
    assert view.threads == {threading.current_thread().ident}


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])  # from the terminal; from a batch system
def test_interrupt_ends_the_running_cells_and_keeps_the_finished_ones(tmp_path: Path, jobs: int, number: int) -> None:
    plan = plan_of(tmp_path, study_of(tmp_path, "seeds = [0, 1, 2, 3]"))
    waits = 'if "seed-0" not in folder.name:\n    ' + WAIT + FINISH
    files = [plan.folder.cell(f"seed-{seed}") / "here" for seed in range(1, 1 + jobs)]
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # programs in the background of a shell ignore it
    signal.siginterrupt(signal.SIGINT, False)  # as some libraries do
    thread = signal_when(lambda: all(file.exists() and file.read_text() for file in files), number)
    try:
        with pytest.raises(KeyboardInterrupt, match=signal.Signals(number).name):
            run_study(plan, View(), jobs=jobs, train=fake(tmp_path, waits))
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before[signal.SIGINT])
    assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)
    assert states(plan) == ["finished", *["interrupted"] * jobs, *["never run"] * (3 - jobs)]
    assert plan.folder.state("seed-1").reason == f"ended by {signal.Signals(number).name}"
    assert set(statuses(run_study(plan, View(), jobs=2, train=fake(tmp_path))).values()) == {"finished"}


def test_an_interrupt_while_a_cell_starts_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Starting(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            os.kill(os.getpid(), signal.SIGTERM)

    plan = plan_of(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", Starting)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        run_study(plan, View(), train=fake(tmp_path, WAIT))
    assert [process.returncode for process in started] == [-signal.SIGTERM]


@pytest.mark.parametrize("interrupted", ["restart", "resume"])
def test_the_warning_before_a_time_limit_ends_all_running_cells(tmp_path: Path, interrupted: str) -> None:
    plan = plan_of(tmp_path, study_of(tmp_path, keys=f'interrupted = "{interrupted}"'))
    # With a checkpoint to write a run is sent SIGUSR1 first, which ends this one.
    thread = signal_when(lambda: len(calls_of(tmp_path)) == 2, signal.SIGUSR1)
    if interrupted == "resume":
        with pytest.raises(StoppedBySignal, match="run the study again to go on"):
            run_study(plan, View(), jobs=2, train=fake(tmp_path, WAIT))
    else:
        outcomes = run_study(plan, View(), jobs=2, train=fake(tmp_path, WAIT))
        assert [outcome.status for outcome in outcomes] == ["timed out"] * 2
    thread.join()
    assert states(plan) == ["timed out", "timed out", "never run"]


@pytest.mark.parametrize("cells", ["0", "0, 1"])
def test_cell_that_finishes_when_it_is_warned_is_finished(tmp_path: Path, cells: str) -> None:
    plan = plan_of(tmp_path, study_of(tmp_path, f"seeds = [{cells}]", 'interrupted = "resume"'))
    body = f"import signal\ndef end(*_):\n    {FINISH}    os._exit(0)\nsignal.signal(signal.SIGUSR1, end)\n"
    thread = signal_when((plan.folder.cell("seed-0") / "ready").exists, signal.SIGUSR1)
    train = fake(tmp_path, body + '(folder / "ready").touch()\n' + WAIT)
    if cells == "0":
        assert statuses(run_study(plan, View(), train=train)) == {"seed-0": "finished"}
    else:
        with pytest.raises(StoppedBySignal, match="cell seed-0: finished before the time limit of its job; run the"):
            run_study(plan, View(), train=train)
    thread.join()
    assert states(plan) == ["finished", "never run"][: len(plan.chosen)]


def test_an_error_of_the_runner_ends_the_other_cells(tmp_path: Path) -> None:
    plan, waits = plan_of(tmp_path), fake(tmp_path, WAIT)
    calls: list[Path] = []

    def train(settings: Path, folder: Path) -> list[str]:
        calls.append(folder)
        if folder.name == "seed-1" and calls.count(folder) > 1:  # the first call checks the command
            wait_until(lambda: plan.folder.state("seed-0").status == "running", 60)
            raise RuntimeError("on purpose")
        return waits(settings, folder)

    with pytest.raises(RuntimeError, match="on purpose"):
        run_study(plan, View(), jobs=2, train=train)
    assert plan.folder.state("seed-0").status == "interrupted"


def test_cells_whose_times_are_compared_do_not_run_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"--jobs = 2: 1 for a study that compares times"):
        run_study(plan_of(tmp_path, study_of(tmp_path, "ranks = [1, 2]")), View(), jobs=2)
    assert not (tmp_path / "out").exists()
