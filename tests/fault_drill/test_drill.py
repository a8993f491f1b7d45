"""The fault drill: a short drill, and its detection of errors."""

from __future__ import annotations

import importlib
import json
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from fault_drill import launches
from fault_drill.__main__ import main
from fault_drill.damage import DAMAGES, damage
from fault_drill.finished import Finished, differences, read_finished
from fault_drill.injections import FAULTS, Injection
from fault_drill.launches import launch
from fault_drill.moments import MOMENTS, Moment, watch
from fault_drill.network_faults import NETWORK_FAULTS
from fault_drill.outcomes import Outcome
from fault_drill.recipes import RECIPES, Recipe
from fault_drill.selection import EVERY_FAULT, KIND_OF, SHARES, draw
from fault_drill.tables import markdown
from fault_drill.trials import draw_trial
from mpi_runner.slowness import deadline

NEW = (
    "sys.exit(3)",
    "os._exit(7)",
    "endless loop",
    "no evaluation",
    "learning rate",
    "labels",
    "equal",
    "cut anywhere",
    "cut in its last line",
    "a FIFO",
    "a link to itself",
    "a field forged",
    "nested deep",
    "empty arrays",
)
"""Tested faults of scripts and files; all `FAULTS` are tested."""


@pytest.mark.slow
@pytest.mark.timeout(2500)
@pytest.mark.parametrize("faults", [tuple(FAULTS), NEW], ids=["injected", "scripts and files"])
def test_short_drill_loses_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path, faults: tuple[str, ...]) -> None:
    number = len(faults)
    arguments = ["--trials", str(number), "--seed", "3", "--most-ranks", "2", "--folder", str(tmp_path / "drill")]
    code = main([*arguments, "--faults", ",".join(faults), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    figures = json.loads(out)["all"]
    assert (figures["trials"], figures["named"], figures["ended"]) == (number, number, number)
    assert [figures[name] for name in ("hung", "silent", "traceback", "lost", "failed")] == [0] * 5
    assert figures["injected"] >= number - 2, err  # a run may end before its fault
    assert not (tmp_path / "drill").exists()


# -- drawing ---------------------------------------------------------------------------------------------------


def test_seed_and_number_determine_a_trial_and_all_faults_are_drawn() -> None:
    turns = 10 * sum(SHARES.values())
    drawn = [draw(5, number) for number in range(turns)]
    assert drawn == [draw(5, number) for number in range(turns)]
    assert drawn != [draw(6, number) for number in range(turns)]
    kinds = [KIND_OF[trial.fault] for trial in drawn]
    assert {kind: kinds[: turns // 10].count(kind) for kind in kinds} == SHARES
    assert {trial.fault for trial in drawn} == set(EVERY_FAULT)
    for kind in SHARES:
        often = [sum(trial.fault == name for trial in drawn) for name in EVERY_FAULT if KIND_OF[name] == kind]
        assert max(often) - min(often) <= 1


def test_selected_faults_have_equal_frequency() -> None:
    drawn = [draw(5, number, tuple(FAULTS), evenly=True) for number in range(2 * len(FAULTS))]
    for turn in (drawn[: len(FAULTS)], drawn[len(FAULTS) :]):
        assert {trial.fault for trial in turn} == set(FAULTS)


def test_trials_are_possible() -> None:
    for number in range(400):
        trial = draw_trial(1, number, list(FAULTS)[number % len(FAULTS)], most_ranks=2)
        assert len(trial.recipes) == len(trial.injections) + 1 == len(trial.by_folder) + 1
        assert trial.fault in [injection.fault for injection in trial.injections]
        for injection, recipe in zip(trial.injections, trial.recipes, strict=False):
            assert recipe.ranks <= 2
            assert injection.rank < recipe.ranks
            assert not (MOMENTS[injection.moment].first_rank and injection.rank)
            assert recipe.launched or injection.target != "launcher"
        if not all(recipe.exact for recipe in trial.recipes):
            assert trial.on_one_layout


def test_table_counts_by_kind() -> None:
    def outcome(number: int, **found: Any) -> Outcome:
        return Outcome(draw(5, number), **{"injected": True, "ended": True, "lost": False} | found)

    outcomes = [outcome(number) for number in range(sum(SHARES.values()))]
    outcomes[0] = outcome(0, silent=True, complaints=["exit code 0"], end_seconds=2.55)
    lines = [line.strip("| \n").split(" | ") for line in markdown(outcomes).splitlines()]
    assert lines[0][0] == "kind"
    assert {row[0]: int(row[1]) for row in lines[2:-1]} == SHARES
    every = dict(zip(lines[0], lines[-1], strict=True))
    assert (every["trials"], every["injected"], every["named"]) == (str(len(outcomes)),) * 3
    assert [every[name] for name in ("hangs", "silent", "tracebacks", "lost", "failed")] == ["0", "1", "0", "0", "1"]
    silent = {row[0]: row[lines[0].index("silent")] for row in lines[2:-1]}
    assert silent[KIND_OF[outcomes[0].trial.fault]] == "1"


@pytest.mark.parametrize(("name", "option"), [("no such fault", "--faults"), ("no such kind", "--kinds")])
def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str], name: str, option: str) -> None:
    with pytest.raises(SystemExit):
        main([option, name])
    assert f"{option}: no such name: {name}; there are: kill" in capsys.readouterr().err.replace("rank killed", "kill")


@pytest.mark.parametrize("target", sorted({target for moment in MOMENTS.values() for target in moment.targets}))
def test_moments_are_functions_of_the_program(target: str) -> None:
    module, _, names = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    assert callable(found)


# -- checking of results ---------------------------------------------------------------------------------------------

RECORDS = [
    {"kind": "step", "step": 1, "epoch": 1, "train_loss": 0.5},
    {"kind": "step", "step": 2, "epoch": 1, "train_loss": 0.25},
    {"kind": "epoch", "step": 2, "epoch": 1, "train_loss": 0.375, "test_r2": None},
]
WHOLE = Finished({"layers.0.weight": np.array([[1.0, -2.0]]), "layers.0.bias": np.zeros(1)}, RECORDS)


def changed_weight(change: float) -> Finished:
    return replace(WHOLE, weights=WHOLE.weights | {"layers.0.weight": np.array([[1.0, -2.0 + change]])})


def test_weights_must_be_the_same_bits_or_nearly_the_same_numbers() -> None:
    assert differences(WHOLE, WHOLE, same_bits=True) == []
    assert differences(changed_weight(1e-15), WHOLE, same_bits=True) == ["layers.0.weight: differs by up to 1.11e-15"]
    assert differences(changed_weight(1e-11), WHOLE, same_bits=False) == []
    assert differences(changed_weight(3e-10), WHOLE, same_bits=False) == ["layers.0.weight: differs by up to 3e-10"]
    single = {name: array.astype(np.float32) for name, array in WHOLE.weights.items()}
    assert len(differences(replace(WHOLE, weights=single), WHOLE, same_bits=False)) == 2
    assert "weights of []" in differences(replace(WHOLE, weights={}), WHOLE, same_bits=False)[0]


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        (RECORDS[1:], "missing ['step 1'], twice []"),
        ([RECORDS[0], *RECORDS], "missing [], twice ['step 1']"),
        ([*RECORDS, RECORDS[2]], "missing [], twice ['epoch 1']"),
        ([RECORDS[1], RECORDS[0], RECORDS[2]], "missing [], twice []"),
        ([RECORDS[0] | {"train_loss": 0.5000001}, *RECORDS[1:]], "train_loss of step 1 is 0.5000001, not 0.5"),
        ([RECORDS[0] | {"epoch": 2}, *RECORDS[1:]], "epoch of step 1 is 2, not 1"),
    ],
)
def test_history_must_be_without_gap_or_duplicate(records: list[dict[str, Any]], complaint: str) -> None:
    for same_bits in (True, False):
        (output,) = differences(replace(WHOLE, records=records), WHOLE, same_bits=same_bits)
        assert complaint in output


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    """A run folder as `WHOLE`."""
    lines = [*RECORDS, {"kind": "end", "steps": 2}]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    np.savez(tmp_path / "weights.npz", allow_pickle=False, **WHOLE.weights)
    (tmp_path / "checkpoints" / "step-00000002").mkdir(parents=True)
    return tmp_path


