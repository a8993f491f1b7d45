"""Startup watchdog: a child process that prints a report if MPI ends or blocks this process while it starts.

Starting MPI cannot be interrupted, and a library that does not understand its launcher may end the process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from types import TracebackType


class StartupWatchdog:
    """Context in which a child process watches this one, and kills it after `seconds`.

    The child prints `if_dead` if this process ends in the context, and `if_stuck` before it kills it; an empty text is
    not printed.
    """

    def __init__(self, if_dead: str, if_stuck: str, seconds: float) -> None:
        self._order = {"dead": if_dead, "stuck": if_stuck, "seconds": seconds, "process": os.getpid()}

    def __enter__(self) -> None:
        sys.stdout.flush()
        # -I -S: it starts at once without the site's packages. A session of its own: it does not end with the ranks.
        command = [sys.executable, "-I", "-S", __file__]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(self._order).encode() + b"\n")
        self._child.stdin.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._child.communicate(b"started\n")


def _watch() -> None:
    for kind in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(kind, signal.SIG_IGN)  # a launcher may send them to this process too
    with open(0, "rb", buffering=0) as pipe:  # `select` does not see what a buffer has read ahead
        order = json.loads(pipe.readline())
        ready, _, _ = select.select([pipe], [], [], order["seconds"])
        if ready and pipe.read(1):
            return
    if report := order["dead" if ready else "stuck"]:
        print(report, flush=True)
    if not ready:
        os.kill(order["process"], signal.SIGKILL)


if __name__ == "__main__":
    _watch()
