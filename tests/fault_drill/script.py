"""A user's script under the Python API, and what one of its ranks does: leaves, stands still, or differs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DIFFER", "EXIT", "LOOP", "PLACES", "RANK_FAULTS", "RankFault", "faulty_line", "script_text"]

TEMPLATE = """\
import os
import sys
import time
from pathlib import Path

import numpy as np

from hybridnn import MLP, SGD, Adam, Constant, Cosine, Pipelining, ProcessGrid, Trainer

grid = ProcessGrid(**{grid})
struck = grid.rank == {rank}


def here():
    Path({signs!r}, "here-{rank}").touch()


def in_step(record):
    if struck and record.step == {step}:
        {in_step}


generator = np.random.default_rng(3)
x, y = generator.standard_normal((240, 6)), generator.integers(0, 4, 240)
held = x[:40], y[:40]
first = dict(lr=0.05, momentum=0.9)
second = dict(batch_size=20, schedule=Constant(), seed=4, log_every=1, dtype="float64", **{patience})
third = dict(epochs=3, validation=held, on_step=in_step)
kind = SGD
calls = 2
if struck:
    {before}
second |= dict(pipelining=Pipelining("gpipe")) if grid.pipeline > 1 else {{}}
trainer = Trainer(MLP([6, 12, 11, 4]), kind(**first), grid=grid, **second)
if struck:
    {between}
for number in range(calls):
    trainer.fit(x, y, **third)
if struck:
    {after}
if {evaluates}:
    trainer.evaluate(*held)
weights = trainer.weights()
if grid.rank == 0:
    np.savez("weights.npz", **weights)
"""

HERE = "# the fault"
PLACES = ("in_step", "between", "after")
"""Where a rank can leave or stand still: inside a step, between construction and training, after training."""


@dataclass(frozen=True)
class RankFault:
    """What one rank of a script does.

    Attributes
    ----------
    does : str
        Statements of one line; the folder of signs is written there before.
    words : str
        What must stand at the left margin of the output, as a regular expression in which RANK is the rank; none: the
        script must train.
    place : str or None
        Where; None: at one of `PLACES`, drawn.
    at_line : bool
        Whether the line of the script must be named too.
    seconds : float or None
        What it may take from there to the end of the job on a quiet machine; None: as long as any trial.
    may_train : bool
        Whether training to the same weights is as good as ending with these words.
    """

    does: str
    words: str = ""
    place: str | None = None
    at_line: bool = False
    seconds: float | None = None
    may_train: bool = False


LEFT = r"\brank RANK\b.*\b(exit|left|leav|end|gone|quit)"
"""In other words than the launcher's, which counts processes."""

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
    "no evaluation": RankFault("not struck", r"\brank RANK\b", "evaluates", seconds=45),
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
    fault: str | None, *, grid: dict[str, int], rank: int, step: int, place: str, signs: str, patience: dict[str, float]
) -> str:
    """The script in which a rank does what a fault is.

    Parameters
    ----------
    fault : str or None
        One of `RANK_FAULTS`.
    grid : dict
        Arguments of ``ProcessGrid``.
    rank : int
        The one that is struck.
    step : int
        Of the training, where the fault comes in a step.
    place : str
        One of `PLACES`, where the fault leaves it open.
    signs : str
        Folder for the sign that the fault comes now.
    patience : dict
        Arguments of ``Trainer`` for the stall watch.
    """
    code = dict.fromkeys(("before", *PLACES), "pass") | {"evaluates": "True"}
    if fault is not None:
        place = RANK_FAULTS[fault].place or place
        does = RANK_FAULTS[fault].does
        if place == "evaluates":
            code |= {place: does, "after": "here()"}
        else:
            # A loop stands on a line of its own, which is the one to be named.
            indent = "        " if place == "in_step" else "    "
            code[place] = f"here()\n{indent}{does}  {HERE}"
    return TEMPLATE.format(grid=grid, rank=rank, step=step, signs=signs, patience=patience, **code)


def faulty_line(text: str) -> int:
    """Number of the line at which a rank stands still, from 1.

    Raises
    ------
    ValueError
        If there is none.
    """
    marked = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith(HERE)]
    if len(marked) != 1:
        raise ValueError(f"{len(marked)} marked lines")
    return marked[0]
