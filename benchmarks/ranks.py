"""What the benchmarks on several ranks have in common: where ranks meet, PyTorch's connections, and who prints."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep
from typing import Any

from mpi4py import MPI

__all__ = ["WORLD", "gloo", "meet", "tell"]

WORLD = MPI.COMM_WORLD

POLL_SECONDS = 0.001
"""Between two looks of a rank that has nothing to do and is to leave the machine to the others."""


def meet() -> None:
    """Wait for all ranks, asleep."""
    everyone = WORLD.Ibarrier()
    while not everyone.Test():
        sleep(POLL_SECONDS)


@contextmanager
def gloo() -> Iterator[None]:
    """Let PyTorch, with one thread, connect the same ranks by gloo."""
    import torch

    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(WORLD.bcast(_free_port()))
    torch.distributed.init_process_group("gloo", rank=WORLD.rank, world_size=WORLD.size)
    yield
    torch.distributed.destroy_process_group()


def tell(row: dict[str, Any]) -> None:
    """Rank 0 prints figures as a line of JSON."""
    if WORLD.rank == 0:
        print(json.dumps(row), flush=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
