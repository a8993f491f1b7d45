"""A trial of a user's script: one of its ranks leaves, stands still or differs, and the job must say so and end."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fault_drill.finished import Finished, differences
from fault_drill.launches import Launched, run_job
from fault_drill.outcomes import Outcome
from fault_drill.rank import HERE
from fault_drill.script import EXIT, PLACES, RANK_FAULTS, faulty_line, script_text
from mpi_runner.launch import find_mpirun
from mpi_runner.slowness import deadline

__all__ = ["ScriptDrill", "ScriptTrial", "draw_script_trial"]

SCRIPT = "job.py"
STALL_SECONDS = 2.5
GRIDS = ({"batch": 2}, {"model": 2}, {"pipeline": 2}, {"batch": 3})
STEPS = 36
"""Of each call of fit, of which there are two."""


@dataclass(frozen=True)
class ScriptTrial:
    """What is to happen, all of it drawn from the seed and the number.

    Attributes
    ----------
    seed, number : int
    fault : str
        One of `RANK_FAULTS`.
    grid : tuple of (str, int)
        Axis of the process grid and its ranks.
    rank, step : int
        Where it strikes.
    place : str
        One of `PLACES`.
    """

    seed: int
    number: int
    fault: str
    grid: tuple[str, int]
    rank: int
    step: int
    place: str

    def __str__(self) -> str:
        axis, ranks = self.grid
        place = f"step {self.step}" if self.place == "in_step" else self.place
        return f"script on {axis} {ranks}, rank {self.rank}, {RANK_FAULTS[self.fault].place or place}"


def draw_script_trial(seed: int, number: int, fault: str, most_ranks: int = 4) -> ScriptTrial:
    """Draw where and when a rank of a script is struck."""
    random = Random(f"{seed} {number}")
    ((axis, ranks),) = random.choice([grid for grid in GRIDS if max(grid.values()) <= max(most_ranks, 2)]).items()
    rank, step = random.randrange(ranks), random.randint(1, STEPS)
    return ScriptTrial(seed, number, fault, (axis, ranks), rank, step, random.choice(PLACES))


class ScriptDrill:
    """Carries out trials of scripts.

    Parameters
    ----------
    folder : Path
        Where they run.
    limit : float
        Seconds a job may take.
    """

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder, self.limit = folder, limit

    @cached_property
    def expected(self) -> dict[str, NDArray[Any]]:
        """Weights of the same script on one process.

        Raises
        ------
        RuntimeError
            If it does not end well.
        """
        folder = self.folder / "undisturbed" / "script"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        text = script_text(None, grid={}, rank=-1, step=0, place="after", signs="", patience={})
        (folder / SCRIPT).write_text(text)
        done = run_job(lambda signs: [sys.executable, SCRIPT], folder, "run", self.limit, "not struck")
        if done.code != 0 or done.hung:
            raise RuntimeError(f"the undisturbed script failed: {done.hung or done.said}")
        return _weights(folder)

    def carry_out(self, trial: ScriptTrial, folder: Path) -> Outcome:
        """Do what the trial says in an empty folder, and judge it."""
        expected = self.expected
        # How a rank leaves must not be noticed by the stall watch alone: that keeps its usual 60 seconds then.
        watch = {} if trial.fault in EXIT else {"stall_seconds": deadline(STALL_SECONDS)}
        axis, ranks = trial.grid

        def command(signs: Path) -> list[str]:
            text = script_text(
                trial.fault,
                grid={axis: ranks},
                rank=trial.rank,
                step=trial.step,
                place=trial.place,
                signs=str(signs),
                patience=watch,
            )
            (folder / SCRIPT).write_text(text)
            return [find_mpirun(), "-n", str(ranks), sys.executable, SCRIPT]

        done = run_job(command, folder, "run", self.limit, str(trial), sign=f"{HERE}{trial.rank}")
        outcome = Outcome(trial, struck=done.struck_seconds is not None, end_seconds=done.struck_seconds or 0.0)
        _judge(done, trial, folder, expected, outcome)
        return outcome


def _weights(folder: Path) -> dict[str, NDArray[Any]]:
    with np.load(folder / "weights.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def _judge(
    done: Launched, trial: ScriptTrial, folder: Path, expected: dict[str, NDArray[Any]], outcome: Outcome
) -> None:
    fault = RANK_FAULTS[trial.fault]
    if done.hung:
        outcome.complaints.append(done.hung)
        outcome.hung, outcome.named = True, False
        return
    if not outcome.struck:
        outcome.complaints.append(f"ended with exit code {done.code} before the fault")
        return
    outcome.ended, outcome.lost = True, False
    if not fault.words or (fault.may_train and done.code == 0):
        _judge_training(done, folder, expected, outcome)
        return
    if done.code == 0:
        outcome.silent, outcome.named = True, False
        outcome.complaints.append(f"exit code 0: nothing was refused after: {trial.fault} of rank {trial.rank}")
    elif missing := _not_said(done.said, trial, (folder / SCRIPT).read_text()):
        outcome.named = False
        outcome.complaints.append(f"no word of it in the output ({missing}) after: {trial.fault} of rank {trial.rank}")
    if fault.seconds is not None and outcome.end_seconds > deadline(fault.seconds):
        outcome.complaints.append(f"it took {outcome.end_seconds:.1f} s to end after: {trial.fault}")


def _judge_training(done: Launched, folder: Path, expected: dict[str, NDArray[Any]], outcome: Outcome) -> None:
    """Whether a script that had to train did."""
    if done.code != 0:
        outcome.ended, outcome.lost = False, True
        outcome.complaints.append(f"exit code {done.code} where it had to train")
        return
    wrong = differences(Finished(_weights(folder), []), Finished(expected, []), same_bits=False)
    outcome.lost = bool(wrong)
    outcome.complaints += wrong


def _not_said(said: str, trial: ScriptTrial, text: str) -> str | None:
    """What of the words that are due is missing.

    Neither the launcher's own words count, which stand between lines of dashes, nor the code of a traceback, which is
    indented.
    """
    fault = RANK_FAULTS[trial.fault]
    words = fault.words.replace("RANK", str(trial.rank))
    own = re.sub(r"^-{50,}$.*?^-{50,}$", "", said, flags=re.MULTILINE | re.DOTALL)
    if not re.search(words, "\n".join(re.findall(r"^\S.*", own, re.MULTILINE)), re.MULTILINE):
        return words
    if fault.at_line and not re.search(rf'{SCRIPT}(:|", line ){faulty_line(text)}\b', said):
        return f"{SCRIPT}:{faulty_line(text)}"
    return None
