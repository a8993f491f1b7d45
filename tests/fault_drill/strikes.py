"""The faults: what each does to a run, when, and how the run must tell of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM, SIGUSR1

from fault_drill.damage import DAMAGES
from fault_drill.moments import MOMENTS, PHASES
from fault_drill.rank import BROKEN
from fault_drill.recipes import Recipe

__all__ = ["FAULTS", "Fault", "Strike", "draw_strike"]

WORK = ("training", "evaluation", "checkpoint")
KILLED = r"signal:? 9\b|signal 9 \(|SIGNAL: 9\b|[Kk]illed"
STOPPED = r"stopped by SIG(TERM|USR1) after step \d+; wrote "
TOLD = r"[Ss]ignal:? (10|15)\b|SIGNAL: (10|15)\b|Terminated|User defined signal"


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes
    ----------
    phases : tuple of str
        When it may strike.
    codes : tuple of int
        Exit codes it may lead to; a negative one is the signal that ended mpirun. None given: any but 0.
    words : str
        What must stand in the output, as a regular expression in which RANK and RANKS are the rank it struck and their
        number.
    signals : tuple of int
    whom : str
        ``rank``, ``ranks``, ``launcher`` or ``everything``: who gets them.
    error : str or None
        Raised in the rank.
    least_ranks : int
    kind : str
        Of the table that a drill prints.
    """

    phases: tuple[str, ...]
    codes: tuple[int, ...]
    words: str = ""
    signals: tuple[int, ...] = ()
    whom: str = "rank"
    error: str | None = None
    least_ranks: int = 1
    kind: str = "kill"


FAULTS = {
    "rank killed": Fault(WORK, (), KILLED, (SIGKILL,)),
    "all killed": Fault(WORK, (-SIGKILL,), "", (SIGKILL,), "everything"),
    "launcher killed": Fault(WORK, (-SIGKILL,), "", (SIGKILL,), "launcher", least_ranks=2),
    # Open MPI says nothing of this one.
    "launcher terminated": Fault(
        WORK, (), "", (SIGTERM,), "launcher", least_ranks=2, kind="signal"
    ),  # Open MPI says nothing
    "launcher warned": Fault(WORK, (75,), STOPPED, (SIGUSR1,), "launcher", least_ranks=2, kind="signal"),
    "killed at start": Fault(("start",), (), KILLED, (SIGKILL,)),
    "killed in evaluation": Fault(("evaluation",), (), KILLED, (SIGKILL,)),
    "killed in checkpoint": Fault(("checkpoint",), (), KILLED, (SIGKILL,)),
    "killed in resume": Fault(("resume",), (), KILLED, (SIGKILL,)),
    "killed at end": Fault(("end",), (), KILLED, (SIGKILL,)),
    "rank stopped": Fault(WORK[:2], (1,), r"rank RANK \(.*gave no sign", (SIGSTOP,), least_ranks=2, kind="stop"),
    "rank delayed": Fault(WORK, (0,), "", (SIGSTOP, SIGCONT), kind="stop"),
    "exception": Fault(WORK, (1,), f"(?s)rank RANK of RANKS failed.*{BROKEN}", error="RuntimeError", kind="raise"),
    "write error": Fault(("writing",), (2,), "cannot be written: .*Input/output error", error="OSError", kind="raise"),
    "disk full": Fault(WORK, (2,), "No space left on device", kind="full disk"),
    "signal": Fault(WORK, (75,), STOPPED, (SIGTERM,), kind="signal"),
    "second signal": Fault(WORK, (), f"{STOPPED}|{TOLD}", (SIGTERM, SIGTERM), kind="signal"),
    "checkpoint damaged": Fault(("third checkpoint",), (-SIGKILL,), "", (SIGKILL,), "everything", kind="cut"),
}
"""By name."""

MOMENTS_OF = PHASES | {
    "writing": ("an array is written", "the arrays go to disk", "a manifest or its sums", "the arrays are digested"),
    "third checkpoint": ("a checkpoint begins",),
}

LATEST = 24
"""Calls of the most frequent moments, half of what there are, after which what follows must still show."""


@dataclass(frozen=True)
class Strike:
    """One fault, drawn.

    Attributes
    ----------
    fault : str
    moment : str
    call : int
        Of the moment, from 1.
    rank : int
    delay : float or None
        Seconds after that; None: exactly there, where the rank waits for it.
    signals : tuple of int
    whom : str
    pause : float
        Seconds between two signals.
    room : int
        Bytes left on a disk that is full.
    damage : str
        Done to the newest checkpoint afterwards, where the fault is that.
    """

    fault: str
    moment: str
    call: int
    rank: int
    delay: float | None
    signals: tuple[int, ...]
    whom: str
    pause: float
    room: int
    damage: str

    @property
    def error(self) -> str | None:
        """What the rank raises."""
        return FAULTS[self.fault].error

    def __str__(self) -> str:
        when = "exactly at" if self.delay is None else f"{1000 * self.delay:.1f} ms after"
        done = [f"signal {int(number)} to {self.whom}" for number in self.signals]
        done += [self.damage] * (self.fault == "checkpoint damaged")
        return f"{self.fault}, {when} '{self.moment}' {self.call} of rank {self.rank} ({', '.join(done)})"

    def complaint(self, code: int, said: str, recipe: Recipe) -> str | None:
        """What is wrong with how the run told of it; None where nothing is."""
        fault = FAULTS[self.fault]
        if not recipe.launched and -code in self.signals:  # the shell says it
            return f"ended by {self}" if self.fault == "signal" else None
        if code == 0 if not fault.codes else code not in fault.codes:
            return f"exit code {code} after: {self}"
        words = fault.words.replace("RANKS", str(recipe.ranks)).replace("RANK", str(self.rank))
        if fault.error == "RuntimeError" and not recipe.launched:
            words = BROKEN
        return None if re.search(words, said) else f"no word of it in the output ({words}) after: {self}"


def draw_strike(random: Random, name: str, recipe: Recipe, *, resumed: bool) -> Strike:
    """Draw when and where a fault strikes.

    Parameters
    ----------
    random : Random
    name : str
        One of `FAULTS`.
    recipe : Recipe
    resumed : bool
        Whether the run goes on with one that was struck, so that much of it may be done already.
    """
    fault = FAULTS[name]
    phase = random.choice(fault.phases)
    moment = random.choice(MOMENTS_OF[phase])
    most = 1 if resumed else min(MOMENTS[moment].calls, LATEST)
    signals, whom = fault.signals, fault.whom
    if whom == "rank" and SIGTERM in signals:
        signals, whom = tuple(random.choice((SIGTERM, SIGUSR1)) for _ in signals), random.choice(("rank", "ranks"))
    exactly = phase in ("start", "resume", "end") or random.random() < 0.5
    return Strike(
        name,
        moment,
        3 if phase == "third checkpoint" else random.randint(1, most),
        0 if MOMENTS[moment].first_rank else random.randrange(recipe.ranks),
        None if exactly else random.choice((0.001, 0.004, 0.01)) * random.random(),
        signals,
        whom,
        0.3 if name == "rank delayed" else 0.05 * random.random(),
        random.choice((0, 4096, 20480)),
        random.choice(DAMAGES),
    )
