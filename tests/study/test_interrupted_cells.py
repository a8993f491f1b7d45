"""Interrupted cells: their recorded state, and their next run by the study."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from hybridnn.errors import StoppedBySignal
from hybridnn.study.runner import StudyRun, StudyView, plan_study, run_study, train_command
from hybridnn.study.study_file import load_study
from reference.command_line import records_of
from reference.trained_runs import HYBRIDNN_WITHOUT_CURVE

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

WITHOUT_END = 10**6
STUDY = """
name = "s"
{key}
base.model.hidden = [4]
base.data = {{name = "synthetic", rows = 20, synthetic = {{test_samples = 5}}}}
base.training = {{epochs = {epochs}, batch_size = 20{more}}}
axes = {{seeds = [0]}}
"""
CELL = "seed-0"


def _plan(tmp_path: Path, epochs: int, key: str = "", more: str = "") -> StudyRun:
    file = tmp_path / "s.toml"
    file.write_text(STUDY.format(key=key, epochs=epochs, more=more))
    return plan_study(load_study(file), tmp_path / "out", "env")


def _without_picture(settings: Path, folder: Path) -> list[str]:
    return [*HYBRIDNN_WITHOUT_CURVE, *train_command(settings, folder)[3:]]


def _interrupt_when_it_trains(cell: Path, number: int) -> threading.Thread:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        end = time.monotonic() + 300
        while len(records_of(cell, "epoch")) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        signal.pthread_kill(main, number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("number", "more"), [(signal.SIGINT, ""), (signal.SIGTERM, ", checkpoint_every = 1"), (signal.SIGUSR1, "")]
)
def test_interrupted_cell_starts_again(tmp_path: Path, number: int, more: str) -> None:
    plan = _plan(tmp_path, WITHOUT_END, more=more)
    cell = plan.folder.cell(CELL)
    thread = _interrupt_when_it_trains(cell, number)
    if number == signal.SIGUSR1:
        assert [outcome.status for outcome in run_study(plan, StudyView())] == ["timed out"]
    else:
        with pytest.raises(KeyboardInterrupt):
            run_study(plan, StudyView())
    thread.join()
    state = plan.folder.state(CELL)
    assert state.status == ("timed out" if number == signal.SIGUSR1 else "interrupted")
    assert signal.Signals(number).name in state.reason
    assert list((cell / "checkpoints").iterdir())  # with which a run could not start again

    again = _plan(tmp_path, 2)
    assert [outcome.status for outcome in run_study(again, StudyView(), train=_without_picture)] == ["finished"]
    assert [record["epoch"] for record in records_of(cell, "epoch")] == [1, 2]
    assert records_of(cell, "resumed") == []
    assert again.folder.state(CELL).status == "finished"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_interrupted_cell_of_a_resuming_study_is_resumed(tmp_path: Path, number: int) -> None:
    key = 'interrupted = "resume"'
    plan = _plan(tmp_path, WITHOUT_END, key)
    cell = plan.folder.cell(CELL)
    thread = _interrupt_when_it_trains(cell, number)
    with pytest.raises(StoppedBySignal if number == signal.SIGUSR1 else KeyboardInterrupt) as stopped:
        run_study(plan, StudyView())
    thread.join()
    if number == signal.SIGUSR1:
        assert str(stopped.value).startswith(f"cell {CELL}: ended by SIGUSR1, before the time limit of its job: ")
    done = [record["epoch"] for record in records_of(cell, "epoch")]
    last_step = max(int(path.name.removeprefix("step-")) for path in (cell / "checkpoints").glob("step-*"))

    again = _plan(tmp_path, done[-1] + 2, key)
    assert [outcome.status for outcome in run_study(again, StudyView(), train=_without_picture)] == ["finished"]
    assert [record["step"] for record in records_of(cell, "resumed")] == [last_step]
    assert [record["epoch"] for record in records_of(cell, "epoch")] == list(range(1, done[-1] + 3))
