"""One rank of a run of the drill: ``python -m fault_drill.rank ORDERS train …`` is ``hybridnn train …`` under watch.

The faults themselves come from outside, but for exceptions. A rank tells its process id, and when it comes to the
moment of the strike; where that is to happen exactly there, it waits.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fault_drill.moments import watch

__all__ = ["BROKEN", "HERE", "OVER", "PROCESS", "main"]

PROCESS, HERE, OVER = "process-", "here-", "over"
"""Names of the files by which ranks and drill speak: ``process-RANK``, ``here-RANK`` from ranks, ``over`` to them."""

BROKEN = "the drill broke this rank"
ERRORS = {"RuntimeError": RuntimeError(BROKEN), "OSError": OSError(errno.EIO, os.strerror(errno.EIO))}
LONGEST_WAIT = 300.0


def main() -> None:
    """Run ``hybridnn`` with the arguments after the first, which are the orders."""
    orders = json.loads(sys.argv[1])
    signs = Path(orders["signs"])
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or 0)
    _tell(signs, f"{PROCESS}{rank}")
    _draw_no_picture()
    if rank == orders["rank"]:
        watch(orders["moment"], orders["call"], _strike(signs, rank, orders["error"], waits=orders["waits"]))
    from hybridnn.cli.main import main as hybridnn

    hybridnn(sys.argv[2:])


def _draw_no_picture() -> None:
    """Leave out what takes a third of the time of so short a run, and what nobody looks at."""
    from hybridnn.runs import learning_curve

    learning_curve.draw_learning_curve = lambda epochs, path: None


def _strike(signs: Path, rank: int, error: str | None, *, waits: bool) -> Callable[[], None]:
    def strike() -> None:
        _tell(signs, f"{HERE}{rank}")
        if error is not None:
            raise ERRORS[error]
        end = time.monotonic() + LONGEST_WAIT
        while waits and not (signs / OVER).exists() and time.monotonic() < end:
            time.sleep(0.0005)

    return strike


def _tell(signs: Path, name: str) -> None:
    """Leave a file with the process id, which is there whole or not at all."""
    hidden = signs / f".{name}"
    hidden.write_text(str(os.getpid()))
    hidden.rename(signs / name)


if __name__ == "__main__":
    main()
