"""Stop signals: a run of the command line finishes its step, writes a checkpoint and exits.

Slurm sends SIGUSR1 before the time limit (``--signal`` in batch scripts) and SIGTERM for ``scancel`` and preemption;
Ctrl-C sends SIGINT, replaced by SIGUSR2 where a launcher would end the ranks on SIGINT (`hybridnn.cli.ranks`).
A second signal ends the process immediately, unless it follows so soon that a launcher must have sent the first one
twice. Without such a context, Ctrl-C raises ``KeyboardInterrupt``, in `Trainer.fit` of a single process after the step.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import AbstractContextManager
from time import monotonic
from types import FrameType
from typing import Any

from hybridnn.comm.mpi import is_in_process

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)

INTERRUPTED = b"\ninterrupted: a checkpoint is written at the next step boundary; Ctrl-C again ends the run at once\n"

REPEAT_SECONDS = 1.0  # a signal that is repeated within this time counts as one


class StopSignals(AbstractContextManager["StopSignals"]):
    """Context that handles `SIGNALS` by recording the first; in threads other than the main one it does nothing.

    If SIGINT is ignored, as in background commands of a shell, it stays ignored. Of ranks in one process, which leave
    the context in any order, only the one with `announces` installs handlers.

    Parameters
    ----------
    announces : bool
        Print on standard error, once, that an interrupt was received.

    Attributes
    ----------
    received : int
        Number of the first signal, or 0.
    """

    def __init__(self, *, announces: bool = False) -> None:
        self._announces = announces
        self.received = 0
        self._when = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        """Install the handlers."""
        installs = self._announces or not is_in_process()
        if installs and threading.current_thread() is threading.main_thread():
            ignored = {signal.SIGINT} if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else set()
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS if number not in ignored}
        return self

    def __exit__(self, *exception: object) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        number = signal.SIGINT if number == signal.SIGUSR2 else number
        if self.received and monotonic() - self._when > REPEAT_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if not self.received:
            self.received, self._when = number, monotonic()
            if self._announces and number == signal.SIGINT:
                os.write(2, INTERRUPTED)  # the signal may have come in the middle of a print
