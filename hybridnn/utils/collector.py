"""The garbage collector of Python while a program starts and ends."""

from __future__ import annotations

import atexit
import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Do not look for garbage in the block: it imports modules, whose objects stay.

    Each time their number has grown by a quarter, the collector would visit them all: a tenth of the time to start.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def skip_last_collection() -> None:
    """Leave the memory of this process to the system when it ends.

    Python would look for garbage among all objects several times then, for as long as half an import of NumPy.
    """
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
