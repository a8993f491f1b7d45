"""Somebody who still speaks when MPI ends or keeps this process while it starts.

Starting MPI cannot be interrupted, and a library that does not understand its launcher may end the process on the spot.
A small child process, which holds the words for either case, watches.
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
    """Context: if this process dies in it, or stays in it too long, a child prints the words for that.

    A process that stays too long is killed as well.

    Parameters
    ----------
    if_dead, if_stuck : str
        What to print on this process's standard output.
    seconds : float
        How long is too long.
    """

    def __init__(self, if_dead: str, if_stuck: str, seconds: float) -> None:
        self._order = {"dead": if_dead, "stuck": if_stuck, "seconds": seconds, "process": os.getpid()}

    def __enter__(self) -> None:
        sys.stdout.flush()
        # -I -S: without the site's packages it starts in an instant. Its own session: it is not ended with the ranks.
        command = [sys.executable, "-I", "-S", __file__]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(self._order).encode() + b"\n")
        self._child.stdin.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._child.communicate(b"all is well\n")


def _watch() -> None:
    for kind in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(kind, signal.SIG_IGN)  # a launcher that ends its ranks may mean this process too
    with open(0, "rb", buffering=0) as pipe:  # a buffer would hide from `select` what has been read ahead
        order = json.loads(pipe.readline())
        ready, _, _ = select.select([pipe], [], [], order["seconds"])
        if ready and pipe.read(1):
            return
    print(order["dead" if ready else "stuck"], flush=True)
    if not ready:
        os.kill(order["process"], signal.SIGKILL)


if __name__ == "__main__":
    _watch()
