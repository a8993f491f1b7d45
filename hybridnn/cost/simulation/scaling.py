"""Scaling curves: simulated speed-up of a layout with more and more replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd

from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.prediction.workload import Workload
from hybridnn.cost.simulation.disturbance import Disturbance
from hybridnn.cost.simulation.simulate_layout import UNDISTURBED, SimulatedStep, simulate_layout
from hybridnn.pipeline.layout import Layout
from hybridnn.utils.checks import require_choice

CURVES = ("strong", "weak")
"""Strong scaling: the same minibatch for all numbers of ranks. Weak scaling: it grows with them."""


@dataclass(frozen=True)
class ScalingPoint:
    """Simulation of one number of ranks.

    Attributes
    ----------
    speed_up : float
        Samples per second over those of one rank.
    efficiency : float
        Speed-up per rank.
    communication_share, bubble_share : float
        Fractions of the ranks' time.
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
        The first is one rank, the reference of the speed-up.
    """

    kind: str
    points: tuple[ScalingPoint, ...]


def scaling_curve(
    workload: Workload,
    layout: Layout,
    machine: Machine,
    kind: str,
    minibatches: int,
    disturbance: Disturbance = UNDISTURBED,
) -> ScalingCurve:
    """Simulate a layout with 1, 2, 4, ... times the replicas of its smallest form, up to its own.

    Parameters
    ----------
    workload : Workload
        Its minibatch is that of every point of a strong curve, and of the smallest layout of a weak one.
    kind : {"strong", "weak"}
    minibatches : int
        Simulated for every point; one for the reference.
    disturbance : Disturbance
        Slow ranks disturb the layouts that have them; the reference is not disturbed.

    Raises
    ------
    SettingError
        As `simulate_layout`.
    """
    require_choice("curve", kind, CURVES)
    serial = simulate_layout(workload, Layout.uniform([(1, 1)], len(workload.model.layers)), machine, 1)
    points = [_point(serial, serial)]
    for replicas, wide in _replicated(layout):
        batch_size = workload.batch_size * (replicas if kind == "weak" else 1)
        if wide.ranks > 1:
            grown = replace(workload, batch_size=batch_size)
            step = simulate_layout(grown, wide, machine, minibatches, disturbance.within(wide.ranks))
            points.append(_point(step, serial))
    return ScalingCurve(kind, tuple(points))


def _replicated(layout: Layout) -> Iterator[tuple[int, Layout]]:
    """The layout with the fewest batch ranks in its stages' proportions, and with 2, 4, ... times as many."""
    most = gcd(*(batch for batch, _ in layout.stages))
    for replicas in (*(2**power for power in range((most - 1).bit_length())), most):
        stages = tuple((batch // most * replicas, model) for batch, model in layout.stages)
        yield replicas, replace(layout, stages=stages)


def _point(step: SimulatedStep, serial: SimulatedStep) -> ScalingPoint:
    seconds, mean = step.seconds_per_step, step.mean()
    batch_size, ranks = step.workload.batch_size, step.layout.ranks
    speed_up = batch_size / seconds * serial.seconds_per_step / serial.workload.batch_size
    return ScalingPoint(
        ranks, batch_size, seconds, speed_up, speed_up / ranks, mean.communication / seconds, mean.bubble / seconds
    )
