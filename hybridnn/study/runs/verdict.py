"""What limits a run: computing, communication, waiting, or that there is too little to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["COSTLY_SHARE", "TOO_SMALL_FLOPS", "Shares", "Verdict", "judge"]

COSTLY_SHARE = 0.25
"""Part of a step from which on something that is not computing limits a run: without it, the run would take at most
three quarters of its time."""

TOO_SMALL_FLOPS = 5e6
"""Floating-point operations of a rank in a step below which their number hardly matters: at 10 GFlop/s they take
half a millisecond, which is what Python needs for the calls of a step."""


@dataclass(frozen=True)
class Shares:
    """Where the time of a step goes, each from 0 to 1.

    Attributes
    ----------
    communication : float
        Inside communication calls; where `waiting` is known, without it.
    waiting : float or None
        For messages of other stages, which is the bubble, and at barriers.
    overhead : float or None
        In no instruction and no communication call.
    """

    communication: float
    waiting: float | None = None
    overhead: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What limits a run.

    Attributes
    ----------
    limit : {"computing", "communication", "waiting", "overhead"}
    text : str
        The same for people, with the share.
    """

    limit: Literal["computing", "communication", "waiting", "overhead"]
    text: str


def judge(shares: Shares, flops_per_step: float) -> Verdict:
    """Say what limits a run.

    The greatest share that is not computing, if it is at least `COSTLY_SHARE`; else overhead, if a rank has fewer than
    `TOO_SMALL_FLOPS` operations to do in a step; else computing, which is where a run should be.

    Parameters
    ----------
    shares : Shares
    flops_per_step : float
        Floating-point operations of one rank in a step.
    """
    waiting, overhead = shares.waiting or 0.0, shares.overhead or 0.0
    most = max(shares.communication, waiting, overhead)
    if most >= COSTLY_SHARE:
        if most == shares.communication:
            kind = "communication" if shares.waiting is not None else "communication and waiting"
            return Verdict("communication", f"{kind}: {most:.0%} of the step")
        if most == waiting:
            return Verdict("waiting", f"bubble and waiting: {most:.0%} of the step")
        return Verdict("overhead", f"too small: overhead, {most:.0%} of the step")
    if flops_per_step < TOO_SMALL_FLOPS:
        return Verdict("overhead", f"too small: overhead, {flops_per_step / 1e6:.2g} MFlop per rank and step")
    return Verdict("computing", "computing")
