"""Machines for those who have no cluster, and the simulated times of a study on them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any
from zlib import crc32

from hybridnn._version import __version__
from hybridnn.cost.machine import Machine, NetworkLink, Segment
from hybridnn.cost.machine_file import read_machine
from hybridnn.cost.simulation import simulate_layout
from hybridnn.runs.workload import layout_from_settings, workload_from_settings
from hybridnn.study.cells import Cell

NODES, CORES = 4, 8
NOISE = 0.02  # relative standard deviation of the time of a run
SIMULATED = "simulated"
"""Launcher of simulated rows."""

LINKS = {
    "fast": NetworkLink(segments=(Segment(alpha_seconds=5e-6, beta_seconds_per_byte=8e-11),)),
    "slow": NetworkLink(segments=(Segment(alpha_seconds=4e-5, beta_seconds_per_byte=8e-10),)),
}
"""Networks of 100 and 10 Gbit/s."""


def machine_of(name: str) -> Machine:
    """The machine with the network ``"fast"`` or ``"slow"``: 4 nodes of 8 cores."""
    changes = {
        "name": f"class-{name}",
        "nodes": NODES,
        "ranks_per_node": CORES,
        "between_nodes": LINKS[name],
        "about": {"source": "made for a class; not the measurement of any machine"},
    }
    return read_machine("cluster-1024").model_copy(update=changes)


def simulated_row(cell: Cell, name: str, seed: int) -> dict[str, Any]:
    """The row of a cell in ``results.csv``, as ``hybridnn study report`` names its columns."""
    machine = machine_of(name)
    nodes = cell.placement.nodes or -(-cell.ranks // CORES)
    placed = machine.placed(cell.ranks, nodes)
    workload = workload_from_settings(cell.settings)
    layout = layout_from_settings(cell.settings, cell.ranks, workload.model, placed)
    step, noise = simulate_layout(workload, layout, placed), Random(seed).lognormvariate(0.0, NOISE)
    return {
        "id": cell.id,
        "outcome": "finished",
        **{f"axis.{label}": value for label, value in cell.values.items()},
        "ranks": cell.ranks,
        "threads_per_rank": cell.placement.threads,
        "nodes": nodes,
        "network": "-".join(map(str, workload.model.sizes)),
        "batch_size": workload.batch_size,
        "seconds_per_epoch": step.seconds_per_epoch * noise,
        "seconds_per_step": step.seconds_per_step * noise,
        "predicted_seconds_per_epoch": step.seconds_per_epoch,
        "communicate_share": step.mean().communication / step.seconds_per_step,
        "cpu_model": f"simulated ({machine.name})",
        "cores_per_node": CORES,
        "launcher": SIMULATED,
        "version.hybridnn": __version__,
        "seed": seed,
    }


def seed_of(student: str, cell: Cell) -> int:
    """Seed of the noise of a cell."""
    return crc32(f"{student}|{cell.id}".encode())


def simulated_rows(cells: Iterator[Cell] | tuple[Cell, ...], name: str, student: str) -> list[dict[str, Any]]:
    """Rows of all cells of a study."""
    return [simulated_row(cell, name, seed_of(student, cell)) for cell in cells]
