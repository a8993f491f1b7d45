"""Where the ranks run: known to all before anything can go wrong, as a rank that is dead tells nothing any more."""

from __future__ import annotations

import os
import socket

import numpy as np

from hybridnn.comm.group import Group

__all__ = ["processes_of"]

BYTES = 80


def processes_of(group: Group) -> tuple[str, ...]:
    """Host and process of every rank of `group`, in its order; collective."""
    texts = np.zeros((group.size, BYTES), np.uint8)
    mine = f"host {socket.gethostname()[: BYTES // 2]}, process {os.getpid()}".encode(errors="replace")[:BYTES]
    texts[group.rank, : len(mine)] = np.frombuffer(mine, np.uint8)
    group.allgather_rows(texts)
    return tuple(text.tobytes().rstrip(b"\0").decode(errors="replace") for text in texts)
