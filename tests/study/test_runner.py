"""The runner of a study: which cells run, their results, and failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hybridnn.errors import EnvironmentProblem, SettingError
from hybridnn.study.cells import Cell
from hybridnn.study.runner import CellOutcome, StudyRun, default_folder, plan_study, run_study
from hybridnn.study.study_file import Study, load_study
from hybridnn.study.study_folder import StudyFolder, read_manifest
from mpi_runner.slowness import deadline

pytestmark = pytest.mark.timeout(600)

ENV = "env FAKE_RANKS={ranks}"
FAKE = """
import os, sys, time
from pathlib import Path
settings, folder = map(Path, sys.argv[1:])
with open(folder.parent / "calls", "a") as calls:
    calls.write(f"{folder.name} on {os.environ['FAKE_RANKS']}\\n")
assert settings.read_text()
"""
FINISH = 'time.sleep(0.05)\n(folder / "history.jsonl").write_text(\'{"kind": "end"}\\n\')\n'
CRASH = """
if "seed-1" in folder.name:
    (folder / "history.jsonl").write_text("half a line")
    print("Traceback", file=sys.stderr)
    print("Error: broken on purpose", file=sys.stderr)
    print("a message of the launcher", file=sys.stderr)
    sys.exit(3)
"""
Train = Callable[[Path, Path], list[str]]


class View:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_start(self, cells: int) -> None:
        self.calls.append(f"{cells} missing")

    def on_cell_start(self, cell: Cell) -> None:
        self.calls.append(f"start {cell.id}")

    def on_cell_end(self, outcome: CellOutcome) -> None:
        self.calls.append(f"{outcome.status} {outcome.cell.id}")


def _study(tmp_path: Path, axes: str = "seeds = [0, 1, 2]", base: str = "") -> Study:
    (tmp_path / "study.toml").write_text(f'name = "s"\nbase = {{{base}}}\naxes = {{{axes}}}')
    return load_study(tmp_path / "study.toml")


def _fake(tmp_path: Path, body: str = FINISH) -> Train:
    script = tmp_path / "fake_train.py"
    script.write_text(FAKE + body)
    return lambda settings, folder: [sys.executable, str(script), str(settings), str(folder)]


def _plan(tmp_path: Path, study: Study | None = None, **options: str) -> StudyRun:
    return plan_study(study or _study(tmp_path), tmp_path / "out", options.pop("launcher", ENV), **options)


def _calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "out" / "cells" / "calls"
    return path.read_text().splitlines() if path.exists() else []


def _statuses(outcomes: list[CellOutcome]) -> dict[str, str]:
    return {outcome.cell.id: outcome.status for outcome in outcomes}


def test_every_cell_runs_once_on_its_ranks(tmp_path: Path) -> None:
    study, view, train = _study(tmp_path, "ranks = [1, 4], seeds = [0]"), View(), _fake(tmp_path)
    outcomes = run_study(_plan(tmp_path, study), view, train=train)
    assert _statuses(outcomes) == {"ranks-1_seed-0": "finished", "ranks-4_seed-0": "finished"}
    assert _calls(tmp_path) == ["ranks-1_seed-0 on 1", "ranks-4_seed-0 on 4"]
    assert view.calls == [
        "2 missing",
        *("start ranks-1_seed-0", "finished ranks-1_seed-0"),
        *("start ranks-4_seed-0", "finished ranks-4_seed-0"),
    ]
    assert run_study(_plan(tmp_path, study), View(), train=train) == []
    assert len(_calls(tmp_path)) == 2


def test_manifest_names_every_cell(tmp_path: Path) -> None:
    run_study(_plan(tmp_path, only="seed-2"), View(), train=_fake(tmp_path))
    manifest = read_manifest(tmp_path / "out")
    assert [(cell.id, cell.ranks, cell.values) for cell in manifest.cells] == [
        (f"seed-{seed}", 1, {"seed": seed}) for seed in (0, 1, 2)
    ]
    assert (manifest.name, manifest.reduced) == ("s", False)


def test_crash_is_reported_and_the_other_cells_run(tmp_path: Path) -> None:
    outcomes = run_study(_plan(tmp_path), View(), train=_fake(tmp_path, CRASH + FINISH))
    assert _statuses(outcomes) == {"seed-0": "finished", "seed-1": "failed", "seed-2": "finished"}
    assert outcomes[1].reason == "exit code 3: Error: broken on purpose"
    folder = StudyFolder(tmp_path / "out")
    assert folder.state("seed-1").status == "failed"
    assert "Traceback" in (folder.cell("seed-1") / "stderr.log").read_text()


def test_only_missing_cells_are_run_again(tmp_path: Path) -> None:
    run_study(_plan(tmp_path), View(), train=_fake(tmp_path, CRASH + FINISH))
    outcomes = run_study(_plan(tmp_path), View(), train=_fake(tmp_path))
    assert _statuses(outcomes) == {"seed-1": "finished"}
    assert _calls(tmp_path) == [f"seed-{seed} on 1" for seed in (0, 1, 2, 1)]
    assert StudyFolder(tmp_path / "out").state("seed-1").status == "finished"


def test_files_of_an_unfinished_run_are_removed(tmp_path: Path) -> None:
    cell = tmp_path / "out" / "cells" / "seed-0"
    cell.mkdir(parents=True)
    for name in ("weights.npz", "history.jsonl", "failure.txt"):
        (cell / name).write_text("left over")
    checks = 'assert not any((folder / name).exists() for name in ("weights.npz", "history.jsonl", "failure.txt"))\n'
    outcomes = run_study(_plan(tmp_path, only="seed-0"), View(), train=_fake(tmp_path, checks + FINISH))
    assert _statuses(outcomes) == {"seed-0": "finished"}


def test_exit_code_zero_without_a_finished_run_is_a_failure(tmp_path: Path) -> None:
    (outcome,) = run_study(_plan(tmp_path, only="seed-0"), View(), train=_fake(tmp_path, ""))
    assert (outcome.status, outcome.reason) == ("failed", "exit code 0: it printed no error")


def test_cell_is_ended_at_the_limit(tmp_path: Path) -> None:
    body = 'if "seed-0" in folder.name:\n    time.sleep(3600)\n' + FINISH
    start = time.monotonic()
    outcomes = run_study(_plan(tmp_path), View(), limit=1.5, train=_fake(tmp_path, body))
    assert time.monotonic() - start < deadline(30)
    assert _statuses(outcomes) == {"seed-0": "timed out", "seed-1": "finished", "seed-2": "finished"}
    assert outcomes[0].reason.startswith("ended after the limit of 1.5 s")


def test_two_runners_at_once_share_the_cells(tmp_path: Path) -> None:
    study = _study(tmp_path, "seeds = [0, 1, 2, 3, 4]")
    plans = [_plan(tmp_path, study) for _ in range(2)]
    train = _fake(tmp_path)
    found: list[list[CellOutcome]] = [[], []]

    def work(number: int) -> None:
        found[number] = run_study(plans[number], View(), train=train)

    threads = [threading.Thread(target=work, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline(60))
    assert sorted(_calls(tmp_path)) == [f"seed-{seed} on 1" for seed in range(5)]
    assert {outcome.status for outcomes in found for outcome in outcomes} <= {"finished", "held"}


def test_cell_that_another_process_holds_is_not_run(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from hybridnn.study.study_folder import StudyFolder\n"
        "with StudyFolder(Path(sys.argv[1])).lock('seed-1'): print('held', flush=True); time.sleep(3600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        outcomes = run_study(_plan(tmp_path), View(), train=_fake(tmp_path))
        assert _statuses(outcomes) == {"seed-0": "finished", "seed-1": "held", "seed-2": "finished"}
        assert f"process {holder.pid} on " in outcomes[1].reason
    finally:
        holder.kill()
        holder.communicate()
    # Its lock file is still there, and not locked.
    assert (tmp_path / "out" / "cells" / "seed-1" / "lock").exists()
    assert _statuses(run_study(_plan(tmp_path), View(), train=_fake(tmp_path))) == {"seed-1": "finished"}


def test_run_that_outlives_its_study_still_holds_its_cell(tmp_path: Path) -> None:
    train = _fake(tmp_path, "time.sleep(3600)\n")
    plan = _plan(tmp_path, only="seed-0")
    code = (
        "import sys; sys.path[:0] = sys.argv[3:]; from pathlib import Path\n"
        "from hybridnn.study.runner import plan_study, run_study\n"
        "from hybridnn.study.study_file import load_study\n"
        "class View:\n    on_start = on_cell_start = on_cell_end = lambda self, x: None\n"
        "run = plan_study(load_study(sys.argv[1] + '/study.toml'), Path(sys.argv[1]) / 'out', "
        f"{ENV!r}, 'seed-0')\n"
        "run_study(run, View(), train=lambda s, f: [sys.executable, sys.argv[2], str(s), str(f)])\n"
    )
    script = str(tmp_path / "fake_train.py")
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), script])
    try:
        _wait_for(lambda: bool(_calls(tmp_path)))
    finally:
        parent.kill()
        parent.wait()
    outcomes = run_study(plan, View(), train=train)
    assert _statuses(outcomes) == {"seed-0": "held"}
    children = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _runs(int(pid), script)]
    assert len(children) == 1
    os.kill(children[0], signal.SIGKILL)
    _wait_for(lambda: _statuses(run_study(plan, View(), train=_fake(tmp_path))) != {"seed-0": "held"})
    assert StudyFolder(tmp_path / "out").state("seed-0").status == "finished"


def _runs(pid: int, script: str) -> bool:
    try:
        return script in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + deadline(60)
    while not condition():
        assert time.monotonic() < end, "the condition was not met"
        time.sleep(0.1)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGINT, which programs in the background of a shell ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])  # from the terminal; from a batch system
def test_interrupt_ends_the_cell_and_keeps_the_finished_ones(tmp_path: Path, interruptible: None, number: int) -> None:
    body = (
        'if "seed-1" in folder.name:\n    (folder / "pid").write_text(str(os.getpid()))\n    time.sleep(3600)\n'
        + FINISH
    )
    pid_file = tmp_path / "out" / "cells" / "seed-1" / "pid"

    def interrupt() -> None:
        _wait_for(lambda: pid_file.exists() and bool(pid_file.read_text()))
        # A signal to the process might be handled in this thread, and not wake the main one, which waits for the cell.
        signal.pthread_kill(main, number)

    main = threading.main_thread().ident
    assert main is not None
    plan, train = _plan(tmp_path), _fake(tmp_path, body)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_study(plan, View(), train=train)
    thread.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
    folder = StudyFolder(tmp_path / "out")
    assert [folder.state(f"seed-{seed}").status for seed in (0, 1, 2)] == ["finished", "interrupted", "never run"]
    assert folder.state("seed-1").reason == f"ended by {signal.Signals(number).name}"


def test_finished_cells_of_other_settings_are_refused(tmp_path: Path) -> None:
    run_study(_plan(tmp_path), View(), train=_fake(tmp_path))
    changed = _study(tmp_path, base="training = {epochs = 3}")
    with pytest.raises(SettingError, match=r"cell seed-0 ran with other settings: training\.epochs was 10, is 3"):
        _plan(tmp_path, changed)
    more = _study(tmp_path, "seeds = [0, 1, 2, 3]")
    assert _statuses(run_study(_plan(tmp_path, more), View(), train=_fake(tmp_path))) == {"seed-3": "finished"}


def test_unfinished_cells_take_new_settings(tmp_path: Path) -> None:
    run_study(_plan(tmp_path, only="seed-0"), View(), train=_fake(tmp_path, ""))
    run_study(_plan(tmp_path, _study(tmp_path, base="training = {epochs = 3}")), View(), train=_fake(tmp_path))
    assert "epochs = 3" in (tmp_path / "out" / "cells" / "seed-0" / "settings.toml").read_text()


def test_folder_of_another_study_is_refused(tmp_path: Path) -> None:
    run_study(_plan(tmp_path), View(), train=_fake(tmp_path))
    (tmp_path / "study.toml").write_text('name = "other"\naxes = {seeds = [5]}')
    with pytest.raises(SettingError, match=r"holds another study \(s\)"):
        _plan(tmp_path, load_study(tmp_path / "study.toml"))


def test_only_is_a_part_of_the_id_or_a_pattern(tmp_path: Path) -> None:
    study = _study(tmp_path, "ranks = [1, 2], seeds = [1, 2]")
    for pattern, count in (("ranks-2", 2), ("*-1", 2), ("ranks-1_seed-2", 1), ("ranks-?_seed-*", 4)):
        assert len(_plan(tmp_path, study, only=pattern).chosen) == count
    with pytest.raises(SettingError, match="matches no cell; the first of 4 is ranks-1_seed-1"):
        _plan(tmp_path, study, only="grid")


@pytest.mark.parametrize(
    ("launcher", "error", "message"),
    [
        ("env", SettingError, r"must hold \{ranks\}"),
        ("env '{ranks}", SettingError, "cannot be split into words"),
        ("no-such-launcher -n {ranks}", EnvironmentProblem, "there is no program 'no-such-launcher'"),
    ],
)
def test_launcher_is_checked_before_anything_runs(
    tmp_path: Path, launcher: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _plan(tmp_path, _study(tmp_path, "ranks = [2]"), launcher=launcher)
    assert not (tmp_path / "out").exists()


def test_reduced_study_has_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('name = "s"\naxes = {seeds = [1]}\nreduced = {}')
    assert default_folder(load_study(tmp_path / "s.toml")) == Path("runs/studies/s")
    assert default_folder(load_study(tmp_path / "s.toml", reduced=True)) == Path("runs/studies/s-reduced")


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(SettingError, match="is a file, not a folder"):
        _plan(tmp_path)
    (tmp_path / "out").unlink()
    plan = _plan(tmp_path)
    (tmp_path / "out").write_text("a file")
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        run_study(plan, View(), train=_fake(tmp_path))
