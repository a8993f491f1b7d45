"""Job of trainings between nodes: each is compared with one process, and rank 0 prints a line for it.

    mpirun -n 4 python -m cluster.training_job 2,2 200

The arguments are the number of ranks on each node, and of trainings.
"""

import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import mkdtemp

from mpi4py import MPI

from hybridnn import ProcessGrid, Trainer
from hybridnn.checkpoints.reading import newest_valid
from hybridnn.checkpoints.writing import checkpoint_writer
from hybridnn.parallel.model_chunk import PrivateReplica
from hybridnn.parallel.shared_replica import SharedReplica
from reference.cases import Case, assert_arrays_same, check_against_reference, local_data, make_trainer
from reference.pipeline_cases import ADAM
from reference.training_cases import check_training
from reference.training_list import SHARED, all_cases

Check = Callable[[], object]
"""Collective; raises an error if something is wrong."""

WORLD = MPI.COMM_WORLD


class Nodes:
    """Ranks on every node, as they must be."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = tuple(counts)
        self.hosts = [f"node{number}" for number, ranks in enumerate(counts, 1) for _ in range(ranks)]

    def check(self) -> None:
        """See that every rank is on its node, and that MPI and the grid know it."""
        assert WORLD.allgather(socket.gethostname()) == self.hosts
        own = self.counts[int(socket.gethostname().removeprefix("node")) - 1]
        assert WORLD.Split_type(MPI.COMM_TYPE_SHARED).Get_size() == own
        grid = ProcessGrid(WORLD)
        assert (grid.nodes, grid.node_ranks, grid.node_group.size) == (len(self.counts), max(self.counts), own)


def training_cases(nodes: Nodes, number: int) -> Iterator[tuple[str, Check]]:
    """So many cases of all grids, methods and settings on as many ranks, drawn at random."""
    cases = [it for it in all_cases() if it.ranks == WORLD.size and it.case.shared_replicas is not True]
    for it in Random(f"{nodes.counts}").sample(cases, number):
        yield str(it), lambda it=it: check_training(it, WORLD)


def mapping_of(address: int) -> str:
    """Device and file of the memory at an address, where other processes may see it; else empty."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, access, _, device, inode, *_ = line.split()
        start, stop = (int(end, 16) for end in span.split("-"))
        if start <= address < stop:
            return f"{device} {inode}" if access.endswith("s") else ""
    return ""


def check_sharing(trainer: Trainer, nodes: Nodes) -> None:
    """See that all ranks of a node that has several have their weights in the same memory."""
    chunk = trainer.engine.chunks[0]
    assert isinstance(chunk.replica, SharedReplica)
    memory = mapping_of(chunk.weights.ctypes.data)
    of_ranks = WORLD.allgather((socket.gethostname(), memory))
    for host, ranks in zip(dict.fromkeys(nodes.hosts), nodes.counts, strict=True):
        found = {memory for other, memory in of_ranks if other == host}
        assert len(found) == 1, f"{host} has {found}"
        assert ranks == 1 or found != {""}, f"{host} shares no memory"


def replica_cases(nodes: Nodes, number: int) -> Iterator[tuple[str, Check]]:
    """Replicas that the ranks of a node share; or, without such nodes, replicas of their own by default."""
    grid = ProcessGrid(WORLD)

    def check(case: Case) -> None:
        trainer = check_against_reference(case, grid)
        if max(nodes.counts) > 1:
            check_sharing(trainer, nodes)
        else:
            assert isinstance(trainer.engine.chunks[0].replica, PrivateReplica)

    for case in SHARED:
        for wanted in ("auto", True) if max(nodes.counts) > 1 else ("auto",):
            shared = replace(case, shared_replicas=wanted)
            yield f"shared replicas, {shared}", lambda case=shared: check(case)


def checkpoint_cases(nodes: Nodes, number: int) -> Iterator[tuple[str, Check]]:
    """Checkpoints in a folder that all nodes see, from which another trainer goes on to the last bit."""

    def check(case: Case, grid: ProcessGrid, method: str | None) -> None:
        settings = {} if method is None else {"method": method}
        first, second = (make_trainer(case, grid, **settings) for _ in range(2))
        first.fit(*local_data(case, grid), epochs=1)
        # The working directory of the job is that of the test.
        folder = Path(WORLD.bcast(mkdtemp(dir=Path.cwd()) if WORLD.rank == 0 else None))
        checkpoint_writer(first, folder, "numbers").write(first.progress)
        found, problems = newest_valid(folder, grid.world)
        assert found is not None, problems
        second.restore(found.read_into, found.manifest.progress)
        for trainer in (first, second):
            trainer.fit(*local_data(case, grid), epochs=1)
        assert_arrays_same(second.weights(), first.weights())

    adam = Case(optimizer="adam")
    yield "a checkpoint of a grid", lambda: check(adam, ProcessGrid(WORLD, model=2 - WORLD.size % 2), None)
    pipeline = ProcessGrid(WORLD, pipeline=WORLD.size)
    yield "a checkpoint of a pipeline", lambda: check(ADAM, pipeline, "pipedream")


GROUPS = {"trainings": training_cases, "shared replicas": replica_cases, "checkpoints": checkpoint_cases}


def run(group: str, cases: Mapping[str, Check]) -> None:
    """Check the cases of a group; rank 0 prints ``ok`` or ``failed`` for each."""
    for name, check in cases.items():
        problem = ""
        try:
            check()
        except Exception as error:
            problem = f"rank {WORLD.rank} on {socket.gethostname()}: {type(error).__name__}: {error}"
            traceback.print_exc()
        problems = list(filter(None, WORLD.allgather(problem)))
        if WORLD.rank == 0:
            print("\t".join([group, name, " ".join("; ".join(problems).split()) or "ok"]), flush=True)


def main() -> None:
    """Run all groups."""
    nodes, number = Nodes([int(count) for count in sys.argv[1].split(",")]), int(sys.argv[2])
    nodes.check()
    for group, cases in GROUPS.items():
        run(group, dict(cases(nodes, number)))
    if WORLD.rank == 0:
        print(f"library\t{MPI.Get_library_version().splitlines()[0].split(',')[0]}\tok", flush=True)
        print(f"end\t{os.getcwd()}\tok", flush=True)


if __name__ == "__main__":
    main()
