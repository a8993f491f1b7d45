"""Disturbed cells of a study: those beside busy loops are marked, and no quiet ones."""

from __future__ import annotations

import csv
import io
import json
import shlex
import sys
from pathlib import Path

import pytest

from hybridnn.comm.hosts import CPU_COUNTERS, MOST_DISTURBANCE
from hybridnn.runs.run_files import read_run
from hybridnn.study.answer import warnings_of
from hybridnn.study.report import csv_text, point_facts
from hybridnn.study.results import StudyResults, read_results
from hybridnn.study.runner import CellOutcome, StudyView, plan_study, run_study, train_command
from hybridnn.study.study_file import load_study
from reference.trained_runs import HYBRIDNN_WITHOUT_CURVE

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

STUDY = """
name = "loads"
compares = "times"
base.training = {epochs = 150, evaluate_every = 150}
base.model.hidden = [8]
base.data = {name = "synthetic", rows = 4000, synthetic = {test_samples = 50}}
axes = {ranks = [1], widths = [4, 8, 12, 16], repeats = 1}
"""

BESIDE_LOOPS = """
import json, os, resource, subprocess, sys, time
from hybridnn.comm.hosts import CPU_COUNTERS, busy_seconds
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


class View(StudyView):
    def __init__(self) -> None:
        self.outcomes: dict[str, CellOutcome] = {}

    def on_cell_end(self, outcome: CellOutcome) -> None:
        self.outcomes[outcome.cell.id] = outcome


def _marked(results: StudyResults) -> list[str]:
    """The cells that are marked as disturbed, by the results, which the tables and the warning must agree with."""
    marked = [cell.id for cell in results.cells if cell.is_disturbed]
    assert [name for facts in point_facts(results) for name in facts["disturbed_cells"]] == marked
    shares = {row["id"]: float(row["disturbance"]) for row in csv.DictReader(io.StringIO(csv_text(results)))}
    assert [name for name, share in shares.items() if share > MOST_DISTURBANCE] == marked
    warnings = [text for text in warnings_of(results) if "disturbed" in text]
    assert [text.split(" disturbed")[0] for text in warnings] == [f"{len(marked)} of 4 cells"] * bool(marked)
    return marked


def _without_curve(settings: Path, folder: Path) -> list[str]:
    return [*HYBRIDNN_WITHOUT_CURVE, *train_command(settings, folder)[3:]]


@pytest.mark.skipif(not CPU_COUNTERS.exists(), reason="the system does not count the time of its cores")
def test_cells_beside_busy_loops_are_marked_and_no_quiet_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(STUDY)
    Path("beside.py").write_text(BESIDE_LOOPS)
    launcher = f"{shlex.quote(sys.executable)} beside.py {{ranks}}"
    view = View()
    run_study(plan_study(load_study(Path("s.toml")), Path("out"), launcher), view, train=_without_curve)
    others = dict(json.loads(line) for line in Path("others.jsonl").read_text().splitlines())  # of the last repeat
    marked = _marked(read_results(Path("out")))
    for name in view.outcomes:
        run = read_run(Path("out/cells") / name)
        assert run.load is not None
        seconds = sum(epoch.compute_seconds + epoch.communication_seconds for epoch in run.epochs)
        assert [(load.cores, load.threads) for load in run.load.during] == [(1, 1)]
        if name.endswith(("-8", "-16")):
            assert name in marked
            assert "disturbed: processes of others took" in view.outcomes[name].reason
        # On a busy machine others disturb the quiet cells too, which is no mistake.
        elif others[f"out/cells/{name}/settings.toml"] < MOST_DISTURBANCE * seconds:
            assert name not in marked
