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
from fault_drill.__main__ import main, markdown
from fault_drill.damage import DAMAGES, damage
from fault_drill.finished import Finished, differences, read_finished
from fault_drill.injections import FAULTS, Injection
from fault_drill.launches import Launched, launch
from fault_drill.moments import MOMENTS
from fault_drill.network_faults import NETWORK_FAULTS
from fault_drill.outcomes import Outcome
from fault_drill.recipes import RECIPES, Recipe
from fault_drill.script_trials import SCRIPT, ScriptTrial, _judge, faulty_line, script_text
from fault_drill.selection import EVERY_FAULT, KIND_OF, SHARES, draw
from fault_drill.trials import Trial
from mpi_runner.slowness import deadline

DRILLED = (*FAULTS, "sys.exit(3)", "endless loop", "no evaluation", "labels", "equal")


@pytest.mark.slow
@pytest.mark.timeout(2500)
def test_short_drill_loses_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["--trials", f"{len(DRILLED)}", "--seed", "3", "--most-ranks", "2", "--folder", str(tmp_path / "drill")]
    code = main([*arguments, "--faults", ",".join(DRILLED)])
    out, err = capsys.readouterr()
    assert code == 0, err
    headings, *_, cells = [line.strip("| ").split(" | ") for line in out.splitlines() if line.startswith("|")]
    counts = dict(zip(headings, cells, strict=True))
    assert [counts[name] for name in ("trials", "named", "ended")] == [f"{len(DRILLED)}"] * 3
    assert [counts[name] for name in ("hangs", "silent", "lost", "failed")] == ["0"] * 4
    assert int(counts["injected"]) >= len(DRILLED) - 2, err  # a run may end before its fault
    assert not (tmp_path / "drill").exists()


def test_seed_and_number_determine_a_trial_all_faults_are_drawn_and_their_moments_exist() -> None:
    number = 5 * sum(SHARES.values())
    drawn = [draw(5, index) for index in range(number)]
    assert drawn == [draw(5, index) for index in range(number)]
    assert drawn != [draw(6, index) for index in range(number)]
    assert {trial.fault for trial in drawn} == set(EVERY_FAULT)
    kinds = [KIND_OF[trial.fault] for trial in drawn]
    assert {kind: kinds.count(kind) for kind in kinds} == {kind: 5 * share for kind, share in SHARES.items()}
    for trial in (trial for trial in drawn if isinstance(trial, Trial)):
        assert trial.fault in [injection.fault for injection in trial.injections]
        for injection, recipe in zip(trial.injections, trial.recipes, strict=False):
            assert injection.rank < recipe.ranks
            assert not (MOMENTS[injection.moment].first_rank and injection.rank)
            assert recipe.launched or injection.target != "launcher"
    for module, _, names in (target.partition(":") for moment in MOMENTS.values() for target in moment.targets):
        found: Any = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
        assert callable(found)


def test_the_table_counts_by_kind() -> None:
    outcomes = [Outcome(draw(5, number), injected=True, ended=True, lost=False) for number in range(21)]
    outcomes[0] = replace(outcomes[0], silent=True, complaints=["exit code 0"], end_seconds=2.55)
    headings, _, *rows = [line.strip("| ").split(" | ") for line in markdown(outcomes).splitlines()]
    table = {row[0]: dict(zip(headings, row, strict=True)) for row in rows}
    assert {kind: int(row["trials"]) for kind, row in table.items()} == SHARES | {"all": 21}
    for kind in (KIND_OF[outcomes[0].trial.fault], "all"):
        assert [table[kind][name] for name in ("hangs", "silent", "lost", "failed")] == ["0", "1", "0", "1"]


# -- checking of results ---------------------------------------------------------------------------------------------

RECORDS = [
    {"kind": "step", "step": 1, "epoch": 1, "train_loss": 0.5},
    {"kind": "step", "step": 2, "epoch": 1, "train_loss": 0.25},
    {"kind": "epoch", "step": 2, "epoch": 1, "train_loss": 0.375, "validation_r2": None},
]
WHOLE = Finished({"layers.0.weight": np.array([[1.0, -2.0]]), "layers.0.bias": np.zeros(1)}, RECORDS)


