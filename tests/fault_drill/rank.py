"""One rank of a run of the drill: ``python -m fault_drill.rank ORDERS train …`` runs ``hybridnn train …``.

The process of the drill injects all faults except exceptions. A rank writes its process id to a marker file, and
another marker file at the moment of the fault, where it may wait for the fault.
"""

from __future__ import annotations

import datetime
import errno
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_drill.moments import watch

PROCESS, HERE, OVER = "process-", "here-", "over"
"""Names of the marker files: ranks write ``process-RANK`` and ``here-RANK``, the drill writes ``over``."""

BROKEN = "fault injected by the drill"
ERRORS = {"RuntimeError": RuntimeError(BROKEN), "OSError": OSError(errno.EIO, os.strerror(errno.EIO))}
LONGEST_WAIT = 300.0


def main() -> None:
    """Run ``hybridnn`` with all arguments but the first, which describes the fault."""
    orders = json.loads(sys.argv[1])
    markers = Path(orders["markers"])
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or 0)
    _write_marker(markers, f"{PROCESS}{rank}")
    shift_clock(orders.get("hours", {}).get(socket.gethostname(), 0))
    from hybridnn.cli import ranks
    from hybridnn.runs import report

    report.draw_learning_curve = lambda *_: None  # it takes a third of the time of a short run
    # How long the process that has started the ranks waits for a silent host
    ranks.SILENT_SECONDS = orders.get("silent_seconds", ranks.SILENT_SECONDS)
    if rank == orders["rank"]:
        injection = _injection(markers, rank, orders["error"], waits=orders["waits"])
        watch(orders["moment"], orders["call"], injection, Path(orders["after"]) if "after" in orders else None)
    from hybridnn.cli.main import main as hybridnn

    hybridnn(sys.argv[2:])


def shift_clock(hours: float) -> None:
    """Shift the wall clock of this process, for all that imports `datetime` from now on.

    Wrong are the times that Python reads, and those of the files that get their names in this process, as on the disk
    of a node with such a clock; namespaces of Linux shift monotonic clocks alone.
    """
    if not hours:
        return
    seconds = 3600 * hours
    now, now_ns, local, utc = time.time, time.time_ns, time.localtime, time.gmtime
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + int(1e9 * seconds)
    time.localtime = lambda moment=None: local(time.time() if moment is None else moment)
    time.gmtime = lambda moment=None: utc(time.time() if moment is None else moment)

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Shifted:
            return cls.fromtimestamp(time.time(), tz)

    datetime.datetime = Shifted  # type: ignore[misc]

    def dated(rename: Callable[..., None]) -> Callable[..., None]:
        def renamed(source: Any, target: Any, **settings: Any) -> None:
            rename(source, target, **settings)
            os.utime(target, (time.time(),) * 2)

        return renamed

    os.rename, os.replace = dated(os.rename), dated(os.replace)


def _injection(markers: Path, rank: int, error: str | None, *, waits: bool) -> Callable[[], None]:
    def injection() -> None:
        _write_marker(markers, f"{HERE}{rank}")
        if error is not None:
            raise ERRORS[error]
        end = time.monotonic() + LONGEST_WAIT
        while waits and not (markers / OVER).exists() and time.monotonic() < end:
            time.sleep(0.0005)

    return injection


def _write_marker(markers: Path, name: str) -> None:
    """Write a file with the process id atomically."""
    hidden = markers / f".{name}"
    hidden.write_text(str(os.getpid()))
    hidden.rename(markers / name)


if __name__ == "__main__":
    main()
