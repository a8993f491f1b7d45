"""What settings of Open MPI change: all-reduces, and messages while the sender computes; with and without each.

``python -m benchmarks.open_mpi_settings -n 4``, on one node or in a job of several, prints one table. Every setting is
measured in jobs of its own, in turn, because Open MPI reads its settings once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from statistics import median

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.mpi import import_mpi
from hybridnn.comm.open_mpi import COMMUNICATION, mpirun_settings

BYTES = (1_000, 10_000, 100_000, 400_000, 1_600_000)
ROUNDS = 3
COMPUTING = 5e-3  # seconds that the sender of a message computes after it has begun to send, and more for large ones
COMPUTING_PER_BYTE = 1e-7

TCP, SUM = "OMPI_MCA_btl_tcp_flags", "OMPI_MCA_coll_libnbc_iallreduce_algorithm"
EAGER, FRAGMENT = "OMPI_MCA_btl_tcp_eager_limit", "OMPI_MCA_btl_tcp_max_send_size"
DEFAULTS = {  # of Open MPI
    TCP: "send,put,inplace,need-ack,need-csum,hetero-rdma",
    SUM: "0",
    EAGER: "65536",
    FRAGMENT: "131072",
}
VARIANTS = {
    "Open MPI's": DEFAULTS,
    "no puts": DEFAULTS | {TCP: COMMUNICATION[TCP]},
    "Rabenseifner": DEFAULTS | {SUM: COMMUNICATION[SUM]},
    "at once": DEFAULTS | {name: COMMUNICATION[name] for name in (EAGER, FRAGMENT)},
    "all": {},
}


def measure(repetitions: int) -> dict[str, list[float]]:
    """Median seconds of the slowest rank, of each size.

    The operations are a blocking and a non-blocking sum in place, and a message from rank 0 to rank 1 that arrives
    while rank 0 computes; the time of rank 0 is not counted.
    """
    mpi = import_mpi()
    comm = mpi.COMM_WORLD

    def send_and_compute(array: NDArray[np.float32]) -> None:
        if comm.rank == 0:
            request = comm.Isend(array, 1)
            end = time.perf_counter() + COMPUTING + COMPUTING_PER_BYTE * array.nbytes
            while time.perf_counter() < end:
                pass
            request.Wait()
        elif comm.rank == 1:
            comm.Recv(array, 0)

    operations = {
        "Isend, then computing": send_and_compute,
        "Allreduce": lambda array: comm.Allreduce(mpi.IN_PLACE, array),
        "Iallreduce": lambda array: comm.Iallreduce(mpi.IN_PLACE, array).Wait(),
    }
    found: dict[str, list[float]] = {name: [] for name in operations}
    for nbytes in BYTES:
        array = np.zeros(nbytes // 4, np.float32)
        for name, operation in operations.items():
            seconds = []
            for _ in range(repetitions + 1):  # the first opens connections
                comm.Barrier()
                start = time.perf_counter()
                operation(array)
                seconds.append(time.perf_counter() - start)
            is_counted = comm.rank == 1 or operation is not send_and_compute
            found[name].append(comm.allreduce(median(seconds[1:]) if is_counted else 0.0, mpi.MAX))
    return found


def run(ranks: int, settings: dict[str, str]) -> dict[str, list[float]]:
    """`measure` in a job of its own with these settings."""
    command = ["mpirun", "-n", str(ranks), sys.executable, "-m", "benchmarks.open_mpi_settings", "--rank"]
    environment = mpirun_settings(oversubscribed=False) | dict(os.environ) | settings
    found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, list[float]] = json.loads(found.stdout)
    return result


def main() -> None:
    """Print a table in milliseconds: the median of the jobs of each variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--ranks", type=int, default=4)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        found = measure(repetitions=9)
        if import_mpi().COMM_WORLD.Get_rank() == 0:
            print(json.dumps(found))
        return
    jobs = [{name: run(arguments.ranks, settings) for name, settings in VARIANTS.items()} for _ in range(ROUNDS)]
    print("| operation | settings | " + " | ".join(f"{nbytes // 1000} kB" for nbytes in BYTES) + " |")
    print("|---" * (len(BYTES) + 2) + "|")
    for operation in jobs[0]["all"]:
        for name in VARIANTS:
            columns = zip(*(job[name][operation] for job in jobs), strict=True)
            cells = [f"{1e3 * median(column):.2f}" for column in columns]
            print(f"| {operation} | {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