def test_run_folder_is_read(ended: Path) -> None:
    assert differences(read_finished(ended), WHOLE, same_bits=True) == []


def test_unfinished_run_is_refused(ended: Path) -> None:
    (ended / ".lock").touch()
    (ended / "checkpoints" / ".step-00000003.partial").mkdir()
    with pytest.raises(ValueError, match=r"left over: .step-00000003.partial"):
        read_finished(ended)
    shutil.rmtree(ended / "checkpoints")
    (ended / "history.jsonl").write_text(json.dumps(RECORDS[0]) + "\n")
    with pytest.raises(ValueError, match="of kind 'step'"):
        read_finished(ended)


def injection(fault: str, **changes: Any) -> Injection:
    drawn = Injection(fault, "an update", 1, 1, None, FAULTS[fault].signals, FAULTS[fault].target, 0.0, 0, DAMAGES[0])
    return replace(drawn, **changes)


PAIR = next(recipe for recipe in RECIPES if recipe.ranks == 2)
ALONE = next(recipe for recipe in RECIPES if not recipe.launched)


@pytest.mark.parametrize(
    ("fault", "recipe", "code", "output", "right"),
    [
        ("rank killed", PAIR, 137, "a process exited on signal 9 (Killed).", True),
        ("rank killed", PAIR, 0, "a process exited on signal 9 (Killed).", False),
        ("rank killed", PAIR, 1, "something failed", False),
        ("rank killed", ALONE, -9, "", True),
        ("rank killed", ALONE, 1, "Traceback", False),
        ("rank stopped", PAIR, 1, "* rank 1 (host a, process 7) gave no sign: stopped, dead or swapping", True),
        ("rank stopped", PAIR, 1, "* rank 0 (host a, process 6) gave no sign: stopped, dead or swapping", False),
        ("exception", PAIR, 1, "=== rank 1 of 2 failed; ending ===\nRuntimeError: fault injected by the drill", True),
        ("exception", PAIR, 1, "=== rank 0 of 2 failed; ending ===\nRuntimeError: fault injected by the drill", False),
        ("exception", PAIR, 1, "=== rank 1 of 2 failed; ending ===\nKeyError: 3", False),
        ("signal", PAIR, 75, "Error: stopped by SIGTERM after step 5; wrote a; go on", True),
        ("signal", PAIR, 143, "Error: stopped by SIGTERM after step 5; wrote a; go on", False),
        ("signal", ALONE, -15, "", False),
        ("second signal", ALONE, -15, "", True),
        ("disk full", PAIR, 2, "Error: cannot be written: No space left on device", True),
        ("disk full", PAIR, 1, "Traceback: No space left on device", False),
        ("rank delayed", PAIR, 0, "", True),
        ("rank delayed", PAIR, 1, "the job stood still", False),
    ],
)
def test_every_fault_must_be_named(fault: str, recipe: Recipe, code: int, output: str, right: bool) -> None:
    assert (injection(fault).complaint(code, output, recipe) is None) == right


