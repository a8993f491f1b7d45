"""A wrong wall clock of a process: namespaces of Linux shift monotonic clocks alone.

Wrong are the times that Python reads, and those of the files that get their names in this process, as on the disk of a
node with such a clock. MPI, mpirun and the system keep the right time.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from typing import Any

__all__ = ["shift_clock"]


def shift_clock(hours: float) -> None:
    """Shift the wall clock of this process, for all that imports `datetime` from now on."""
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
    os.rename, os.replace = _dated(os.rename), _dated(os.replace)


def _dated(rename: Callable[..., None]) -> Callable[..., None]:
    """`rename`, which also gives the file the time of the clock."""

    def renamed(source: Any, target: Any, **settings: Any) -> None:
        rename(source, target, **settings)
        os.utime(target, (time.time(),) * 2)

    return renamed
