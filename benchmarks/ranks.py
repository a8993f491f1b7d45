"""Helpers of benchmarks on several ranks: an idle barrier, connections of PyTorch, and printing on rank 0."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep
from typing import Any

from mpi4py import MPI

WORLD = MPI.COMM_WORLD

POLL_SECONDS = 0.001
"""Time between two tests of a rank that waits without using its core."""


def idle_barrier() -> None:
    """A barrier in which waiting ranks sleep."""
    request = WORLD.Ibarrier()
    while not request.Test():
        sleep(POLL_SECONDS)


@contextmanager
def gloo() -> Iterator[None]:
    """Connect the ranks in PyTorch by gloo, with one thread each."""
    import torch

    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(WORLD.bcast(_free_port()))
    torch.distributed.init_process_group("gloo", rank=WORLD.rank, world_size=WORLD.size)
    yield
    torch.distributed.destroy_process_group()


def print_row(row: dict[str, Any]) -> None:
    """Print results as a line of JSON on rank 0."""
    if WORLD.rank == 0:
        print(json.dumps(row), flush=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