NO_SIGN = "* ranks 2, 3 (host node2, process 29; host node2, process 28) gave no sign: stopped, dead or swapping"
APART = "* hosts node1, node2 do not reach each other: nothing is acknowledged; ranks 1-3 sent data again and again"
UNREACHED = "* host node2 cannot be reached: nothing is acknowledged between it and node1, node4"
NO_DAEMON = "A daemon failed to report back after being spawned\n  Local host:  head\n  Remote host: node2\n"
LOST_DAEMON = """PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-head-9@0,0] on node head
  Remote daemon: [prterun-head-9@0,2] on node node2
"""
NO_MEMORY = "there is not enough space for /dev/shm/sm.node2.0.1\n\n  Local host:  node2\n"


@pytest.mark.parametrize(
    ("fault", "code", "output", "named"),
    [
        ("link cut", 1, NO_SIGN, "node2"),
        ("link cut", 1, APART, "node1 node2"),
        ("link cut", 1, UNREACHED, "node2"),
        ("node lost", 1, "=== no answer from node2 (10.99.0.2) for 5 s: it or its network is down", "node2"),
        ("link cut", 2, UNREACHED, ""),
        ("link cut", 0, UNREACHED, ""),
        ("link cut", 1, "* all ranks entered allreduce 3 of group batch on node1, node2", ""),
        ("node killed", 1, LOST_DAEMON, "node2"),
        ("node killed", 1, NO_DAEMON, "node2"),
        ("node killed", 0, LOST_DAEMON, ""),
        ("node killed", 1, "mpirun -host node1,node2", ""),
        ("node disk full at start", 213, NO_DAEMON, "node2"),
        ("node disk full at start", 213, "Remote host: node2", ""),
        ("node memory small", 1, NO_MEMORY, "node2"),
        ("node memory small", 2, "Error on rank 2 on node2: the node's shared memory has no room for 3 bytes", "node2"),
        ("node memory small", 0, "", "node1 node2"),
        ("link slow", 1, UNREACHED, ""),
        ("run disk full", 2, "Error: run: cannot be written: No space left on device", "node1 node2"),
        ("run disk full", 1, "Error: run: cannot be written: No space left on device", ""),
    ],
)
def test_the_node_of_a_fault_must_be_named(fault: str, code: int, output: str, named: str) -> None:
    """Other nodes, other exit codes and the bare name of the node are errors."""
    right = [node for node in ("node1", "node2") if NETWORK_FAULTS[fault].complaint(code, output, node) is None]
    assert right == named.split()


