"""Interrupted cells: their recorded state, and their next run by the study."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from hybridnn.errors import SettingError, StoppedBySignal
from hybridnn.study.results import read_results
from hybridnn.study.runner import CellOutcome, StudyRun, plan_study, run_study, train_command
from hybridnn.study.study_file import load_study
from hybridnn.study.study_folder import StudyFolder
from reference.command_line import records_of
from reference.finished_runs import write_run
from reference.trained_runs import HYBRIDNN_WITHOUT_CURVE

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

WITHOUT_END = 10**6
STUDY = """
name = "s"
{key}
base.model.hidden = [4]
base.data = {{name = "synthetic", synthetic = {{samples = 20, test_samples = 5}}}}
base.training = {{epochs = {epochs}, batch_size = 20{more}}}
axes = {{seeds = [0]}}
"""
CELL = "seed-0"


class View:
    """Callbacks that do nothing."""

    def on_start(self, cells: int) -> None: ...

    def on_cell_start(self, cell: object) -> None: ...

    def on_cell_end(self, outcome: CellOutcome) -> None: ...


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
        assert [outcome.status for outcome in run_study(plan, View())] == ["timed out"]
    else:
        with pytest.raises(KeyboardInterrupt):
            run_study(plan, View())
    thread.join()
    state = plan.folder.state(CELL)
    assert state.status == ("timed out" if number == signal.SIGUSR1 else "interrupted")
    assert signal.Signals(number).name in state.reason
    assert list((cell / "checkpoints").iterdir())  # with which a run could not start again

    again = _plan(tmp_path, 2)
    assert [outcome.status for outcome in run_study(again, View(), train=_without_picture)] == ["finished"]
    assert [record["epoch"] for record in records_of(cell, "epoch")] == [1, 2]
    assert records_of(cell, "resumed") == []
    assert again.folder.state(CELL).status == "finished"


def test_cell_ended_at_its_limit_starts_again(tmp_path: Path) -> None:
    plan = _plan(tmp_path, WITHOUT_END, more=", checkpoint_every = 1")
    cell = plan.folder.cell(CELL)
    for limit in (4, 8, 16, 32, 64):  # until it is enough for the first step on this machine
        (outcome,) = run_study(plan, View(), limit=limit)
        assert (outcome.status, outcome.reason.partition(":")[0]) == (
            "timed out",
            f"ended after the limit of {limit} s",
        )
        if (cell / "checkpoints").exists() and list((cell / "checkpoints").glob("step-*")):
            break
    else:
        raise AssertionError("no checkpoint within 64 s")
    assert [outcome.status for outcome in run_study(_plan(tmp_path, 2), View(), train=_without_picture)] == ["finished"]
    assert [record["epoch"] for record in records_of(cell, "epoch")] == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_interrupted_cell_of_a_resuming_study_is_resumed(tmp_path: Path, number: int) -> None:
    key = 'interrupted = "resume"'
    plan = _plan(tmp_path, WITHOUT_END, key)
    cell = plan.folder.cell(CELL)
    thread = _interrupt_when_it_trains(cell, number)
    with pytest.raises(StoppedBySignal if number == signal.SIGUSR1 else KeyboardInterrupt) as stopped:
        run_study(plan, View())
    thread.join()
    if number == signal.SIGUSR1:
        assert str(stopped.value).startswith(f"cell {CELL}: ended by SIGUSR1, before the time limit of its job: ")
    done = [record["epoch"] for record in records_of(cell, "epoch")]
    last_step = max(int(path.name.removeprefix("step-")) for path in (cell / "checkpoints").glob("step-*"))

    again = _plan(tmp_path, done[-1] + 2, key)
    assert [outcome.status for outcome in run_study(again, View(), train=_without_picture)] == ["finished"]
    assert [record["step"] for record in records_of(cell, "resumed")] == [last_step]
    assert [record["epoch"] for record in records_of(cell, "epoch")] == list(range(1, done[-1] + 3))


def test_checkpoints_of_any_run_that_was_there_are_cleared(tmp_path: Path) -> None:
    plan = _plan(tmp_path, 2)
    cell = write_run(plan.folder.cell(CELL), ended=False)
    (cell / "checkpoints" / "step-00000001").mkdir(parents=True)
    (cell / "stall").mkdir()
    for name in ("weights.npz", "standardization.npz", "failure.txt"):
        (cell / name).write_text("left over")
    plan.folder.prepare(plan.chosen[0])
    left = {path.name for path in cell.iterdir()}
    assert left == {"config.toml", "settings.toml", "started.json"}


def test_resuming_keeps_a_run_with_checkpoints_and_no_other(tmp_path: Path) -> None:
    plan = _plan(tmp_path, 2, 'interrupted = "resume"')
    cell = write_run(plan.folder.cell(CELL), ended=False)
    (cell / "weights.npz").write_text("left over")
    plan.folder.prepare(plan.chosen[0], resume=True)
    assert not (cell / "history.jsonl").exists()
    assert not (cell / "weights.npz").exists()
    write_run(cell, ended=False)
    (cell / "checkpoints" / "step-00000001").mkdir(parents=True)
    plan.folder.prepare(plan.chosen[0], resume=True)
    assert (cell / "history.jsonl").exists()
    assert (cell / "checkpoints" / "step-00000001").exists()


def test_cell_without_a_recorded_end_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan(tmp_path, 2)
    assert plan.folder.state(CELL).status == "never run"
    monkeypatch.setenv("SLURM_JOB_ID", "70")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "63")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    with plan.folder.lock(CELL):
        plan.folder.prepare(plan.chosen[0])
        running = plan.folder.state(CELL)
        assert (running.status, running.reason.split(" on ")[0]) == ("running", f"process {os.getpid()}")
    state = plan.folder.state(CELL)
    assert state.status == "interrupted"
    assert " by Slurm job 63_1 on " in state.reason
    assert state.reason.endswith("left no end: killed, perhaps at a time limit")


@pytest.mark.parametrize("cells", ["0", "0, 1"])
def test_cell_that_finishes_when_it_is_warned_is_finished(tmp_path: Path, cells: str) -> None:
    file = tmp_path / "s.toml"
    file.write_text(f'name = "s"\ninterrupted = "resume"\naxes = {{seeds = [{cells}]}}')
    plan = plan_study(load_study(file), tmp_path / "out", "env")
    program = (
        "import os, signal, sys, time; from pathlib import Path\n"
        "def end(number, frame):\n"
        "    (Path(sys.argv[1]) / 'history.jsonl').write_text('{\"kind\": \"end\"}\\n')\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGUSR1, end)\n"
        "(Path(sys.argv[1]) / 'history.jsonl').write_text('{\"kind\": \"epoch\"}\\n' * 2)\n"
        "time.sleep(600)\n"
    )
    thread = _interrupt_when_it_trains(plan.folder.cell(CELL), signal.SIGUSR1)

    def train(settings: Path, folder: Path) -> list[str]:
        return ["python3", "-c", program, str(folder)]

    if cells == "0":
        assert [outcome.status for outcome in run_study(plan, View(), train=train)] == ["finished"]
    else:
        with pytest.raises(StoppedBySignal, match="cell seed-0: finished before the time limit of its job; run the"):
            run_study(plan, View(), train=train)
        assert plan.folder.state("seed-1").status == "never run"
    thread.join()
    assert plan.folder.state(CELL).status == "finished"


def test_cell_stopped_by_the_batch_system_is_interrupted(tmp_path: Path) -> None:
    script = "import sys; print('Error: stopped by SIGTERM after step 3; wrote x', file=sys.stderr); sys.exit(75)"
    plan = _plan(tmp_path, 2)
    (outcome,) = run_study(plan, View(), train=lambda settings, folder: ["python3", "-c", script])
    assert (outcome.status, outcome.reason) == (
        "interrupted",
        "exit code 75: Error: stopped by SIGTERM after step 3; wrote x",
    )


def test_file_system_without_locks_is_tolerated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: object, kind: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    plan = _plan(tmp_path, 2)

    def train(settings: Path, folder: Path) -> list[str]:
        write_run(folder)
        return ["true"]

    assert [outcome.status for outcome in run_study(plan, View(), train=train)] == ["finished"]
    assert len(read_results(tmp_path / "out").cells) == 1


def test_threads_of_every_rank_are_those_of_the_study(tmp_path: Path) -> None:
    names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "OMP_NUM_THREADS")
    program = "import os, sys; open(sys.argv[1], 'w').write(' '.join(os.environ[n] for n in sys.argv[2:]))"
    for key, threads in (("", "1"), ("threads = 3", "3")):
        plan = _plan(tmp_path, 2, key)
        run_study(plan, View(), train=lambda settings, folder: ["python3", "-c", program, str(folder / "seen"), *names])
        assert (plan.folder.cell(CELL) / "seen").read_text() == " ".join([threads] * 4)
    folder = StudyFolder(tmp_path / "out")
    write_run(folder.cell(CELL))
    with pytest.raises(SettingError, match=r"threads = 2: in .*out cell seed-0 ran with 3 BLAS threads per rank; name"):
        _plan(tmp_path, 2, "threads = 2")
    assert json.loads((folder.path / "study.json").read_text())["threads"] == 3
