"""Waiting for other ranks without keeping a core busy."""

from __future__ import annotations

from time import sleep

import numpy as np

from hybridnn.comm.group import Group

__all__ = ["meet_asleep"]

DOZE_SECONDS = 1e-3


def meet_asleep(group: Group) -> None:
    """Return when every rank has arrived; asleep meanwhile, because ranks that wait in a barrier disturb the others."""
    request = group.iallreduce(np.zeros(1))
    while not request.test():
        sleep(DOZE_SECONDS)