def test_weights_and_history_must_be_those_of_an_undisturbed_run() -> None:
    def changed(change: float) -> Finished:
        return replace(WHOLE, weights=WHOLE.weights | {"layers.0.weight": np.array([[1.0, -2.0 + change]])})

    assert differences(WHOLE, WHOLE, same_bits=True) == differences(changed(1e-11), WHOLE, same_bits=False) == []
    assert differences(changed(1e-15), WHOLE, same_bits=True) == ["layers.0.weight: differs by up to 1.11e-15"]
    assert differences(changed(3e-10), WHOLE, same_bits=False) == ["layers.0.weight: differs by up to 3e-10"]
    for records, complaint in (
        (RECORDS[1:], "missing ['step 1'], twice []"),
        ([*RECORDS, RECORDS[2]], "missing [], twice ['epoch 1']"),
        ([RECORDS[0] | {"train_loss": 0.5000001}, *RECORDS[1:]], "train_loss of step 1 is 0.5000001, not 0.5"),
    ):
        (found,) = differences(replace(WHOLE, records=records), WHOLE, same_bits=False)
        assert complaint in found


def test_an_unfinished_run_folder_is_refused(tmp_path: Path) -> None:
    lines = [*RECORDS, {"kind": "end", "steps": 2}]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    np.savez(tmp_path / "weights.npz", allow_pickle=False, **WHOLE.weights)
    (tmp_path / "checkpoints" / "step-00000002").mkdir(parents=True)
    assert differences(read_finished(tmp_path), WHOLE, same_bits=True) == []
    (tmp_path / "checkpoints" / ".step-00000003.partial").mkdir()
    with pytest.raises(ValueError, match=r"left over: .step-00000003.partial"):
        read_finished(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "history.jsonl").write_text(json.dumps(RECORDS[0]) + "\n")
    with pytest.raises(ValueError, match="of kind 'step'"):
        read_finished(tmp_path)


def injection(fault: str, **changes: Any) -> Injection:
    drawn = Injection(fault, "an update", 1, 1, None, FAULTS[fault].signals, FAULTS[fault].target, 0.0, 0, DAMAGES[0])
    return replace(drawn, **changes)


def test_every_fault_must_be_named() -> None:
    """By the expected exit code and its own rank or node: other ranks, nodes and codes are errors."""
    pair = next(recipe for recipe in RECIPES if recipe.ranks == 2)
    for fault, code, output, right in (
        ("rank killed", 137, "a process exited on signal 9 (Killed).", True),
        ("rank killed", 0, "a process exited on signal 9 (Killed).", False),
        ("rank stopped", 1, "* rank 1 (host a, process 7) gave no sign: stopped, dead or swapping", True),
        ("rank stopped", 1, "* rank 0 (host a, process 6) gave no sign: stopped, dead or swapping", False),
        ("exception", 1, "=== rank 1 of 2 failed; ending ===\nRuntimeError: fault injected by the drill", True),
        ("exception", 1, "=== rank 1 of 2 failed; ending ===\nKeyError: 3", False),
        ("rank delayed", 1, "the job stood still", False),
    ):
        assert (injection(fault).complaint(code, output, pair) is None) == right, (fault, code, output)
    for fault, code, output, node in (
        ("link cut", 1, "* host node2 cannot be reached: nothing is acknowledged", "node2"),
        ("link cut", 0, "* host node2 cannot be reached: nothing is acknowledged", ""),
        ("link slow", 1, "* host node2 cannot be reached: nothing is acknowledged", ""),
        ("node disk full at start", 213, "A daemon failed to report back\n  Remote host: node2\n", "node2"),
    ):
        found = [name for name in ("node1", "node2") if not NETWORK_FAULTS[fault].complaint(code, output, name)]
        assert found == node.split(), (fault, code, output)


