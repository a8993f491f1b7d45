"""The note of a rank that left: its interpreter ended, or nothing is left of its process grid.

Such a rank never enters another call of that grid. So a rank that waits for it waits for ever, and can end the job at
once. The note is written while the interpreter ends, before MPI does: MPI ends together on all ranks.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from hybridnn.comm.calls import Channel
from hybridnn.comm.failsafe import NotedExit
from hybridnn.comm.stalls.files import StallFiles
from hybridnn.comm.stalls.observe import groups_of
from hybridnn.comm.stalls.state import RankState

__all__ = ["Departure"]


@dataclass
class Departure:
    """What a rank writes when it leaves. It keeps nothing of the grid alive but the counts of its calls.

    Attributes
    ----------
    files : StallFiles
    rank, size : int
    ranks : tuple of int
        Those that see the files.
    channels : sequence of Channel
        The grid's groups.
    process : int
        The process that is to leave; one that was forked from it is not meant.
    """

    files: StallFiles
    rank: int
    size: int
    ranks: tuple[int, ...]
    channels: Sequence[Channel]
    process: int = field(default_factory=os.getpid)

    def note(self) -> None:
        """Write that the rank left; the last one that leaves removes what all wrote."""
        if os.getpid() != self.process:
            return
        exited = not threading.main_thread().is_alive()
        state = RankState(
            rank=self.rank,
            size=self.size,
            host=socket.gethostname(),
            process=self.process,
            time=datetime.now().astimezone().isoformat(timespec="milliseconds"),
            beat=0,
            idle_seconds=0.0,
            stalled=False,
            busy="",
            waits_for=None,
            site=None,
            caller=None,
            stack=(),
            groups=groups_of(self.channels),
            finished=(),
            left=_way_of_leaving(exited=exited),
            exited=exited,
        )
        with contextlib.suppress(OSError):
            self.files.write(state)
            if self.files.count_left() == len(self.ranks):
                self.files.clear()


def _way_of_leaving(*, exited: bool) -> str:
    call = sys.exit.call if isinstance(sys.exit, NotedExit) else ""
    if call:
        return f"its script ended with {call}"
    return "its script ended" if exited else "its trainer and its process grid no longer exist"
