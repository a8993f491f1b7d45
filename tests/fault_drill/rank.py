"""One rank of a run of the drill: ``python -m fault_drill.rank ORDERS train …`` runs ``hybridnn train …``.

The process of the drill injects all faults except exceptions. A rank writes its process id to a marker file, and
another marker file at the moment of the fault, where it may wait for the fault.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fault_drill.clocks import shift_clock
from fault_drill.moments import watch

__all__ = ["BROKEN", "HERE", "OVER", "PROCESS", "main"]

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
    if "silent_seconds" in orders:
        _set_silent_seconds(orders["silent_seconds"])
    _disable_learning_curve()
    if rank == orders["rank"]:
        injection = _injection(markers, rank, orders["error"], waits=orders["waits"])
        watch(orders["moment"], orders["call"], injection, Path(orders["after"]) if "after" in orders else None)
    from hybridnn.cli.main import main as hybridnn

    hybridnn(sys.argv[2:])


def _disable_learning_curve() -> None:
    """Disable the learning curve, which takes a third of the time of a short run."""
    from hybridnn.runs import report

    report.draw_learning_curve = lambda *_: None


def _set_silent_seconds(seconds: float) -> None:
    """Set the time after which the process that has started the ranks gives up a host."""
    from hybridnn.cli import ranks

    ranks.SILENT_SECONDS = seconds


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
