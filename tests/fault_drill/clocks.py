"""A wrong wall clock of a process: namespaces of Linux shift monotonic clocks alone."""

from __future__ import annotations

import datetime
import time

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
