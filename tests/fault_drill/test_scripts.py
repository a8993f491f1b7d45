"""Scripts of the drill, the faults of their ranks, and the checks of their end."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from fault_drill.launches import Launched
from fault_drill.outcomes import Outcome
from fault_drill.script import DIFFER, EXIT, LOOP, PLACES, RANK_FAULTS, faulty_line, script_text
from fault_drill.script_trials import SCRIPT, ScriptTrial, _judge, draw_script_trial

WEIGHTS = {"layers.0.weight": np.arange(4.0)}


def text_of(fault: str | None, place: str = "in_step") -> str:
    return script_text(fault, grid={"batch": 2}, rank=1, step=3, place=place, markers="markers", stall_settings={})


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", RANK_FAULTS)
def test_scripts_are_programs_with_a_fault_in_one_rank(fault: str, place: str) -> None:
    text = text_of(fault, place)
    ast.parse(text)
    added = set(text.splitlines()) - set(text_of(None, place).splitlines())
    assert any("here()" in line for line in added)
    assert any(RANK_FAULTS[fault].does in line for line in added)
    if RANK_FAULTS[fault].at_line:
        assert RANK_FAULTS[fault].does in text.splitlines()[faulty_line(text) - 1]


def test_every_trial_of_a_script_is_possible() -> None:
    for number in range(200):
        trial = draw_script_trial(1, number, list(RANK_FAULTS)[number % len(RANK_FAULTS)], most_ranks=2)
        assert trial == draw_script_trial(1, number, trial.fault, most_ranks=2)
        assert trial.rank < trial.grid[1] <= 2


LINE = faulty_line(text_of("long sleep"))


@pytest.mark.parametrize(
    ("fault", "code", "output", "seconds", "complaint"),
    [
        ("sys.exit(3)", 1, "=== rank 1 left with exit code 3 while others were in a collective ===", 2.0, None),
        (
            "sys.exit(3)",
            1,
            "=== rank 0 left with exit code 3 while others were in a collective ===",
            2.0,
            "the output has",
        ),
        ("sys.exit(3)", 1, "=== rank 1 left with exit code 3 ===", 1000.0, "it took 1000.0 s"),
        ("sys.exit(0)", 0, "", 2.0, "exit code 0"),
        (
            "os._exit(7)",
            7,
            "-" * 70 + "\nprterun: rank 1 exited with code 7\n" + "-" * 70,
            0.1,
            "the output has",
        ),
        ("long sleep", 1, f"* rank 1 did not arrive: at {SCRIPT}:{LINE} in in_step", 5.0, None),
        (
            "long sleep",
            1,
            f"* rank 1 did not arrive: at {SCRIPT}:{LINE + 1} in in_step",
            5.0,
            "the output has",
        ),
        ("learning rate", 1, "hybridnn.errors.SettingError: optimizer.lr = 0.06: rank 0 has 0.05", 1.0, None),
        (
            "learning rate",
            1,
            "Traceback:\n    require_same(lr, seed)\nRuntimeError: not the same",
            1.0,
            "the output has",
        ),
        ("learning rate", 0, "", 1.0, "exit code 0: no error"),
        ("equal", 0, "", 1.0, None),
        ("equal", 1, "SettingError: learning rate", 1.0, "exit code 1 of a script that must train"),
        ("streams closed", 0, "", 1.0, None),
        ("streams closed", 1, "the job stood still", 1.0, "the output has"),
    ],
)
def test_check_of_the_end_of_a_script(
    tmp_path: Path, fault: str, code: int, output: str, seconds: float, complaint: str | None
) -> None:
    trial = ScriptTrial(1, 0, fault, ("batch", 2), 1, 3, "in_step")
    (tmp_path / SCRIPT).write_text(text_of(fault))
    np.savez(tmp_path / "weights.npz", allow_pickle=False, **WEIGHTS)
    outcome = Outcome(trial, injected=True, end_seconds=seconds)
    _judge(Launched(code, output, seconds, seconds, None), trial, tmp_path, WEIGHTS, outcome)
    if complaint is None:
        assert outcome.complaints == []
    else:
        assert len(outcome.complaints) == 1
        assert outcome.complaints[0].startswith(complaint)
    assert outcome.silent == (code == 0 and complaint is not None)


def test_other_weights_than_those_of_one_process_are_lost(tmp_path: Path) -> None:
    np.savez(tmp_path / "weights.npz", allow_pickle=False, **{"layers.0.weight": np.arange(4.0) + 1e-6})
    outcome = Outcome(ScriptTrial(1, 0, "equal", ("batch", 2), 1, 3, "after"), injected=True)
    _judge(Launched(0, "", 1.0, 1.0, None), outcome.trial, tmp_path, WEIGHTS, outcome)  # type: ignore[arg-type]
    assert outcome.lost
    assert outcome.complaints == ["layers.0.weight: differs by up to 1e-06"]


def test_job_that_hangs_is_only_counted_as_a_hang(tmp_path: Path) -> None:
    for fault in EXIT | LOOP | DIFFER:
        outcome = Outcome(ScriptTrial(1, 0, fault, ("batch", 2), 1, 3, "after"), injected=True)
        _judge(Launched(0, "", 9.0, 9.0, "the job did not end"), outcome.trial, tmp_path, WEIGHTS, outcome)  # type: ignore[arg-type]
        assert (outcome.hung, outcome.ended, outcome.complaints) == (True, False, ["the job did not end"])
