"""Trials of a user's script in which one rank leaves, stalls or has other settings, which the job must report."""

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
"""Steps of each of the two calls of fit."""


@dataclass(frozen=True)
class ScriptTrial:
    """A trial of a script, drawn from the seed and the number.

    Attributes
    ----------
    seed, number : int
    fault : str
        Key of `RANK_FAULTS`.
    grid : tuple of (str, int)
        Axis of the process grid and its ranks.
    rank, step : int
        Rank and step of the fault.
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
    """Draw rank, step and place of a fault."""
    random = Random(f"{seed} {number}")
    ((axis, ranks),) = random.choice([grid for grid in GRIDS if max(grid.values()) <= max(most_ranks, 2)]).items()
    rank, step = random.randrange(ranks), random.randint(1, STEPS)
    return ScriptTrial(seed, number, fault, (axis, ranks), rank, step, random.choice(PLACES))


class ScriptDrill:
    """Runs trials of scripts.

    Parameters
    ----------
    folder : Path
        Folder of all trials.
    limit : float
        Time limit of a job in seconds.
    """

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder, self.limit = folder, limit

    @cached_property
    def expected(self) -> dict[str, NDArray[Any]]:
        """Weights of the same script on one process.

        Raises
        ------
        RuntimeError
            If the script fails.
        """
        folder = self.folder / "undisturbed" / "script"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        text = script_text(None, grid={}, rank=-1, step=0, place="after", markers="", stall_settings={})
        (folder / SCRIPT).write_text(text)
        done = run_job(lambda markers: [sys.executable, SCRIPT], folder, "run", self.limit, "without fault")
        if done.code != 0 or done.hung:
            raise RuntimeError(f"the undisturbed script failed: {done.hung or done.output}")
        return _weights(folder)

    def carry_out(self, trial: ScriptTrial, folder: Path) -> Outcome:
        """Run the trial in an empty folder, and check its results."""
        expected = self.expected
        # The watchdog keeps its usual 60 seconds if a rank leaves, so that it alone cannot detect this in time.
        watch = {} if trial.fault in EXIT else {"stall_seconds": deadline(STALL_SECONDS)}
        axis, ranks = trial.grid

        def command(markers: Path) -> list[str]:
            text = script_text(
                trial.fault,
                grid={axis: ranks},
                rank=trial.rank,
                step=trial.step,
                place=trial.place,
                markers=str(markers),
                stall_settings=watch,
            )
            (folder / SCRIPT).write_text(text)
            return [find_mpirun(), "-n", str(ranks), sys.executable, SCRIPT]

        done = run_job(command, folder, "run", self.limit, str(trial), marker=f"{HERE}{trial.rank}")
        outcome = Outcome(
            trial, injected=done.seconds_after_fault is not None, end_seconds=done.seconds_after_fault or 0.0
        )
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
    if not outcome.injected:
        outcome.complaints.append(f"ended with exit code {done.code} before the fault")
        return
    outcome.ended, outcome.lost = True, False
    if not fault.pattern or (fault.may_train and done.code == 0):
        _judge_training(done, folder, expected, outcome)
        return
    if done.code == 0:
        outcome.silent, outcome.named = True, False
        outcome.complaints.append(f"exit code 0: no error after: {trial.fault} of rank {trial.rank}")
    elif missing := _missing_text(done.output, trial, (folder / SCRIPT).read_text()):
        outcome.named = False
        outcome.complaints.append(f"the output has no match of {missing!r} after: {trial.fault} of rank {trial.rank}")
    if fault.seconds is not None and outcome.end_seconds > deadline(fault.seconds):
        outcome.complaints.append(f"it took {outcome.end_seconds:.1f} s to end after: {trial.fault}")


def _judge_training(done: Launched, folder: Path, expected: dict[str, NDArray[Any]], outcome: Outcome) -> None:
    """Check the results of a script that must complete its training."""
    if done.code != 0:
        outcome.ended, outcome.lost = False, True
        outcome.complaints.append(f"exit code {done.code} of a script that must train")
        return
    wrong = differences(Finished(_weights(folder), []), Finished(expected, []), same_bits=False)
    outcome.lost = bool(wrong)
    outcome.complaints += wrong


def _missing_text(output: str, trial: ScriptTrial, text: str) -> str | None:
    """The required text that is missing in the output.

    The messages of the launcher, between lines of dashes, and the indented code of a traceback are ignored.
    """
    fault = RANK_FAULTS[trial.fault]
    pattern = fault.pattern.replace("RANK", str(trial.rank))
    own = re.sub(r"^-{50,}$.*?^-{50,}$", "", output, flags=re.MULTILINE | re.DOTALL)
    if not re.search(pattern, "\n".join(re.findall(r"^\S.*", own, re.MULTILINE)), re.MULTILINE):
        return pattern
    if fault.at_line and not re.search(rf'{SCRIPT}(:|", line ){faulty_line(text)}\b', output):
        return f"{SCRIPT}:{faulty_line(text)}"
    return None
