"""Cells of studies whose trainings are small programs: what they do is chosen, and no training takes time."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from hybridnn.study.cells import Cell
from hybridnn.study.runner import CellOutcome, StudyRun, StudyView, TrainCommand, plan_study
from hybridnn.study.study_file import Study, load_study
from mpi_runner.slowness import wait_until

ENV = "env FAKE_RANKS={ranks}"
_BEGIN = """
import os, sys, time
from pathlib import Path
settings, folder = map(Path, sys.argv[1:3])
out = folder.parents[2 if folder.name == "repeat" else 1]
with open(out / "calls", "a") as calls:
    calls.write(f"{folder.name} on {os.environ['FAKE_RANKS']}\\n")
assert settings.read_text()
(folder / "here").write_text(str(os.getpid()))
"""
FINISH = '(folder / "history.jsonl").write_text(\'{"kind": "end"}\\n\')\n'
WAIT = "time.sleep(3600)\n"
CRASH = """
if "seed-1" in folder.name:
    (folder / "history.jsonl").write_text("half a line")
    print("Traceback", file=sys.stderr)
    print("Error: broken on purpose", file=sys.stderr)
    print("a message of the launcher", file=sys.stderr)
    sys.exit(3)
"""
"""Ends of a training: it finishes, it waits to be ended, and the one with the seed 1 fails."""


class View(StudyView):
    """Records what a study reports, and the threads in which it does."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.threads: set[int | None] = set()

    def on_start(self, cells: int) -> None:
        self.calls.append(f"{cells} missing")

    def on_cell_start(self, cell: Cell) -> None:
        self.calls.append(f"start {cell.id}")
        self.threads.add(threading.current_thread().ident)

    def on_repeat(self, outcome: CellOutcome, number: int) -> None:
        self.calls.append(f"repeat {number}: {outcome.disturbance:.0%}")

    def on_cell_end(self, outcome: CellOutcome) -> None:
        self.calls.append(f"{outcome.status} {outcome.cell.id}")
        self.threads.add(threading.current_thread().ident)


def study_of(tmp_path: Path, axes: str = "seeds = [0, 1, 2]", keys: str = "") -> Study:
    """Return the study of these axes and other keys."""
    (tmp_path / "study.toml").write_text(f'name = "s"\n{keys}\naxes = {{{axes}}}')
    return load_study(tmp_path / "study.toml")


def plan_of(tmp_path: Path, study: Study | None = None, launcher: str = ENV, **options: str) -> StudyRun:
    """Return the plan of a study in the folder ``out``."""
    return plan_study(study or study_of(tmp_path), tmp_path / "out", launcher, **options)


def fake(tmp_path: Path, body: str = FINISH) -> TrainCommand:
    """Return the command of a training that notes its call and its process, and then executes the body."""
    script = tmp_path / "fake_train.py"
    script.write_text(_BEGIN + body)
    return lambda settings, folder: [sys.executable, "-S", str(script), str(settings), str(folder)]


_STUDY = f"""
import sys
from pathlib import Path
from hybridnn.study.runner import StudyView, plan_study, run_study
from hybridnn.study.study_file import load_study
place, cell = Path(sys.argv[1]), sys.argv[2]
plan = plan_study(load_study(place / "study.toml"), place / "out", {ENV!r}, cell)
run_study(plan, StudyView(), train=lambda *paths: [sys.executable, str(place / "fake_train.py"), *map(str, paths)])
"""


def in_a_process(tmp_path: Path, cell: str) -> subprocess.Popen[bytes]:
    """Start a process that runs one cell of the study, with the training that `fake` was called with last."""
    return subprocess.Popen([sys.executable, "-c", _STUDY, str(tmp_path), cell])


def calls_of(tmp_path: Path) -> list[str]:
    """Return the names of the cells that were started, with the ranks that the launcher was told."""
    path = tmp_path / "out" / "calls"
    return path.read_text().splitlines() if path.exists() else []


def statuses(outcomes: list[CellOutcome]) -> dict[str, str]:
    """Return the status of every outcome, by the name of its cell."""
    return {outcome.cell.id: outcome.status for outcome in outcomes}


def states(plan: StudyRun) -> list[str]:
    """Return the status of every chosen cell in the folder."""
    return [plan.folder.state(cell.id).status for cell in plan.chosen]


def signal_when(condition: Callable[[], bool], number: int) -> threading.Thread:
    """Send a signal to the main thread, which waits for the cells; another one would perhaps not wake it."""
    main = threading.main_thread().ident
    assert main is not None

    def send() -> None:
        wait_until(condition, 60)
        signal.pthread_kill(main, number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread
