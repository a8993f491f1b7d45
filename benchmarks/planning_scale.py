"""Time and memory of planning and simulating large machines: ``python -m benchmarks.planning_scale [WORD ...]``.

Every task runs in a process of its own, so that none finds what another has computed. Tasks are selected by a part of
their name. The machine is ``cluster-1024`` with another number of nodes and of ranks per node.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from time import perf_counter
from types import MappingProxyType

from hybridnn import MLP
from hybridnn.cost.machine import Machine
from hybridnn.cost.machine_file import read_machine
from hybridnn.cost.planning.plan import plan
from hybridnn.cost.prediction.workload import Workload
from hybridnn.cost.simulation import Disturbance, simulate_layout
from hybridnn.pipeline.layout import Layout

WIDE = Workload(MLP([8192] * 41), samples=1_024_000, batch_size=102_400)
NARROW = Workload(MLP([1024] * 33), samples=1_024_000, batch_size=8192)
DEEP = Workload(MLP([1024] * 1025), samples=1_024_000, batch_size=8192)


def cluster(nodes: int, ranks_per_node: int) -> Machine:
    """The machine with other nodes."""
    return read_machine("cluster-1024").model_copy(update={"nodes": nodes, "ranks_per_node": ranks_per_node})


def plan_ranks(workload: Workload, nodes: int, ranks_per_node: int) -> str:
    """Plan all ranks of a machine; return what was found."""
    found = plan(workload, cluster(nodes, ranks_per_node), nodes * ranks_per_node)
    best = found.best_exact
    assert best is not None
    return f"{found.layouts:,} layouts; best exact: {best.layout.describe()}, {best.seconds_per_step:.4g} s"


def simulate_stages(stages: int, disturbance: Disturbance) -> str:
    """Simulate a step of 256 microbatches on 4,096 ranks; return its time."""
    layout = Layout(((4096 // stages, 1),) * stages, (1024 // stages,) * stages, method="1f1b", microbatches=256)
    step = simulate_layout(DEEP, layout, cluster(512, 8), 1, disturbance)
    return f"{step.seconds_per_step:.4g} s per step, {step.mean().bubble / step.seconds_per_step:.0%} bubble"


TASKS: Mapping[str, tuple[Callable[..., str], tuple[object, ...]]] = MappingProxyType(
    {
        "plan 1,024 ranks on 8 nodes, 32 layers": (plan_ranks, (NARROW, 8, 128)),
        "plan 100,000 ranks on 12,500 nodes, 40 layers": (plan_ranks, (WIDE, 12_500, 8)),
        "plan 100,000 ranks on 10,000 nodes, 40 layers": (plan_ranks, (WIDE, 10_000, 10)),
        "simulate 256 stages": (simulate_stages, (256, Disturbance())),
        "simulate 1,024 stages": (simulate_stages, (1024, Disturbance())),
        "simulate 1,024 stages, one rank slow": (simulate_stages, (1024, Disturbance(slow={7: 2.0}))),
    }
)


def measure(name: str) -> tuple[float, int, str]:
    """Seconds of a task, the largest memory of this process in bytes, and the task's result."""
    task, arguments = TASKS[name]
    start = perf_counter()
    result = task(*arguments)
    return perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, result


def main() -> None:
    """Run the selected tasks one after another."""
    words = sys.argv[1:]
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in TASKS:
            if not words or any(word in name for word in words):
                seconds, nbytes, result = pool.apply(measure, (name,))
                print(f"{name}: {seconds:.1f} s, {nbytes / 1e6:.0f} MB\n    {result}", flush=True)


if __name__ == "__main__":
    main()
