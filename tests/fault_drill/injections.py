"""Faults of trainings: their signals or errors, moments, and the required exit codes and messages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM, SIGUSR1
from typing import TYPE_CHECKING

from fault_drill.damage import DAMAGES
from fault_drill.moments import MOMENTS, PHASES
from fault_drill.rank import BROKEN

if TYPE_CHECKING:
    from fault_drill.launches import Recipe

WORK = ("training", "evaluation", "checkpoint")
KILLED = r"signal:? 9\b|signal 9 \(|SIGNAL: 9\b|[Kk]illed"
STOPPED = r"stopped by SIG(TERM|USR1) after step \d+; wrote "
SIGNALLED = r"[Ss]ignal:? (10|15)\b|SIGNAL: (10|15)\b|Terminated|User defined signal"


@dataclass(frozen=True)
class Fault:
    """A kind of fault."""

    phases: tuple[str, ...]  # phases of a run in which it may be injected
    codes: tuple[int, ...]  # allowed exit codes, negative for a signal that ended mpirun; if empty, any but 0
    pattern: str = ""  # of the required output; RANK and RANKS are the rank of the fault and the number of ranks
    signals: tuple[int, ...] = ()
    target: str = "rank"  # receiver of the signals: ``rank``, ``ranks``, ``launcher`` or ``everything``
    error: str | None = None  # error raised in the rank
    least_ranks: int = 1
    kind: str = "kill"  # row of the table


FAULTS = {
    "rank killed": Fault(WORK, (), KILLED, (SIGKILL,)),
    "all killed": Fault(WORK, (-SIGKILL,), "", (SIGKILL,), "everything"),
    "launcher killed": Fault(WORK, (-SIGKILL,), "", (SIGKILL,), "launcher", least_ranks=2),
    "launcher terminated": Fault(
        WORK, (), "", (SIGTERM,), "launcher", least_ranks=2, kind="signal"
    ),  # Open MPI prints no message
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
    "second signal": Fault(WORK, (), f"{STOPPED}|{SIGNALLED}", (SIGTERM, SIGTERM), kind="signal"),
    "checkpoint damaged": Fault(("third checkpoint",), (-SIGKILL,), "", (SIGKILL,), "everything", kind="kill"),
}
"""By name."""

MOMENTS_OF = PHASES | {
    "writing": ("an array is written", "the arrays go to disk", "a manifest or its sums", "the arrays are digested"),
    "third checkpoint": ("a checkpoint begins",),
}

LATEST = 24
"""Limit of the call of frequent moments: about half of their calls, so that the run continues for long enough."""


@dataclass(frozen=True)
class Injection:
    """A fault at a drawn moment."""

    fault: str
    moment: str
    call: int  # number of the call of the moment, from 1
    rank: int
    delay: float | None  # seconds after the moment; None if the rank waits for the fault
    signals: tuple[int, ...]
    target: str
    pause: float  # seconds between two signals
    free_bytes: int  # free space of a full disk
    damage: str  # damage to the newest checkpoint afterwards, for the fault ``checkpoint damaged``

    @property
    def error(self) -> str | None:
        """Error raised in the rank."""
        return FAULTS[self.fault].error

    def __str__(self) -> str:
        when = "exactly at" if self.delay is None else f"{1000 * self.delay:.1f} ms after"
        done = [f"signal {int(number)} to {self.target}" for number in self.signals]
        done += [self.damage] * (self.fault == "checkpoint damaged")
        return f"{self.fault}, {when} '{self.moment}' {self.call} of rank {self.rank} ({', '.join(done)})"

    def complaint(self, code: int, output: str, recipe: Recipe) -> str | None:
        """Error in the report of the run about the fault, or None."""
        fault = FAULTS[self.fault]
        if not recipe.launched and -code in self.signals:  # the shell reports the signal
            return f"ended by {self}" if self.fault == "signal" else None
        if code == 0 if not fault.codes else code not in fault.codes:
            return f"exit code {code} after: {self}"
        pattern = fault.pattern.replace("RANKS", str(recipe.ranks)).replace("RANK", str(self.rank))
        if fault.error == "RuntimeError" and not recipe.launched:
            pattern = BROKEN
        return None if re.search(pattern, output) else f"the output has no match of {pattern!r} after: {self}"


def draw_injection(random: Random, name: str, recipe: Recipe, *, resumed: bool) -> Injection:
    """Draw moment and rank of a fault; of a run that resumes another one, few calls of a moment may remain."""
    fault = FAULTS[name]
    phase = random.choice(fault.phases)
    moment = random.choice(MOMENTS_OF[phase])
    most = 1 if resumed else min(MOMENTS[moment].calls, LATEST)
    signals, target = fault.signals, fault.target
    if target == "rank" and SIGTERM in signals:
        signals, target = tuple(random.choice((SIGTERM, SIGUSR1)) for _ in signals), random.choice(("rank", "ranks"))
    exactly = phase in ("start", "resume", "end") or random.random() < 0.5
    return Injection(
        name,
        moment,
        3 if phase == "third checkpoint" else random.randint(1, most),
        0 if MOMENTS[moment].first_rank else random.randrange(recipe.ranks),
        None if exactly else random.choice((0.001, 0.004, 0.01)) * random.random(),
        signals,
        target,
        0.3 if name == "rank delayed" else 0.05 * random.random(),
        random.choice((0, 4096, 20480)),
        random.choice(DAMAGES),
    )