def test_faults_of_networks_come_after_the_first_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(Path, "touch", Path.touch)  # restored afterwards
    monkeypatch.setitem(MOMENTS, "a file is touched", Moment("training", ("pathlib:Path.touch",)))
    watch("a file is touched", 2, lambda: seen.append(number), after=tmp_path)
    for number in range(6):
        (tmp_path / "file").touch()
        if number == 2:
            (tmp_path / "checkpoints" / "step-00000005").mkdir(parents=True)
    assert seen == [4]


WRONG_CLOCK = """
import os, sys, time
from pathlib import Path
from fault_drill.clocks import shift_clock
right = time.time()
shift_clock(-7.5)
from datetime import datetime
for number, rename in enumerate((os.replace, os.rename, Path.rename)):
    Path("partial").touch()
    rename(Path("partial"), Path(str(number)))
times = [time.time(), datetime.now().timestamp(), *(Path(str(number)).stat().st_mtime for number in range(3))]
print(*(round((found - right) / 360) for found in times))
"""


def test_a_wrong_clock_dates_records_and_files(tmp_path: Path) -> None:
    done = launch(PROGRAM, [WRONG_CLOCK], None, tmp_path, "run", deadline(60))
    assert (done.code, done.output) == (0, "-75 -75 -75 -75 -75\n")


@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_done_to_the_newest_checkpoint(tmp_path: Path, how: str) -> None:
    def contents() -> dict[str, bytes]:
        return {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}

    for step in (3, 10):
        folder = tmp_path / "checkpoints" / f"step-{step:08d}"
        assert damage(tmp_path, how, Random(0)) is None  # the only checkpoint is not damaged
        folder.mkdir(parents=True)
        for name in ("layers.0.weight.npy", "layers.0.bias.npy", "manifest.json"):
            (folder / name).write_bytes(b"as it was written")
    before = contents()
    name = damage(tmp_path, how, Random(0))
    after = contents()
    assert [name for name in before if after.get(name) != before[name]] == [f"checkpoints/{name}"]
    assert str(name).startswith("step-00000010/")


# -- running of jobs --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program(Recipe):
    """A program of one process instead of a training."""

    def command(self, orders: str, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", *arguments]


PROGRAM = Program("a program", (1, 1, 1), launched=False)


def test_program_that_does_not_end_is_ended_and_named(tmp_path: Path) -> None:
    done = launch(PROGRAM, ["import time; print('begun', flush=True); time.sleep(3600)"], None, tmp_path, "run", 2.0)
    assert done.hung == "the job did not end within 2 s"
    assert "begun" in done.output
    assert done.seconds < deadline(30)


def test_process_that_outlives_its_launcher_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "SECONDS_TO_GO", 0.5)
    program = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])"
    done = launch(PROGRAM, [program], None, tmp_path, "run", deadline(60))
    assert "lived on for 0.5 s after their launcher" in str(done.hung)


PROGRAM_WITH_FAULT = """
import signal, sys, time
from fault_drill.rank import _injection, _write_marker
from pathlib import Path
markers = Path("run-markers")
_write_marker(markers, "process-0")
{before}
_injection(markers, 0, None, waits=True)()
print("went on", flush=True)
{after}
"""


@pytest.mark.parametrize(
    ("fault", "before", "after", "code", "output"),
    [
        ("rank killed", "", "time.sleep(3600)", -signal.SIGKILL, ""),
        ("rank delayed", "", "", 0, "went on\n"),
        ("signal", "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))", "", 75, ""),
    ],
)
def test_fault_is_injected_at_its_moment(
    tmp_path: Path, fault: str, before: str, after: str, code: int, output: str
) -> None:
    program = PROGRAM_WITH_FAULT.format(before=before, after=after)
    done = launch(PROGRAM, [program], injection(fault, rank=0, pause=0.1), tmp_path, "run", deadline(60))
    assert (done.code, done.output, done.hung) == (code, output, None)
    assert done.seconds_after_fault is not None
