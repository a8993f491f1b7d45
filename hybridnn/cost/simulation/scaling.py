"""How a layout scales: more and more replicas of it, with one minibatch for all, or one that grows with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd

from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.prediction.workload import Layout, Workload, uniform_layout
from hybridnn.cost.simulation.disturbance import Disturbance
from hybridnn.cost.simulation.simulate_layout import (
    CALM,
    SimulatedStep,
    compile_layout,
    simulate_layout,
)
from hybridnn.utils.checks import require_choice

CURVES = ("strong", "weak")
"""The same minibatch for all numbers of ranks, or one that grows with them."""


@dataclass(frozen=True)
class ScalingPoint:
    """One number of ranks.

    Attributes
    ----------
    ranks : int
    batch_size : int
    seconds_per_step : float
    speed_up : float
        Samples per second over those of one rank.
    efficiency : float
        Speed-up per rank.
    communication_share, bubble_share : float
        Of the ranks' time.
    """

    ranks: int
    batch_size: int
    seconds_per_step: float
    speed_up: float
    efficiency: float
    communication_share: float
    bubble_share: float


@dataclass(frozen=True)
class ScalingCurve:
    """Points by number of ranks.

    Attributes
    ----------
    kind : {"strong", "weak"}
    points : tuple of ScalingPoint
        The first is one rank, which is what the speed-up counts from.
    """

    kind: str
    points: tuple[ScalingPoint, ...]


def scaling_curve(
    workload: Workload, layout: Layout, machine: Machine, kind: str, minibatches: int, disturbance: Disturbance = CALM
) -> ScalingCurve:
    """Simulate a layout with 1, 2, 4, ... times the replicas of its smallest form, up to its own.

    Parameters
    ----------
    workload : Workload
        Its minibatch is that of every point of a strong curve, and of the smallest layout of a weak one.
    layout : Layout
    machine : Machine
    kind : {"strong", "weak"}
    minibatches : int
    disturbance : Disturbance
        Slow ranks disturb the layouts that have them; one rank alone is not disturbed.

    Returns
    -------
    ScalingCurve

    Raises
    ------
    SettingError
        As `simulate_layout`.
    """
    require_choice("curve", kind, CURVES)
    program = compile_layout(layout, minibatches)
    alone = uniform_layout([(1, 1)], len(workload.model.layers))
    serial = simulate_layout(workload, alone, machine, compile_layout(alone, 1))
    points = [_point(serial, serial)]
    for replicas, wide in _widened(layout):
        batch_size = workload.batch_size * (replicas if kind == "weak" else 1)
        if wide.ranks > 1:
            grown, within = replace(workload, batch_size=batch_size), disturbance.within(wide.ranks)
            points.append(_point(simulate_layout(grown, wide, machine, program, within), serial))
    return ScalingCurve(kind, tuple(points))


def _widened(layout: Layout) -> Iterator[tuple[int, Layout]]:
    """The layout with the fewest batch ranks in its stages' proportions, and with 2, 4, ... times as many."""
    most = gcd(*(batch for batch, _ in layout.stages))
    for replicas in (*(2**power for power in range((most - 1).bit_length())), most):
        yield (
            replicas,
            replace(layout, stages=tuple((batch // most * replicas, model) for batch, model in layout.stages)),
        )


def _point(step: SimulatedStep, serial: SimulatedStep) -> ScalingPoint:
    seconds, mean = step.seconds_per_step, step.mean()
    batch_size, ranks = step.workload.batch_size, step.layout.ranks
    speed_up = batch_size / seconds * serial.seconds_per_step / serial.workload.batch_size
    return ScalingPoint(
        ranks, batch_size, seconds, speed_up, speed_up / ranks, mean.communication / seconds, mean.bubble / seconds
    )
