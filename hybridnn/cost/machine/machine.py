"""Machine: costs of messages, collectives and computing in seconds, and the quality of their measurement.

All coefficients are in the machine file, measured by ``hybridnn calibrate`` or written by hand; key names end in units.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import ceil, inf
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from hybridnn.cost.collectives import ALGORITHMS, counts, rounds_of
from hybridnn.cost.machine.compute import Compute
from hybridnn.cost.node_contention import Crossings, crossings_of
from hybridnn.utils.checks import AtLeastZero, Count, Fraction, Positive
from hybridnn.utils.settings_models import Section, Text, list_as_tuple, refused


class Segment(Section):
    """Cost of messages, or of collectives, up to a size; the last segment has no end. Alpha is per message."""

    up_to_bytes: Positive | None = None
    alpha_seconds: AtLeastZero
    beta_seconds_per_byte: AtLeastZero


class _Piecewise(Section):
    """Segments by size: eager, rendezvous and large messages."""

    segments: Annotated[tuple[Segment, ...], BeforeValidator(list_as_tuple), Field(min_length=1)]

    @model_validator(mode="after")
    def _ends_increase(self) -> _Piecewise:
        ends = [segment.up_to_bytes for segment in self.segments]
        sizes = [inf if end is None else end for end in ends]
        if sizes[-1] != inf or any(low >= high for low, high in pairwise(sizes)):
            raise refused("segments", ends, "up_to_bytes must increase, and only the last segment has none")
        return self

    def segment(self, nbytes: float) -> Segment:
        """Segment of a size."""
        for segment in self.segments:
            if segment.up_to_bytes is None or nbytes <= segment.up_to_bytes:
                return segment
        raise AssertionError("the last segment has no end")


class NetworkLink(_Piecewise):
    """Messages from one rank to another (Hockney's model, piecewise)."""

    def seconds(self, nbytes: float) -> float:
        """Seconds from the call that sends a message to its arrival."""
        segment = self.segment(nbytes)
        return segment.alpha_seconds + nbytes * segment.beta_seconds_per_byte


class CollectiveCost(_Piecewise):
    """Measured cost of a collective in a group: alpha and beta of the algorithm that fits best.

    Attributes
    ----------
    operation, algorithm : str
        Keys of ``hybridnn.cost.collectives.ALGORITHMS``; the counts of the algorithm extrapolate the cost to groups of
        other sizes.
    ranks, ranks_per_node : int
        Of the measured group, and of each of its nodes if it spans nodes; these shared the node's bandwidth.
    held_out_error : float or None
        Mean relative error on held-out sizes of at least 64 KiB.
    """

    operation: Text
    ranks: Annotated[int, Field(ge=2)]
    spans_nodes: bool = False
    ranks_per_node: Count = 1
    algorithm: Text
    held_out_error: AtLeastZero | None = None

    @model_validator(mode="after")
    def _known(self) -> CollectiveCost:
        if self.operation not in ALGORITHMS:
            raise refused("operation", self.operation, "known are " + ", ".join(ALGORITHMS))
        if self.algorithm not in ALGORITHMS[self.operation]:
            raise refused("algorithm", self.algorithm, "known are " + ", ".join(ALGORITHMS[self.operation]))
        return self

    def seconds(
        self, nbytes: int, ranks: int, crossings: Crossings | None = None, algorithm: str | None = None
    ) -> float:
        """Seconds in a group of `ranks`, for the bytes of the full vector.

        Parameters
        ----------
        crossings : Crossings, optional
            Of all groups that communicate at the same time, if they span nodes; by default as in the measurement.
        algorithm : str, optional
            Another algorithm, with the alpha and beta that make it equally fast in the measured group.
        """
        used = algorithm or self.algorithm
        segment = self.segment(nbytes)
        measured = counts(self.operation, self.algorithm, nbytes, self.ranks)
        fitted = counts(self.operation, used, nbytes, self.ranks)
        needed = counts(self.operation, used, nbytes, ranks)
        sent, fitted_sent = needed.nbytes, fitted.nbytes
        if crossings is not None and self.spans_nodes:
            sent = _shared_bytes(self.operation, used, nbytes, crossings)
            fitted_sent = _shared_bytes(self.operation, used, nbytes, _filled_nodes(self.ranks, self.ranks_per_node))
        alpha = segment.alpha_seconds * measured.messages / fitted.messages
        beta = segment.beta_seconds_per_byte * (measured.nbytes / fitted_sent if fitted_sent else 1.0)
        return needed.messages * alpha + sent * beta


class Overlap(Section):
    """Overlap of communication and computing.

    Attributes
    ----------
    hidden_fraction : float
        Fraction of a message's or a non-blocking collective's time that overlaps with computing.
    compute_slowdown : float
        Factor on the time of that computing.
    nonblocking_factor : float
        Time of a non-blocking all-reduce over that of a blocking one.
    """

    hidden_fraction: Fraction = 0.0
    compute_slowdown: Annotated[float, Field(ge=1)] = 1.0
    nonblocking_factor: Positive = 1.0


MOST_ERROR, MOST_NOISE = 0.25, 0.30
"""A measurement with larger values is doubtful."""


class Quality(Section):
    """Quality of a calibration.

    Attributes
    ----------
    held_out_error : float
        The worst mean relative error on held-out samples: of an operation the mean over sizes of 64 KiB and more (all
        sizes if none is so large), of computing the mean over the kinds of pass, weighted by seconds.
    held_out_of : str
        The operation or kind of computing with that error.
    noise : float
        Largest `Compute.noise`.
    load_average, busy_ranks
        Load of the minute before the measurement, and ranks times threads of the job, on the node with most load in
        excess of the job's.
    """

    held_out_error: AtLeastZero
    held_out_of: Text
    noise: AtLeastZero
    load_average: AtLeastZero
    busy_ranks: Count

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons why the measurement is doubtful; empty if it is good."""
        found = []
        if self.held_out_error > MOST_ERROR:
            error = f"held-out error {self.held_out_error:.0%} ({self.held_out_of})"
            found.append(f"{error}, more than {MOST_ERROR:.0%}")
        if self.noise > MOST_NOISE:
            found.append(f"noise {self.noise:.0%}, more than {MOST_NOISE:.0%}")
        if self.load_average > self.busy_ranks:
            found.append(f"load average {self.load_average:.1f}, more than the job's own {self.busy_ranks}")
        return tuple(found)

    @property
    def summary(self) -> str:
        """One line that begins with ``good`` or ``doubtful``."""
        if self.problems:
            return f"doubtful: {'; '.join(self.problems)}"
        error = f"held-out error up to {self.held_out_error:.0%} ({self.held_out_of})"
        return f"good: {error}, noise {self.noise:.0%}, load average {self.load_average:.1f} before"


class Machine(Section):
    """Costs of a machine.

    Attributes
    ----------
    ranks_per_node : int
        Usually the cores of a node.
    inside_node, between_nodes : NetworkLink
        Messages between two ranks of a node, and of two nodes; the latter None with one node. Messages that leave a
        node at the same time share the bandwidth between nodes.
    gamma_seconds_per_byte : float
        Additions of a reduction; for collectives that were not measured.
    collectives : tuple of CollectiveCost
        Measured collectives; others cost what the best algorithm costs over the links.
    compute : tuple of Compute
        For each precision and number of busy ranks on a node.
    quality : Quality or None
        None if written by hand.
    about : dict
        Origin of the coefficients, as text.
    """

    name: Text
    nodes: Count = 1
    ranks_per_node: Count
    memory_bytes_per_rank: Positive
    inside_node: NetworkLink
    between_nodes: NetworkLink | None = None
    gamma_seconds_per_byte: AtLeastZero = 0.0
    overlap: Overlap = Overlap()
    collectives: Annotated[tuple[CollectiveCost, ...], BeforeValidator(list_as_tuple)] = ()
    compute: Annotated[tuple[Compute, ...], BeforeValidator(list_as_tuple), Field(min_length=1)]
    quality: Quality | None = None
    about: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _nodes_are_linked(self) -> Machine:
        if self.nodes > 1 and self.between_nodes is None:
            raise refused("between_nodes", None, f"is needed with nodes = {self.nodes}")
        return self

    @property
    def ranks(self) -> int:
        """Ranks of the whole machine."""
        return self.nodes * self.ranks_per_node

    def node_ranks(self, ranks: int) -> int:
        """Ranks on a full node of a job; more ranks than the machine has are spread evenly over its nodes."""
        return max(self.ranks_per_node, ceil(ranks / self.nodes))

    def link(self, *, spans_nodes: bool) -> NetworkLink:
        """Link inside a node or between nodes."""
        return self.between_nodes if spans_nodes and self.between_nodes is not None else self.inside_node

    def message_seconds(self, nbytes: float, *, spans_nodes: bool = False, flows: float = 1) -> float:
        """Seconds of a message; between nodes, `flows` messages share a node's bandwidth."""
        segment = self.link(spans_nodes=spans_nodes).segment(nbytes)
        sharing = flows if spans_nodes else 1
        return segment.alpha_seconds + nbytes * segment.beta_seconds_per_byte * sharing

    def collective_seconds(
        self, operation: str, nbytes: int, ranks: int, *, crossings: Crossings | None = None
    ) -> float:
        """Seconds of a blocking collective.

        A measured collective is extrapolated by its algorithm from the measured group of the nearest size. In a group
        of two, all algorithms are equally fast: if no other was measured, the cheapest algorithm is taken. If the
        collective was not measured, the best algorithm over the links is taken, because MPI libraries choose by size.
        `nbytes` are those of the full vector, as in ``hybridnn.comm.recorder``; `crossings` are those of all groups
        that communicate at the same time, None inside a node.
        """
        if ranks == 1:
            return 0.0
        return _collective_seconds(self, operation, nbytes, ranks, crossings if crossings and crossings.spans else None)

    def __hash__(self) -> int:
        return hash(self.name)

    def compute_for(self, dtype: str, busy_ranks: int) -> Compute:
        """Costs of computing in a precision while `busy_ranks` of a node compute.

        They are those of the entry with the next larger number of busy ranks, or with the largest. More ranks than
        `ranks_per_node` take turns.
        """
        of_dtype = [entry for entry in self.compute if entry.dtype == dtype]
        if not of_dtype:
            of_dtype = [entry.in_other_precision() for entry in self.compute]
        busy = min(busy_ranks, self.ranks_per_node)
        entry = min(of_dtype, key=lambda entry: (entry.busy_ranks < busy, abs(entry.busy_ranks - busy)))
        turns = ceil(busy_ranks / self.ranks_per_node)
        return entry if turns == 1 else entry.scaled(turns)


@lru_cache(1 << 16)
def _collective_seconds(
    machine: Machine, operation: str, nbytes: int, ranks: int, crossings: Crossings | None
) -> float:
    spans = crossings is not None
    measured = [cost for cost in machine.collectives if cost.operation == operation and cost.spans_nodes == spans]
    if not measured:
        return min(
            _over_links(machine, operation, algorithm, nbytes, ranks, crossings) for algorithm in ALGORITHMS[operation]
        )
    nearest = min(measured, key=lambda cost: (abs(cost.ranks - ranks), cost.ranks))
    if all(cost.ranks == 2 for cost in measured):
        return min(nearest.seconds(nbytes, ranks, crossings, algorithm) for algorithm in ALGORITHMS[operation])
    return nearest.seconds(nbytes, ranks, crossings)


def _over_links(
    machine: Machine, operation: str, algorithm: str, nbytes: int, ranks: int, crossings: Crossings | None
) -> float:
    """Seconds of an algorithm; a round of which a message leaves its node takes the link between nodes."""
    seconds = 0.0
    for rounds in rounds_of(operation, algorithm, nbytes, ranks):
        needed = rounds.counts
        if needed.messages:
            flows = 0.0 if crossings is None else crossings.flows(rounds.pattern, rounds.distance)
            segment = machine.link(spans_nodes=flows > 0).segment(needed.nbytes / needed.messages)
            beta = segment.beta_seconds_per_byte * max(flows, 1.0)
            seconds += needed.seconds(segment.alpha_seconds, beta, machine.gamma_seconds_per_byte)
    return seconds


def _shared_bytes(operation: str, algorithm: str, nbytes: int, crossings: Crossings) -> float:
    """Bytes of all rounds, each times the messages that share a node's bandwidth."""
    return sum(
        rounds.counts.nbytes * max(crossings.flows(rounds.pattern, rounds.distance), 1.0)
        for rounds in rounds_of(operation, algorithm, nbytes, crossings.ranks)
    )


@lru_cache
def _filled_nodes(ranks: int, ranks_per_node: int) -> Crossings:
    """One group whose ranks fill nodes one after another."""
    return crossings_of(np.arange(ranks)[None] // ranks_per_node)
