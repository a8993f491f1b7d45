"""What two settings of Open MPI change: all-reduces between nodes and inside one, with and without each.

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

from hybridnn.comm.mpi import import_mpi
from hybridnn.comm.open_mpi import COMMUNICATION, mpirun_settings

BYTES = (1_000, 10_000, 100_000, 400_000, 1_600_000)
ROUNDS = 3
TCP, SUM = "OMPI_MCA_btl_tcp_flags", "OMPI_MCA_coll_libnbc_iallreduce_algorithm"
DEFAULTS = {TCP: "send,put,inplace,need-ack,need-csum,hetero-rdma", SUM: "0"}  # of Open MPI
VARIANTS = {
    "Open MPI's": DEFAULTS,
    "no puts": DEFAULTS | {TCP: COMMUNICATION[TCP]},
    "Rabenseifner": DEFAULTS | {SUM: COMMUNICATION[SUM]},
    "both": {},
}


def measure(repetitions: int) -> dict[str, list[float]]:
    """Median seconds of the slowest rank, of each size, for a blocking and a non-blocking sum in place."""
    mpi = import_mpi()
    comm = mpi.COMM_WORLD
    operations = {
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
            found[name].append(comm.allreduce(median(seconds[1:]), mpi.MAX))
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
    for operation in jobs[0]["both"]:
        for name in VARIANTS:
            columns = zip(*(job[name][operation] for job in jobs), strict=True)
            cells = [f"{1e3 * median(column):.2f}" for column in columns]
            print(f"| {operation} | {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
