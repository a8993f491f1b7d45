"""What figures of messages and sums say: whether they are what a machine like this should reach, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence

from hybridnn.doctor.finding import Finding
from hybridnn.doctor.probes import Timing
from hybridnn.utils.text import format_bytes, format_seconds

SIZES = (8, 64 << 10, 4 << 20)
"""Bytes: the first shows the latency, the last the bandwidth."""

SLOW_MESSAGE = {True: 1e-4, False: 5e-4}
"""Seconds above which a small message is absurd, within a node and between nodes; Python takes some 2 us of it."""
NARROW = {True: 1e9, False: 1e8}
"""Bytes per second below which a large message is absurd: memory is ten times as fast, and so is a slow network."""
SLOW_SUM = 2e-3
"""Seconds above which a small sum is absurd."""


def judge_ping_pong(timings: Sequence[Timing], within_node: bool, crowded: bool) -> Finding:
    """Say what messages between two ranks take.

    Parameters
    ----------
    timings : sequence of Timing
        One way, by size, of `SIZES`.
    within_node : bool
        Whether the two ranks run on one node.
    crowded : bool
        Whether ranks share cores.
    """
    name = "ping-pong" if within_node else "ping-pong between nodes"
    latency, bandwidth = timings[0].seconds, timings[-1].nbytes / timings[-1].seconds
    what = f"{_figures(timings)} one way, {bandwidth / 1e9:.3g} GB/s"
    slow, narrow = latency > SLOW_MESSAGE[within_node], bandwidth < NARROW[within_node]
    if not slow and not narrow:
        return Finding(name, "ok", what)
    what += f": far too {'long' if slow else 'slow'}"
    if crowded:
        return Finding(name, "warning", what, "the ranks share cores, and wait for their turn: start fewer")
    if within_node:
        advice = "messages may not go through shared memory: see that no MCA variable takes sm from Open MPI's btl"
    else:
        advice = "the fast network may not be used: ask your site which btl, UCX_NET_DEVICES or FI_PROVIDER to set"
    return Finding(name, "warning", what, advice)


def judge_all_reduce(timings: Sequence[Timing], ranks: int, crowded: bool) -> Finding:
    """Say what a sum over all ranks takes.

    Parameters
    ----------
    timings : sequence of Timing
        By size, of `SIZES`.
    ranks : int
        Over how many.
    crowded : bool
        Whether ranks share cores.
    """
    # A ring sends 2 (P - 1) / P of the array out of every rank (Thakur et al. 2005, Rabenseifner's algorithm as well).
    pace = 2 * (ranks - 1) / ranks * timings[-1].nbytes / timings[-1].seconds
    what = f"{_figures(timings)} over {ranks} ranks, {pace / 1e9:.3g} GB/s per rank; the sums are right"
    if timings[0].seconds <= SLOW_SUM and pace >= NARROW[False]:
        return Finding("all-reduce", "ok", what)
    advice = (
        "the ranks share cores, and wait for their turn: start fewer"
        if crowded
        else "compare with the ping-pong: if that is fine, another job may keep the machine or its network busy"
    )
    return Finding("all-reduce", "warning", what, advice)


def _figures(timings: Sequence[Timing]) -> str:
    return ", ".join(
        f"{format_bytes(timing.nbytes, binary=True)} {format_seconds(timing.seconds)}" for timing in timings
    )
