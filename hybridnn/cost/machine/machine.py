"""The machine: what messages, collectives, layers and updates cost there, in seconds.

Every number is in the machine file, measured by ``hybridnn calibrate`` or written by hand; the names carry the units.

How well a machine file was measured.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import ceil, inf
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from hybridnn.cost.collectives import ALGORITHMS, counts, rounds_of
from hybridnn.cost.crossings import Crossings, crossings_of
from hybridnn.cost.machine.compute import Compute
from hybridnn.utils.settings_models import AtLeastZero, Count, Fraction, Positive, Section, Text, list_as_tuple, refused

MOST_ERROR, MOST_NOISE = 0.25, 0.30
"""Beyond these, predictions are not worth much."""


class Quality(Section):
    """What a calibration found out about itself.

    Attributes
    ----------
    held_out_error : float
        The worst mean relative error on what was held out of the fits: of the operations the mean over sizes of 64 KiB
        and more (all sizes where none is so large), of computing the mean over the kinds of pass, weighted by seconds.
    held_out_of : str
        What it is the error of.
    noise : float
        Largest mean delay of a computation relative to its median: see `Compute`.
    load_average : float
        Of the minute before the measurement, on the node with most load beside the job's.
    busy_ranks : int
        Ranks times threads of the job on that node.
    """

    held_out_error: AtLeastZero
    held_out_of: Text
    noise: AtLeastZero
    load_average: AtLeastZero
    busy_ranks: Count

    @property
    def problems(self) -> tuple[str, ...]:
        """What makes the file doubtful, in words; empty where nothing does."""
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
    def line(self) -> str:
        """The quality in a line, beginning with the verdict."""
        if self.problems:
            return f"doubtful: {'; '.join(self.problems)}"
        error = f"held-out error up to {self.held_out_error:.0%} ({self.held_out_of})"
        return f"good: {error}, noise {self.noise:.0%}, load average {self.load_average:.1f} before"


class Segment(Section):
    """Cost of messages, or of collectives, up to a size.

    Attributes
    ----------
    up_to_bytes : float or None
        Largest size it holds for; None for the last segment.
    alpha_seconds : float
        Per message.
    beta_seconds_per_byte : float
        Inverse bandwidth.
    """

    up_to_bytes: Positive | None = None
    alpha_seconds: AtLeastZero
    beta_seconds_per_byte: AtLeastZero


def _increasing(segments: tuple[Segment, ...]) -> bool:
    ends = [inf if segment.up_to_bytes is None else segment.up_to_bytes for segment in segments]
    return ends[-1] == inf and all(low < high for low, high in pairwise(ends))


class _Piecewise(Section):
    """Segments by size: eager, rendezvous, large, or as many as the fit needs."""

    segments: Annotated[tuple[Segment, ...], BeforeValidator(list_as_tuple), Field(min_length=1)]

    @model_validator(mode="after")
    def _ends_increase(self) -> _Piecewise:
        if not _increasing(self.segments):
            ends = [segment.up_to_bytes for segment in self.segments]
            raise refused("segments", ends, "up_to_bytes must increase, and only the last segment has none")
        return self

    def segment(self, nbytes: float) -> Segment:
        """The segment for a size."""
        for segment in self.segments:
            if segment.up_to_bytes is None or nbytes <= segment.up_to_bytes:
                return segment
        raise AssertionError("the last segment has no end")


class NetworkLink(_Piecewise):
    """Messages from one rank to another (Hockney's model, piecewise)."""

    def seconds(self, nbytes: float) -> float:
        """Time of a message of `nbytes`, from the call that sends it to its arrival."""
        segment = self.segment(nbytes)
        return segment.alpha_seconds + nbytes * segment.beta_seconds_per_byte


class CollectiveCost(_Piecewise):
    """What a collective costs in a group of a measured size, as alpha and beta of the algorithm that fits best.

    Attributes
    ----------
    operation : str
        As in ``hybridnn.cost.collectives.ALGORITHMS``.
    ranks : int
        Size of the group that was measured.
    spans_nodes : bool
        Whether the group had ranks on several nodes.
    ranks_per_node : int
        Ranks that each of its nodes had, where it had several nodes; they shared its bandwidth.
    algorithm : str
        Its counts of messages and bytes carry the cost to other sizes of group.
    held_out_error : float or None
        Mean relative error on sizes of at least 64 KiB that were held out of the fit.
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
        """Time in a group of `ranks`.

        Parameters
        ----------
        nbytes : int
            Of the full vector.
        ranks : int
        crossings : Crossings, optional
            Of all groups that communicate at once, where they span nodes; by default as those that were measured.
        algorithm : str, optional
            Another one, with the alpha and beta that make it as fast in the group that was measured.
        """
        used = algorithm or self.algorithm
        segment = self.segment(nbytes)
        measured = counts(self.operation, self.algorithm, nbytes, self.ranks)
        fitted = counts(self.operation, used, nbytes, self.ranks)
        needed = counts(self.operation, used, nbytes, ranks)
        sent, fitted_sent = needed.nbytes, fitted.nbytes
        if crossings is not None and self.spans_nodes:
            sent = _shared_bytes(self.operation, used, nbytes, crossings)
            fitted_sent = _shared_bytes(self.operation, used, nbytes, _placed(self.ranks, self.ranks_per_node))
        alpha = segment.alpha_seconds * measured.messages / fitted.messages
        beta = segment.beta_seconds_per_byte * (measured.nbytes / fitted_sent if fitted_sent else 1.0)
        return needed.messages * alpha + sent * beta


class Overlap(Section):
    """How much communication hides behind computation; measured, because it is not free.

    Attributes
    ----------
    hidden_fraction : float
        Part of a message's or a non-blocking collective's time that passes while its ranks compute.
    compute_slowdown : float
        Factor on the computing that goes on meanwhile.
    nonblocking_factor : float
        Time of a non-blocking all-reduce over that of a blocking one.
    """

    hidden_fraction: Fraction = 0.0
    compute_slowdown: Annotated[float, Field(ge=1)] = 1.0
    nonblocking_factor: Positive = 1.0


class Machine(Section):
    """A machine.

    Attributes
    ----------
    name : str
    nodes : int
        Nodes there are.
    ranks_per_node : int
        Ranks that a node is given; usually its cores.
    memory_bytes_per_rank : float
    inside_node, between_nodes : Link
        Messages between two ranks of a node, and of two nodes; None with one node. The bandwidth between nodes is that
        of a node, which the groups that cross its border share.
    gamma_seconds_per_byte : float
        Adding up what a collective reduces; for collectives that were not measured.
    overlap : Overlap
    collectives : tuple of CollectiveCost
        Measured collectives; others cost what the best algorithm costs over the links.
    compute : tuple of Compute
        One for each precision, and for each number of ranks that compute at once on a node.
    quality : Quality or None
        How well it was measured; None where it was written by hand.
    about : dict
        Where the numbers come from, for people.
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
        """Ranks on a full node of a job of so many; more than the machine is made for share its nodes evenly."""
        return max(self.ranks_per_node, ceil(ranks / self.nodes))

    def link(self, *, spans_nodes: bool) -> NetworkLink:
        """The link inside a node or between nodes."""
        return self.between_nodes if spans_nodes and self.between_nodes is not None else self.inside_node

    def message_seconds(self, nbytes: float, *, spans_nodes: bool = False, flows: float = 1) -> float:
        """Time of a message, where `flows` ranks of the node send at once if it leaves the node."""
        segment = self.link(spans_nodes=spans_nodes).segment(nbytes)
        shared = flows if spans_nodes else 1
        return segment.alpha_seconds + nbytes * segment.beta_seconds_per_byte * shared

    def collective_seconds(
        self, operation: str, nbytes: int, ranks: int, *, crossings: Crossings | None = None
    ) -> float:
        """Time of a blocking collective.

        A measured one counts by its algorithm from the nearest size of group that was measured. In a group of two all
        algorithms are alike: where no other was measured, the cheapest that is as fast there is taken. Of a collective
        that was not measured the best algorithm is taken over the links, because MPI libraries choose by size.

        Parameters
        ----------
        operation : str
            As in ``hybridnn.cost.collectives.ALGORITHMS``.
        nbytes : int
            Of the full vector, as in ``hybridnn.comm.recorder``.
        ranks : int
            Size of the group.
        crossings : Crossings, optional
            Of all groups that communicate at once; without, the group is inside a node.
        """
        if ranks == 1:
            return 0.0
        return _collective_seconds(self, operation, nbytes, ranks, crossings if crossings and crossings.spans else None)

    def __hash__(self) -> int:
        return hash(self.name)

    def compute_for(self, dtype: str, busy_ranks: int) -> Compute:
        """Costs of computing in a precision while so many ranks of a node compute.

        The entry of the next larger number of busy ranks counts, or of the largest; more ranks than the node is made
        for take turns.
        """
        of_dtype = [entry for entry in self.compute if entry.dtype == dtype]
        if not of_dtype:
            of_dtype = [entry.in_other_precision() for entry in self.compute]
        busy = min(busy_ranks, self.ranks_per_node)
        as_busy = [entry for entry in of_dtype if entry.busy_ranks >= busy]
        entry = (
            min(as_busy, key=lambda entry: entry.busy_ranks)
            if as_busy
            else max(of_dtype, key=lambda entry: entry.busy_ranks)
        )
        turns = ceil(busy_ranks / self.ranks_per_node)
        return entry if turns == 1 else entry.scaled(turns)


KEPT_TIMES = 1 << 16
"""Times of collectives that are kept: the layouts of a plan share many."""


@lru_cache(KEPT_TIMES)
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
    """Time of an algorithm, round by round: over the link between nodes where a message of the round leaves a node."""
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
    """Bytes of all rounds, each as often as messages share the way out of a node."""
    return sum(
        one.counts.nbytes * max(crossings.flows(one.pattern, one.distance), 1.0)
        for one in rounds_of(operation, algorithm, nbytes, crossings.ranks)
    )


@lru_cache
def _placed(ranks: int, ranks_per_node: int) -> Crossings:
    """One group of ranks that fill nodes one after another."""
    return crossings_of(np.arange(ranks)[None] // ranks_per_node)
