"""Measuring a machine: messages, collectives, overlap, computing and memory, put together as a `Machine`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybridnn.comm.agreement import broadcast_text
from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.threads import cores_of_node, limit_blas_threads
from hybridnn.cost.calibration.communication import measure_communication, measure_reduction
from hybridnn.cost.calibration.compute import ComputeError, calibrate_compute
from hybridnn.cost.calibration.compute_steps import StepTimer
from hybridnn.cost.calibration.fitted import FittedOperation, fit_operations
from hybridnn.cost.calibration.host import host_facts, memory_bytes_per_rank
from hybridnn.cost.calibration.overlap import measure_overlap
from hybridnn.cost.calibration.verdict import judge, other_load
from hybridnn.cost.machine.machine import CollectiveCost, Link, Machine, Overlap, Segment
from hybridnn.pipeline.partition.stage_partition import USUAL

__all__ = ["Calibration", "calibrate"]

DTYPES = ("float32", "float64")
COMMUNICATION_SHARE, OVERLAP_SHARE = 0.5, 0.1
"""Parts of the time; computing has the rest."""

USUAL_LINK = Link(segments=(Segment(alpha_seconds=USUAL.alpha, beta_seconds_per_byte=USUAL.beta),))
"""Stands for a link that could not be measured."""


@dataclass(frozen=True)
class Calibration:
    """A measured machine, and how well its numbers predict what was not used to find them.

    Attributes
    ----------
    machine : Machine
    fits : tuple of FittedOperation
        With all samples.
    compute_errors : tuple of ComputeError
    missing : tuple of str
        What could not be measured, and what stands for it.
    crowded : str
        What spoilt the times, where there are more ranks than cores; else empty.
    """

    machine: Machine
    fits: tuple[FittedOperation, ...]
    compute_errors: tuple[ComputeError, ...]
    missing: tuple[str, ...]
    crowded: str


def calibrate(
    grid: ProcessGrid,
    seconds: float,
    seed: int,
    time_step: StepTimer,
    *,
    name: str | None = None,
    memory_bytes: float | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Calibration:
    """Measure the machine; collective over the grid, and the result of rank 0 counts.

    Parameters
    ----------
    grid : ProcessGrid
        All ranks, in any shape. With one rank only computing is measured.
    seconds : float
        Time to measure in; a little more is taken.
    seed : int
        Of what is random: sizes, shapes and their order.
    time_step : callable
        Times steps of training on one rank; `hybridnn.training.timed_run.TrainingTimer`.
    name : str, optional
        Of the machine; the name of the host by default.
    memory_bytes : float, optional
        Per rank; what is free by default.
    report : callable
        Told what is measured next.

    Raises
    ------
    SettingError
        If `memory_bytes` is not given and the system does not say.
    """
    memory = memory_bytes_per_rank(grid) if memory_bytes is None else memory_bytes
    threads = limit_blas_threads(grid).count
    cores = cores_of_node(grid)
    load, own = other_load(grid, threads)
    about = host_facts(grid, threads) | {"cores_per_node": str(cores), "seconds": f"{seconds:g}", "seed": str(seed)}
    about["how"] = "one group of ranks at a time, while the others slept; one pair at a time for messages"
    alone = grid.size == 1
    samples = measure_communication(grid, COMMUNICATION_SHARE * seconds, seed, report)
    fits = fit_operations(samples)
    overlap = Overlap()
    if not alone:
        report("an all-reduce beside matrix products")
        overlap = _overlap(grid, OVERLAP_SHARE * seconds, fits)
    report("passes of layers and updates")
    rest = 1.0 if alone else 1 - COMMUNICATION_SHARE - OVERLAP_SHARE
    compute, errors = calibrate_compute(grid, DTYPES, rest * seconds, seed, time_step)
    inside, between = _link(fits, spans_nodes=False), _link(fits, spans_nodes=True)
    missing, crowded = _missing(grid, inside), _crowded(grid, threads, cores)
    notes = {"not_measured": "; ".join(missing), "crowded": crowded}
    machine = Machine(
        name=name or about["host"],
        nodes=grid.nodes,
        # As many as the cores of a node can serve, and no fewer than were measured.
        ranks_per_node=max(cores // threads, grid.node_group.size),
        memory_bytes_per_rank=memory,
        inside_node=inside or between or USUAL_LINK,
        between_nodes=between,
        gamma_seconds_per_byte=measure_reduction(grid.world),
        overlap=overlap,
        collectives=_collectives(fits),
        compute=tuple(compute),
        quality=judge(fits, errors, compute, load, own),
        about=about | {key: text for key, text in notes.items() if text},
    )
    # What one rank measured alone only that rank knows, and times differ from rank to rank.
    machine = Machine.model_validate_json(broadcast_text(grid.world, machine.model_dump_json(), 0))
    return Calibration(machine, fits, tuple(errors), missing, crowded)


def _overlap(grid: ProcessGrid, seconds: float, fits: tuple[FittedOperation, ...]) -> Overlap:
    hidden, slowdown = measure_overlap(grid.world, seconds)
    factor = next(fit.factor for fit in fits if fit.operation == "iallreduce")
    return Overlap(hidden_fraction=hidden, compute_slowdown=slowdown, nonblocking_factor=factor)


def _link(fits: tuple[FittedOperation, ...], *, spans_nodes: bool) -> Link | None:
    found = [fit.cost for fit in fits if fit.operation == "send" and fit.cost.spans_nodes == spans_nodes]
    return Link(segments=found[0].segments) if found else None


def _collectives(fits: tuple[FittedOperation, ...]) -> tuple[CollectiveCost, ...]:
    return tuple(fit.cost for fit in fits if fit.operation not in ("send", "iallreduce"))


def _missing(grid: ProcessGrid, inside: Link | None) -> tuple[str, ...]:
    """What the job had too few ranks for."""
    if grid.size == 1:
        link = f"alpha {USUAL.alpha:g} s and beta {USUAL.beta:g} s per byte, usual inside a node, stand for the link"
        return (
            f"messages need 2 ranks: {link}",
            "collectives need 2 ranks: they cost what the best algorithm costs over that link",
            "overlap needs 2 ranks: nothing is assumed to overlap",
        )
    if inside is None:
        return ("messages inside a node need 2 ranks there: those between nodes stand for them",)
    return ()


def _crowded(grid: ProcessGrid, threads: int, cores: int) -> str:
    ranks = grid.node_group.size
    if ranks * threads <= cores:
        return ""
    return f"{ranks} ranks x {threads} threads share {cores} cores: all times include waiting for a core"
