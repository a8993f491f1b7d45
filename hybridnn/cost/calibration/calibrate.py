"""Calibration: a `Machine` from measurements of communication, overlap, computing and memory, with their quality."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import mean

import numpy as np

from hybridnn.comm.agreement import agree, broadcast_text
from hybridnn.comm.mpi import library_version
from hybridnn.comm.threads import cores_of_node, limit_blas_threads
from hybridnn.cost.calibration.communication import measure_communication, measure_overhead, measure_overlap
from hybridnn.cost.calibration.computation import ComputeError, StepTimer, calibrate_compute
from hybridnn.cost.calibration.fit import LARGE_BYTES, FittedOperation, fit_operations, fit_overhead
from hybridnn.cost.calibration.whole_steps import correct, measure_whole_steps
from hybridnn.cost.machine import Compute, Machine, NetworkLink, Overlap, Quality, Segment
from hybridnn.diagnostics.hosts import blas_library, busy_text, processor_name
from hybridnn.errors import EnvironmentProblem
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.partition import TYPICAL_LINK
from hybridnn.utils.memory import available_memory
from hybridnn.utils.text import counted

DTYPES = ("float32", "float64")
# fractions of the time; computing has the rest
COMMUNICATION_SHARE, WHOLE_STEPS_SHARE, OVERLAP_SHARE, OVERHEAD_SHARE = 0.35, 0.15, 0.1, 0.05


@dataclass(frozen=True)
class Calibration:
    """A measured machine, with the errors of its coefficients on held-out samples.

    `missing` is what could not be measured, and what replaces it; `oversubscription` warns of more ranks than cores.
    """

    machine: Machine
    fits: tuple[FittedOperation, ...]
    compute_errors: tuple[ComputeError, ...]
    missing: tuple[str, ...]
    oversubscription: str


def calibrate(
    grid: ProcessGrid,
    seconds: float,
    seed: int,
    time_step: StepTimer,
    *,
    report: Callable[[str], None] = lambda text: None,
    forced: bool = True,
) -> Calibration:
    """Measure the machine in about so many seconds; collective over the grid, and the result of rank 0 counts.

    With one rank only computing is measured. `time_step` times training steps, as
    `hybridnn.runs.step_timer.TrainingTimer` does, and `report` gets a description of each measurement.

    Raises `EnvironmentProblem` on every rank, before the first measurement: the machine is busy, and not `forced`.
    """
    memory = memory_bytes_per_rank(grid)
    threads = limit_blas_threads(grid.node_group).count
    cores = cores_of_node(grid.node_group)
    load, busy_ranks = other_load(grid, threads)
    if not forced and (busy := busy_text(load, busy_ranks, f"the job's own {busy_ranks}")):
        raise EnvironmentProblem(f"{busy}; calibrate it when it is idle, or with --force")
    about = host_facts(grid, threads) | {"cores_per_node": str(cores), "seconds": f"{seconds:g}", "seed": str(seed)}
    about["how"] = "one group of ranks at a time, while the others slept; one pair at a time for messages"
    fits = fit_operations(measure_communication(grid, COMMUNICATION_SHARE * seconds, seed, report))
    overlap, compute_share = Overlap(), 1.0
    if grid.size > 1:
        report("an all-reduce beside matrix products")
        hidden, slowdown = measure_overlap(grid.world, OVERLAP_SHARE * seconds)
        factor = next(fit.factor for fit in fits if fit.operation == "iallreduce")
        overlap = Overlap(hidden_fraction=hidden, compute_slowdown=slowdown, nonblocking_factor=factor)
        compute_share = 1 - COMMUNICATION_SHARE - OVERLAP_SHARE
    if has_steps := grid.node_ranks > 1:  # which correct what is inside a node
        compute_share -= WHOLE_STEPS_SHARE
    overhead = None
    if grid.nodes > 1:
        report("messages between nodes beside matrix products")
        overhead = fit_overhead(measure_overhead(grid, OVERHEAD_SHARE * seconds))
        compute_share -= OVERHEAD_SHARE
    report("passes of layers and updates")
    compute, errors = calibrate_compute(grid, DTYPES, compute_share * seconds, seed, time_step)
    inside, between = _link(fits, spans_nodes=False), _link(fits, spans_nodes=True)
    missing, oversubscription, node_ranks = _missing(grid, inside), "", grid.node_group.size
    if node_ranks * threads > cores:
        shared = f"{node_ranks} ranks x {threads} threads share {cores} cores"
        oversubscription = f"{shared}: all times include waiting for a core"
    notes = {"not_measured": "; ".join(missing), "crowded": oversubscription}
    typical = Segment(alpha_seconds=TYPICAL_LINK.alpha, beta_seconds_per_byte=TYPICAL_LINK.beta)
    machine = Machine(
        name=about["host"],
        nodes=grid.nodes,
        # As many as the cores of a node can serve, and no fewer than were measured.
        ranks_per_node=max(cores // threads, node_ranks),
        memory_bytes_per_rank=memory,
        inside_node=inside or between or NetworkLink(segments=(typical,)),
        between_nodes=between and between.model_copy(update={"overhead": overhead}),
        gamma_seconds_per_byte=compute[-1].packing.number_seconds / compute[-1].itemsize,  # an addition, as in packing
        overlap=overlap,
        collectives=tuple(fit.cost for fit in fits if fit.operation not in ("send", "iallreduce")),
        compute=tuple(compute),
        quality=assess_quality(fits, errors, compute, load, busy_ranks),
        about=about | {key: text for key, text in notes.items() if text},
    )
    if has_steps:
        report("training steps of all ranks")
        steps = measure_whole_steps(grid, WHOLE_STEPS_SHARE * seconds, seed, time_step)
        machine = agree(grid.world, lambda: correct(machine, steps) if grid.rank == 0 else machine, errors=Exception)
    # Ranks have measured different times, and some things rank 0 alone: its machine counts.
    machine = Machine.model_validate_json(broadcast_text(grid.world, machine.model_dump_json(), 0))
    return Calibration(machine, fits, tuple(errors), missing, oversubscription)


def _link(fits: tuple[FittedOperation, ...], *, spans_nodes: bool) -> NetworkLink | None:
    found = [fit.cost for fit in fits if fit.operation == "send" and fit.cost.spans_nodes == spans_nodes]
    return NetworkLink(segments=found[0].segments) if found else None


def _missing(grid: ProcessGrid, inside: NetworkLink | None) -> tuple[str, ...]:
    """What the job had too few ranks for."""
    if grid.size == 1:
        alpha, beta = TYPICAL_LINK.alpha, TYPICAL_LINK.beta
        link = f"alpha {alpha:g} s and beta {beta:g} s per byte, usual inside a node, stand for the link"
        return (
            f"messages need 2 ranks: {link}",
            "collectives need 2 ranks: they cost what the best algorithm costs over that link",
            "overlap needs 2 ranks: nothing is assumed to overlap",
        )
    if inside is None:
        return ("messages inside a node need 2 ranks there: those between nodes stand for them",)
    return ()


# -- quality ---------------------------------------------------------------------------------------------------------


def assess_quality(
    fits: Iterable[FittedOperation],
    errors: Sequence[ComputeError],
    compute: Iterable[Compute],
    load: float,
    busy_ranks: int,
) -> Quality:
    """Quality of a calibration: the worst of the mean errors on what was held out, with the load of `other_load`.

    Computing has a mean over the kinds of pass for every precision and number of busy ranks.
    """
    judged = [(0.0, "nothing was held out")]
    for fit in fits:
        # on held-out sizes of 64 KiB and more, or on all sizes if none is so large
        if on_held_out := fit.held_out_error(LARGE_BYTES) or fit.held_out_error():
            judged.append((on_held_out.mean, f"{fit.operation} among {fit.cost.ranks} ranks"))
    kinds: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for error in errors:
        if error.samples:
            kinds[error.dtype, error.busy_ranks].append(error.mean)
    for (dtype, busy), means in kinds.items():
        judged.append((mean(means), f"passes in {dtype} with {counted(busy, 'busy rank')}"))
    worst, source = max(judged)
    noise = max(entry.noise for entry in compute)
    return Quality(held_out_error=worst, held_out_of=source, noise=noise, load_average=load, busy_ranks=busy_ranks)


def other_load(grid: ProcessGrid, threads: int) -> tuple[float, int]:
    """Load average of the last minute, and ranks times threads, on the node with most excess load; collective."""
    loads = np.zeros((grid.size, 2))
    loads[grid.rank] = os.getloadavg()[0], grid.node_group.size * threads
    grid.world.allgather_rows(loads)
    most = max(loads.tolist(), key=lambda pair: pair[0] - pair[1])
    return float(most[0]), int(most[1])


# -- host ------------------------------------------------------------------------------------------------------------


def host_facts(grid: ProcessGrid, threads: int) -> dict[str, str]:
    """Host, processor and libraries of this rank, as text."""
    return {
        "date": f"{datetime.now():%Y-%m-%d %H:%M}",
        "host": platform.node(),
        "processor": processor_name(),
        "mpi": library_version(),
        "numpy": f"{np.__version__}, {blas_library()}",
        "threads_per_rank": str(threads),
        "ranks": str(grid.size),
        "nodes": str(grid.nodes),
        "load_average": ", ".join(f"{load:.2f}" for load in os.getloadavg()) + " (1, 5 and 15 minutes, before)",
    }


def memory_bytes_per_rank(grid: ProcessGrid) -> float:
    """Available memory of a node per rank, on the node with least; collective."""
    least = np.array([-available_memory() / grid.node_group.size])
    grid.world.allreduce(least, "max")
    return -float(least[0])
