"""Cells of real studies that are interrupted or disturbed."""

import csv
import io
import json
import shlex
import signal
import sys
import threading
from pathlib import Path

import pytest

from hybridnn.diagnostics.hosts import CPU_COUNTERS, MOST_DISTURBANCE
from hybridnn.errors import StoppedBySignal
from hybridnn.runs.run_files import read_run
from hybridnn.study.answer import warnings_of
from hybridnn.study.report import csv_text, point_facts
from hybridnn.study.results import StudyResults, read_results
from hybridnn.study.runner import StudyRun, StudyView, plan_study, run_study, train_command
from hybridnn.study.study_file import load_study
from reference.command_line import records_of
from reference.stand_in_cells import signal_when
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
    return signal_when(lambda: len(records_of(cell, "epoch")) >= 2, number)


@pytest.mark.parametrize(
    ("number", "resumes", "more"),
    [
        (signal.SIGINT, False, ""),
        (signal.SIGTERM, False, ", checkpoint_every = 1"),
        (signal.SIGUSR1, False, ""),
        (signal.SIGTERM, True, ""),
        (signal.SIGUSR1, True, ""),
    ],
)
def test_an_interrupted_cell_starts_again_or_is_resumed(tmp_path: Path, number: int, resumes: bool, more: str) -> None:
    key, at_limit = 'interrupted = "resume"' * resumes, number == signal.SIGUSR1
    plan = _plan(tmp_path, WITHOUT_END, key, more)
    cell = plan.folder.cell(CELL)
    thread = _interrupt_when_it_trains(cell, number)
    if at_limit and not resumes:
        assert [outcome.status for outcome in run_study(plan, StudyView())] == ["timed out"]
    else:
        with pytest.raises(StoppedBySignal if at_limit else KeyboardInterrupt) as stopped:
            run_study(plan, StudyView())
        said = f"cell {CELL}: ended by SIGUSR1, before the time limit of its job: "
        assert str(stopped.value).startswith(said) or not at_limit
    thread.join()
    state = plan.folder.state(CELL)
    assert state.status == ("timed out" if at_limit else "interrupted")
    assert signal.Signals(number).name in state.reason
    last_step = max(int(path.name.removeprefix("step-")) for path in (cell / "checkpoints").glob("step-*"))
    epochs = 2 + (records_of(cell, "epoch")[-1]["epoch"] if resumes else 0)

    again = _plan(tmp_path, epochs, key)
    assert [outcome.status for outcome in run_study(again, StudyView(), train=_without_picture)] == ["finished"]
    assert [record["epoch"] for record in records_of(cell, "epoch")] == list(range(1, epochs + 1))
    assert [record["step"] for record in records_of(cell, "resumed")] == [last_step] * resumes
    assert again.folder.state(CELL).status == "finished"


LOADS = """
name = "loads"
compares = "times"
base.training = {epochs = 150, evaluate_every = 150}
base.model.hidden = [8]
base.data = {name = "synthetic", rows = 4000, synthetic = {test_samples = 50}}
axes = {ranks = [1], widths = [4, 8, 12, 16], repeats = 1}
"""

BESIDE_LOOPS = """
import json, os, resource, subprocess, sys, time
from hybridnn.diagnostics.hosts import CPU_COUNTERS, busy_seconds
core = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, {core})
busy = lambda: busy_seconds(CPU_COUNTERS.read_text(), os.sysconf("SC_CLK_TCK"))[core]
own = lambda: sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
is_beside = any(name in word for word in sys.argv for name in ("width-8/", "width-16/"))
loop = f"import os; any(os.getppid() != {os.getpid()} for _ in iter(int, 1))"
loops = [subprocess.Popen([sys.executable, "-S", "-c", loop]) for _ in range(2 * is_beside)]
before = busy() - own()
code = subprocess.run(sys.argv[2:]).returncode
with open("others.jsonl", "a") as file:
    cell = next(word for word in sys.argv if word.endswith("settings.toml"))
    print(json.dumps([cell, busy() - own() - before]), file=file)
for started in loops:
    started.kill()
    started.wait()
sys.exit(code)
"""
"""Launcher of a cell: beside two loops on its core for two of the widths. It writes the seconds of all others there."""


def _marked(results: StudyResults) -> list[str]:
    """The cells that are marked as disturbed, by the results, which the tables and the warning must agree with."""
    marked = [cell.id for cell in results.cells if cell.is_disturbed]
    assert [name for facts in point_facts(results) for name in facts["disturbed_cells"]] == marked
    shares = {row["id"]: float(row["disturbance"]) for row in csv.DictReader(io.StringIO(csv_text(results)))}
    assert [name for name, share in shares.items() if share > MOST_DISTURBANCE] == marked
    warnings = [text for text in warnings_of(results) if "disturbed" in text]
    assert [text.split(" disturbed")[0] for text in warnings] == [f"{len(marked)} of 4 cells"] * bool(marked)
    return marked


@pytest.mark.skipif(not CPU_COUNTERS.exists(), reason="the system does not count the time of its cores")
def test_cells_beside_busy_loops_are_marked_and_no_quiet_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(LOADS)
    Path("beside.py").write_text(BESIDE_LOOPS)
    launcher = f"{shlex.quote(sys.executable)} beside.py {{ranks}}"
    plan = plan_study(load_study(Path("s.toml")), Path("out"), launcher)
    outcomes = run_study(plan, StudyView(), train=_without_picture)
    others = dict(json.loads(line) for line in Path("others.jsonl").read_text().splitlines())  # of the last repeat
    marked = _marked(read_results(Path("out")))
    for name, reason in ((outcome.cell.id, outcome.reason) for outcome in outcomes):
        run = read_run(Path("out/cells") / name)
        seconds = sum(epoch.compute_seconds + epoch.communication_seconds for epoch in run.epochs)
        assert [(load.cores, load.threads) for load in run.load.during] == [(1, 1)]
        if name.endswith(("-8", "-16")):
            assert name in marked
            assert "disturbed: processes of others took" in reason
        # On a busy machine others disturb the quiet cells too, which is no mistake.
        elif others[f"out/cells/{name}/settings.toml"] < MOST_DISTURBANCE * seconds:
            assert name not in marked
