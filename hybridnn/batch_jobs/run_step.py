"""Run of a command for a batch script: forwards the script's signals, and writes the exit code to a file.

``python -m hybridnn.batch_jobs.run_step FILE COMMAND…`` exists because bash 5.2 may lose the exit code of a process
that ends while a trapped signal arrives: ``wait`` then returns -1, and a run that should be requeued would end its job.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

FORWARDED = {signal.SIGUSR1, signal.SIGTERM}


def run_step(command: Sequence[str]) -> int:
    """Run a command; returns its exit code, 128 + N after signal N.

    Signals that the parent process sends are forwarded. Those of others, such as Slurm's to all processes of a job, are
    not, because the command receives them as well.
    """
    signals = FORWARDED | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    child = os.posix_spawnp(command[0], list(command), os.environ, setsigmask=before)
    while True:
        received = signal.sigwaitinfo(signals)
        if received.si_signo != signal.SIGCHLD:
            if received.si_pid == os.getppid():
                os.kill(child, received.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _main(file: str, *command: str) -> int:
    code = run_step(command)
    if file:  # empty if there is no room for a file
        Path(file).write_text(f"{code}\n", encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