@pytest.mark.parametrize(
    ("fault", "code", "output", "complaint"),
    [
        ("sys.exit(3)", 1, "=== rank 1 left with exit code 3 while others were in a collective ===", ""),
        ("sys.exit(3)", 1, "=== rank 0 left with exit code 3 while others were in a collective ===", "the output has"),
        ("sys.exit(3)", 0, "", "exit code 0: no error"),
        ("long sleep", 1, "* rank 1 did not arrive: at job.py:LINE in on_train_batch_end", ""),
        ("long sleep", 1, "* rank 1 did not arrive: at job.py:3 in on_train_batch_end", "the output has"),
        ("equal", 0, "", ""),
        ("equal", 1, "SettingError: learning rate", "exit code 1 of a script that must train"),
    ],
)
def test_the_end_of_a_script_is_judged(tmp_path: Path, fault: str, code: int, output: str, complaint: str) -> None:
    text = script_text(fault, grid={"batch": 2}, rank=1, step=3, place="in_step", markers="markers", limits={})
    (tmp_path / SCRIPT).write_text(text)
    np.savez(tmp_path / "weights.npz", allow_pickle=False, **WHOLE.weights)
    trial = ScriptTrial(1, 0, fault, ("batch", 2), 1, 3, "in_step")
    outcome = Outcome(trial, injected=True, end_seconds=2.0)
    done = Launched(code, output.replace("LINE", f"{faulty_line(text)}"), 2.0, 2.0, None)
    _judge(done, trial, tmp_path, WHOLE.weights, outcome)
    assert len(outcome.complaints) == bool(complaint)
    assert "".join(outcome.complaints).startswith(complaint)
    assert outcome.silent == complaint.endswith("no error")


def test_damage_is_done_to_the_newest_of_several_checkpoints(tmp_path: Path) -> None:
    for number, how in enumerate(DAMAGES):
        files = []
        for step in (3, 10):
            assert damage(tmp_path / f"{number}", how, Random(0)) is None  # the only checkpoint is not damaged
            folder = tmp_path / f"{number}" / "checkpoints" / f"step-{step:08d}"
            folder.mkdir(parents=True)
            files += [folder / name for name in ("layers.0.weight.npy", "layers.0.bias.npy", "manifest.json")]
            for file in files[-3:]:
                file.write_bytes(b"as it was written")
        name = damage(tmp_path / f"{number}", how, Random(0))
        changed = [file for file in files if not file.exists() or file.read_bytes() != b"as it was written"]
        assert [f"step-00000010/{file.name}" for file in changed] == [name]


# -- running of jobs --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program(Recipe):
    """A program of one process instead of a training."""

    def command(self, orders: str, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", *arguments]


PROGRAM = Program("a program", (1, 1, 1), launched=False)


def test_what_does_not_end_is_ended_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "SECONDS_TO_GO", 0.5)
    done = launch(PROGRAM, ["import time; print('begun', flush=True); time.sleep(3600)"], None, tmp_path, "run", 2.0)
    assert done.hung == "the job did not end within 2 s"
    program = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])"
    done = launch(PROGRAM, [program], None, tmp_path, "other", deadline(60))
    assert "lived on for " in str(done.hung)


WAITS = """
import time
from fault_drill.clocks import shift_clock
from fault_drill.rank import _injection, _write_marker
from pathlib import Path
markers, right = Path("run-markers"), time.time()
shift_clock(-7.5)
_write_marker(markers, "process-0")
print(round((time.time() - right) / 360), round((markers / "process-0").stat().st_mtime - time.time()), flush=True)
_injection(markers, 0, None, waits=True)()
time.sleep(3600)
"""


def test_a_fault_is_injected_at_its_moment_whatever_the_clock(tmp_path: Path) -> None:
    done = launch(PROGRAM, [WAITS], injection("rank killed", rank=0), tmp_path, "run", deadline(60))
    assert (done.code, done.output, done.hung) == (-signal.SIGKILL, "-75 0\n", None)
    assert done.seconds_after_fault is not None
