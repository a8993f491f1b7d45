"""Trials of a user's script with the Python API, in which one rank leaves, stalls or has other settings."""

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
from mpi_runner.launch import find_mpirun
from mpi_runner.slowness import deadline

__all__ = ["DIFFER", "EXIT", "LOOP", "RANK_FAULTS", "ScriptDrill", "ScriptTrial", "draw_script_trial"]

TEMPLATE = """\
import os
import sys
import time
from pathlib import Path

import numpy as np

from hybridnn import MLP, SGD, Adam, Callback, Constant, Cosine, ProcessGrid, Trainer

grid = ProcessGrid(**{grid})
faulty = grid.rank == {rank}


def here():
    Path({markers!r}, "here-{rank}").touch()


class InStep(Callback):
    def on_train_batch_end(self, trainer, record):
        if faulty and record.step == {step}:
            {in_step}


generator = np.random.default_rng(3)
x, y = generator.standard_normal((240, 6)), generator.integers(0, 4, 240)
held = x[:40], y[:40]
first = dict(lr=0.05, momentum=0.9)
second = dict(batch_size=20, schedule=Constant(), seed=4, log_every=1, dtype="float64", **{limits})
third = dict(epochs=3, validation=held, callbacks=[InStep()])
kind = SGD
calls = 2
if faulty:
    {before}
second |= dict(method="gpipe") if grid.pipeline > 1 else {{}}
trainer = Trainer(MLP([6, 12, 11, 4]), kind(**first), grid=grid, **second)
if faulty:
    {between}
for number in range(calls):
    trainer.fit(x, y, **third)
if faulty:
    {after}
if {evaluates}:
    trainer.evaluate(*held)
weights = trainer.weights()
if grid.rank == 0:
    np.savez("weights.npz", **weights)
"""

HERE_LINE = "# the fault"
PLACES = ("in_step", "between", "after")
"""Places of a fault: inside a step, between construction and training, after training."""


@dataclass(frozen=True)
class RankFault:
    """A fault of one rank of a script."""

    does: str  # statements in one line
    pattern: str = ""  # of the required output at the left margin, with RANK; empty if the script must train to its end
    place: str | None = None  # place of the fault; if None, it is drawn from `PLACES`
    at_line: bool = False  # whether the output must contain the line of the script
    seconds: float | None = None  # limit of the time from the fault to the end of the job; None for that of all trials
    may_train: bool = False  # whether the script may also complete its training


LEFT = r"\brank RANK\b.*\b(exit|left|leav|end|gone|quit)"
"""A message about the rank, which the launcher does not print."""

ANYTHING = "^"
ARRIVES_NOT = r"\brank RANK\b"
BLIND = "; ".join(f"os.close({number})" for number in (0, 1, 2))

EXIT = {
    "sys.exit(0)": RankFault("sys.exit(0)", LEFT, seconds=20),
    "sys.exit(3)": RankFault("sys.exit(3)", LEFT, seconds=20),
    "os._exit(7)": RankFault("os._exit(7)", LEFT, seconds=20),
}

LOOP = {
    "endless loop": RankFault("while True: pass", ARRIVES_NOT, at_line=True, seconds=45),
    "long sleep": RankFault("time.sleep(36000)", ARRIVES_NOT, at_line=True, seconds=45),
    "fewer epochs": RankFault('third["epochs"] = 1', r"\brank \d|epoch", "between", seconds=45),
    "fewer calls of fit": RankFault("calls = 1", r"\brank \d", "between", seconds=45),
    "no evaluation": RankFault("not faulty", r"\brank RANK\b", "evaluates", seconds=45),
    "streams closed": RankFault(BLIND, r"\brank RANK\b", "between", may_train=True),
    "stream objects closed": RankFault("sys.stdout.close(); sys.stderr.close()", "", "between"),
    "streams closed, then asleep": RankFault(
        f"{BLIND}; time.sleep(36000)", ARRIVES_NOT, "in_step", at_line=True, seconds=45
    ),
    "streams closed, then an error": RankFault(f"{BLIND}; [][0]", ANYTHING, "in_step", seconds=45),
}

DIFFER = {
    "learning rate": RankFault('first["lr"] = 0.06', r"\blr\b|learning.rate", "before"),
    "momentum": RankFault('first["momentum"] = 0.8', "momentum", "before"),
    "optimizer": RankFault("kind = Adam; first = {}", "optimizer|Adam", "before"),
    "schedule": RankFault('second["schedule"] = Cosine()', "schedule|Cosine", "before"),
    "seed": RankFault('second["seed"] = 5', "seed", "before"),
    "samples": RankFault("x = x + 0.001", r"sample|data|input|\bx\b", "before"),
    "order of samples": RankFault("x, y = x[::-1].copy(), y[::-1].copy()", r"sample|data|input|\bx\b", "before"),
    "labels": RankFault("y = (y + 1) % 4", r"label|target|data|\by\b", "before"),
    "epochs": RankFault('third["epochs"] = 4', "epoch", "between"),
    "validation": RankFault('third["validation"] = None', "valid|test|evaluat", "between"),
    "validation samples": RankFault('third["validation"] = (x[40:80], y[40:80])', "valid|test|evaluat", "between"),
    "equal": RankFault('first["lr"] = 0.1 / 2', "", "before"),
}

RANK_FAULTS = EXIT | LOOP | DIFFER
"""By name."""


def script_text(
    fault: str | None, *, grid: dict[str, int], rank: int, step: int, place: str, markers: str, limits: dict[str, float]
) -> str:
    """The text of a script with a fault in one rank.

    `grid` are the arguments of ``ProcessGrid``, and `limits` those of ``Trainer`` for the watchdog. Before the fault, a
    marker file is written to the folder `markers`.
    """
    code = dict.fromkeys(("before", *PLACES), "pass") | {"evaluates": "True"}
    if fault is not None:
        place = RANK_FAULTS[fault].place or place
        does = RANK_FAULTS[fault].does
        if place == "evaluates":
            code |= {place: does, "after": "here()"}
        else:
            # A loop is on its own line, whose number the output must contain.
            indent = " " * 12 if place == "in_step" else "    "
            code[place] = f"here()\n{indent}{does}  {HERE_LINE}"
    return TEMPLATE.format(grid=grid, rank=rank, step=step, markers=markers, limits=limits, **code)


def faulty_line(text: str) -> int:
    """Number of the line of the fault, from 1."""
    (number,) = (number for number, line in enumerate(text.splitlines(), 1) if line.endswith(HERE_LINE))
    return number


SCRIPT = "job.py"
STALL_SECONDS = 2.5
GRIDS = ({"batch": 2}, {"model": 2}, {"pipeline": 2}, {"batch": 3})
STEPS = 36
"""Steps of each of the two calls of fit."""


@dataclass(frozen=True)
class ScriptTrial:
    """A trial of a script, drawn from the seed and the number."""

    seed: int
    number: int
    fault: str
    grid: tuple[str, int]  # axis of the process grid and its ranks
    rank: int
    step: int
    place: str  # one of `PLACES`

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
    """Runs trials of scripts in subfolders of a folder, with a time limit of every job in seconds."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder, self.limit = folder, limit

    @cached_property
    def expected(self) -> dict[str, NDArray[Any]]:
        """Weights of the same script on one process."""
        folder = self.folder / "undisturbed" / "script"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        text = script_text(None, grid={}, rank=-1, step=0, place="after", markers="", limits={})
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
                limits=watch,
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
