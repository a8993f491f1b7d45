"""A user's script with the Python API, and the faults of one of its ranks: it leaves, stalls or has other settings."""

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
faulty = grid.rank == {rank}


def here():
    Path({markers!r}, "here-{rank}").touch()


def in_step(record):
    if faulty and record.step == {step}:
        {in_step}


generator = np.random.default_rng(3)
x, y = generator.standard_normal((240, 6)), generator.integers(0, 4, 240)
held = x[:40], y[:40]
first = dict(lr=0.05, momentum=0.9)
second = dict(batch_size=20, schedule=Constant(), seed=4, log_every=1, dtype="float64", **{stall_settings})
third = dict(epochs=3, validation=held, on_step=in_step)
kind = SGD
calls = 2
if faulty:
    {before}
second |= dict(pipelining=Pipelining("gpipe")) if grid.pipeline > 1 else {{}}
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

HERE = "# the fault"
PLACES = ("in_step", "between", "after")
"""Places of a fault: inside a step, between construction and training, after training."""


@dataclass(frozen=True)
class RankFault:
    """A fault of one rank of a script.

    Attributes
    ----------
    does : str
        Statements in one line.
    pattern : str
        Regular expression of the required output at the left margin, in which RANK is the rank. If it is empty, the
        script must complete its training.
    place : str or None
        Place of the fault; if None, it is drawn from `PLACES`.
    at_line : bool
        Whether the output must contain the line of the script.
    seconds : float or None
        Limit of the time from the fault to the end of the job on an idle machine; None for the limit of all trials.
    may_train : bool
        Whether the script may also complete its training.
    """

    does: str
    pattern: str = ""
    place: str | None = None
    at_line: bool = False
    seconds: float | None = None
    may_train: bool = False


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
    fault: str | None,
    *,
    grid: dict[str, int],
    rank: int,
    step: int,
    place: str,
    markers: str,
    stall_settings: dict[str, float],
) -> str:
    """The text of a script with a fault in one rank.

    Parameters
    ----------
    fault : str or None
        Key of `RANK_FAULTS`.
    grid : dict
        Arguments of ``ProcessGrid``.
    place : str
        One of `PLACES`, for faults without a fixed place.
    markers : str
        Folder of the marker file that is written before the fault.
    stall_settings : dict
        Arguments of ``Trainer`` for the watchdog.
    """
    code = dict.fromkeys(("before", *PLACES), "pass") | {"evaluates": "True"}
    if fault is not None:
        place = RANK_FAULTS[fault].place or place
        does = RANK_FAULTS[fault].does
        if place == "evaluates":
            code |= {place: does, "after": "here()"}
        else:
            # A loop is on its own line, whose number the output must contain.
            indent = "        " if place == "in_step" else "    "
            code[place] = f"here()\n{indent}{does}  {HERE}"
    return TEMPLATE.format(grid=grid, rank=rank, step=step, markers=markers, stall_settings=stall_settings, **code)


def faulty_line(text: str) -> int:
    """Number of the line of the fault, from 1.

    Raises
    ------
    ValueError
        If there is none.
    """
    marked = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith(HERE)]
    if len(marked) != 1:
        raise ValueError(f"{len(marked)} marked lines")
    return marked[0]
