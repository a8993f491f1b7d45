"""Job of trainings between nodes: each is compared with one process, and rank 0 prints a line for it.

    mpirun -n 4 python -m cluster.training_job 2,2 1

The arguments are the number of ranks on each node, and a step: of the groups with many cases, every case that it hits.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

from mpi4py import MPI

from hybridnn import ProcessGrid, Trainer
from hybridnn.checkpoints.reading import newest_valid
from hybridnn.checkpoints.writing import checkpoint_writer
from hybridnn.parallel.model_chunk import PrivateReplica
from hybridnn.parallel.shared_replica import SharedReplica
from reference.cases import OPTIMIZERS, Case, assert_arrays_same, check_against_reference, local_data, make_trainer
from reference.pipeline_cases import (
    ADAM,
    COSINE,
    PipelineCase,
    check_pipelined,
    few_of_each,
    short_training,
)
from reference.sweeps import SPLITS, grid_shapes, layouts, trainings

Check = Callable[[], object]
"""Collective; raises an error if something is wrong."""

WORLD = MPI.COMM_WORLD
SHARED = Case(optimizer="adam", clip_norm=0.3, shared_replicas=True)

STAGES: dict[int, list[list[tuple[int, int]]]] = {
    3: [[(1, 1), (2, 1)], [(1, 2), (1, 1)]],
    4: [[(2, 1), (1, 2)], [(3, 1), (1, 1)], [(1, 1), (1, 2), (1, 1)]],
    6: [[(2, 2), (1, 2)], [(1, 3), (3, 1)], [(2, 1), (1, 1), (1, 3)]],
}
"""Batch and model ranks of every stage, by number of ranks."""


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


def grids_cases(nodes: Nodes) -> Iterator[tuple[str, Check]]:
    """Every grid without a pipeline: splits, distributions, overlap, optimizers, rates, clipping, uneven sizes."""
    for batch, model in grid_shapes(WORLD.size):
        grid = ProcessGrid(WORLD, batch=batch, model=model)
        for case in (*layouts((batch, model)), *trainings((batch, model))):
            yield f"{batch} x {model} | {case}", lambda grid=grid, case=case: check_against_reference(case, grid)


def pipeline_cases(nodes: Nodes) -> Iterator[tuple[str, Check]]:
    """Every method on stages of one rank and of several, and on stages of different widths."""
    size = WORLD.size
    axes: list[dict[str, Any]] = [
        {"pipeline": stages, "batch": batch, "model": model}
        for stages in range(2, size + 1)
        if size % stages == 0
        for batch, model in grid_shapes(size // stages)
    ]
    for given in [*axes, *({"stages": stages} for stages in STAGES[size])]:
        grid, random = ProcessGrid(WORLD, **given), Random(f"{given}")
        for it in few_of_each(grid.pipeline):
            case = short_training(it.method, grid.pipeline) if grid.pipeline > 4 else it.case
            case = replace(case, overlap=random.random() < 0.5, model_split=random.choice(SPLITS))
            it = replace(it, case=case)
            yield f"{given} | method={it}", lambda it=it, grid=grid: check_pipelined(it, grid)


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


def replica_cases(nodes: Nodes) -> Iterator[tuple[str, Check]]:
    """Replicas that the ranks of a node share; or, without such nodes, replicas of their own by default."""
    grid = ProcessGrid(WORLD)

    def check(case: Case) -> None:
        trainer = check_against_reference(case, grid)
        if max(nodes.counts) > 1:
            check_sharing(trainer, nodes)
        else:
            assert isinstance(trainer.engine.chunks[0].replica, PrivateReplica)

    for number, optimizer in enumerate(OPTIMIZERS):
        wanted = True if max(nodes.counts) > 1 and number % 2 else "auto"
        samples, batch_size = ((37, 10), (31, 10), (5, 3))[number % 3]
        case = replace(SHARED, optimizer=optimizer, samples=samples, batch_size=batch_size, shared_replicas=wanted)
        yield f"shared replicas, {case}", lambda case=case: check(case)
    if max(nodes.counts) > 1:
        for method in ("pipedream", "fr", "spectrain", "1f1b"):
            stages = [(WORLD.size - 1, 1), (1, 1)]
            it = PipelineCase(method, replace(COSINE, shared_replicas=True))
            pipeline = ProcessGrid(WORLD, stages=stages)
            yield f"shared replicas, {stages}, {it}", lambda it=it, grid=pipeline: check_pipelined(it, grid)


def checkpoint_cases(nodes: Nodes) -> Iterator[tuple[str, Check]]:
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


GROUPS: dict[str, Callable[[Nodes], Iterator[tuple[str, Check]]]] = {
    "grids": grids_cases,
    "pipelines": pipeline_cases,
    "shared replicas": replica_cases,
    "checkpoints": checkpoint_cases,
}
MANY = ("grids", "pipelines")


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
    nodes, step = Nodes([int(count) for count in sys.argv[1].split(",")]), int(sys.argv[2])
    nodes.check()
    for group, cases in GROUPS.items():
        run(group, dict(list(cases(nodes))[:: step if group in MANY else 1]))
    if WORLD.rank == 0:
        print(f"library\t{MPI.Get_library_version().splitlines()[0].split(',')[0]}\tok", flush=True)
        print(f"end\t{os.getcwd()}\tok", flush=True)


if __name__ == "__main__":
    main()
