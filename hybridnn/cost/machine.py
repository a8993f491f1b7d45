"""Machine: costs of messages, collectives and computing in seconds, and the quality of their measurement.

All coefficients are in the machine file, measured by ``hybridnn calibrate`` or written by hand; key names end in units.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from math import ceil, fsum, inf, log
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, model_validator

from hybridnn.cost.collectives import ALGORITHMS, Crossings, counts, crossings_of, rounds_of
from hybridnn.utils.checks import AtLeastZero, Count, Fraction, Positive, refused
from hybridnn.utils.settings_models import Section, Text, list_as_tuple

# -- messages and collectives ----------------------------------------------------------------------------------------


class Segment(Section):
    """Cost of messages, or of collectives, up to a size."""

    up_to_bytes: Positive | None = None  # the last segment has no end
    alpha_seconds: AtLeastZero  # per message
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


class MessageOverhead(Section):
    """Time that a message takes from each of its two ranks while they compute.

    It is the overhead o of LogGP (Alexandrov, Ionescu, Schauser and Scheiman 1995), with a part per byte, because over
    TCP the processor copies and sends every byte.
    """

    message_seconds: AtLeastZero = 0.0
    seconds_per_byte: AtLeastZero = 0.0

    def seconds(self, nbytes: float) -> float:
        """Seconds of a message, on each rank."""
        return self.message_seconds + nbytes * self.seconds_per_byte


class NetworkLink(_Piecewise):
    """Messages from one rank to another (Hockney's model, piecewise)."""

    # in which the ranks of a message cannot compute; if unknown, `Overlap.hidden_fraction` tells how much overlaps
    overhead: MessageOverhead | None = None

    def seconds(self, nbytes: float, flows: float = 1) -> float:
        """Seconds from the call that sends a message to its arrival; `flows` messages share the bandwidth."""
        segment = self.segment(nbytes)
        return segment.alpha_seconds + nbytes * segment.beta_seconds_per_byte * flows


class CollectiveCost(_Piecewise):
    """Measured cost of a collective in a group: alpha and beta of the algorithm that fits best.

    `operation` and `algorithm` are keys of ``hybridnn.cost.collectives.ALGORITHMS``; the counts of the algorithm
    extrapolate the cost to groups of other sizes.
    """

    operation: Text
    ranks: Annotated[int, Field(ge=2)]  # of the measured group
    spans_nodes: bool = False
    ranks_per_node: Count = 1  # of the group, on each node that it spans; they shared its bandwidth
    algorithm: Text
    held_out_error: AtLeastZero | None = None  # mean relative error on held-out sizes of at least 64 KiB

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

        `crossings` are those of all groups that communicate at the same time, by default as in the measurement. Another
        `algorithm` has the alpha and beta that make it equally fast in the measured group.
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
    """Overlap of communication and computing."""

    hidden_fraction: Fraction = 0.0  # of the time of a message or non-blocking collective that overlaps with computing
    compute_slowdown: Annotated[float, Field(ge=1)] = 1.0  # factor on the time of that computing
    nonblocking_factor: Positive = 1.0  # time of a non-blocking all-reduce over that of a blocking one


# -- computing -------------------------------------------------------------------------------------------------------


class PassCost(Section):
    """One kind of pass through a dense layer without its activation: a matrix product, and the bias.

    The product of an (m, k) with a (k, n) matrix takes time per multiply-add, per element read and written (outputs,
    inputs and weights), and per call; the last two make small shapes slow. The uncached seconds are added for layers
    whose weights do not fit the cache.
    """

    call_seconds: AtLeastZero = 0.0
    output_seconds: AtLeastZero = 0.0
    input_seconds: AtLeastZero = 0.0
    weight_seconds: AtLeastZero = 0.0
    uncached_weight_seconds: AtLeastZero = 0.0
    multiply_add_seconds: AtLeastZero

    def seconds(self, outputs: int, inputs: int, samples: int, *, cached: bool) -> float:
        """Seconds of a pass."""
        weights = outputs * inputs
        per_weight = self.weight_seconds if cached else self.weight_seconds + self.uncached_weight_seconds
        return (
            self.call_seconds
            + samples * (self.output_seconds * outputs + self.input_seconds * inputs)
            + weights * per_weight
            + weights * samples * self.multiply_add_seconds
        )


class ElementCost(Section):
    """Element-wise work, per call and element; the uncached seconds are added for arrays that do not fit the cache."""

    call_seconds: AtLeastZero = 0.0
    number_seconds: AtLeastZero
    uncached_number_seconds: AtLeastZero = 0.0

    def seconds(self, elements: float, *, cached: bool = True) -> float:
        """Seconds of a call."""
        per_element = self.number_seconds if cached else self.number_seconds + self.uncached_number_seconds
        return self.call_seconds + elements * per_element


class ActivationCost(Section):
    """An activation function on the outputs of a layer, forward and backward."""

    forward: ElementCost
    gradient: ElementCost


class Compute(Section):
    """Costs of computing in one precision, with a number of busy ranks on a node.

    An activation, loss or update that is missing costs what the most expensive does; the activation ``identity`` costs
    nothing.
    """

    dtype: Literal["float32", "float64"]
    busy_ranks: Count = 1  # that computed at the same time in the measurement; they share caches and memory bandwidth
    cache_bytes: AtLeastZero = 1e6  # arrays of at least this size do not fit the cache
    forward: PassCost
    input_gradient: PassCost
    weight_gradient: PassCost
    activations: dict[str, ActivationCost] = Field(min_length=1)
    losses: dict[str, ElementCost] = Field(min_length=1)  # per output of the network, for ``mse`` and ``cross_entropy``
    load: ElementCost  # per element of the samples that are gathered
    packing: ElementCost  # per element that is copied to or from a message, or added to another
    updates: dict[str, ElementCost] = Field(min_length=1)  # per parameter, for ``sgd``, ``momentum`` and ``adam``
    row_seconds: AtLeastZero = 0.0  # per row that is copied to a part of a longer row, in addition to its elements
    instruction_seconds: AtLeastZero = 0.0  # Python around an instruction of a schedule
    step_seconds: AtLeastZero = 0.0  # Python around a step
    # mean delay of a computation by other activity of the node, relative to its median; the other entries are medians
    noise: AtLeastZero = 0.0

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    def caches(self, elements: int) -> bool:
        """Whether an array of so many elements fits the cache."""
        return elements * self.itemsize < self.cache_bytes

    def activation(self, name: str) -> ActivationCost:
        """Cost of an activation function."""
        if name == "identity":
            free = ElementCost(number_seconds=0.0)
            return ActivationCost(forward=free, gradient=free)
        return self.activations.get(name) or max(
            self.activations.values(), key=lambda cost: cost.forward.number_seconds + cost.gradient.number_seconds
        )

    def loss(self, classification: bool) -> ElementCost:
        """Cost of the loss and its gradient."""
        return _named(self.losses, "cross_entropy" if classification else "mse")

    def update(self, optimizer: str) -> ElementCost:
        """Cost of an optimizer's update."""
        return _named(self.updates, optimizer)

    def scaled(self, factor: float, *, calls: bool = True) -> Compute:
        """All costs times `factor`, those of Python and of calls only with `calls`."""
        fixed = {"cache_bytes", "noise"}
        if not calls:
            fixed |= {"call_seconds", "row_seconds", "instruction_seconds", "step_seconds"}

        def scale(value: Any) -> Any:
            if isinstance(value, BaseModel):
                return value.model_copy(update={name: scale(item) for name, item in value if name not in fixed})
            if isinstance(value, dict):
                return {key: scale(item) for key, item in value.items()}
            return value * factor if isinstance(value, float) else value

        return self.model_copy(update={name: scale(value) for name, value in self if name not in fixed})

    def pace(self, ranks: int) -> float:
        """Mean time until the last of `ranks` has finished a computation, relative to its median.

        Ranks that wait for each other run at the pace of the slowest (Petrini, Kerbyson and Pakin 2003). Delays are
        taken as exponential: the largest of P has mean H_P = 1 + 1/2 + … + 1/P, in mean delays; the median is ln 2.
        """
        return 1.0 + self.noise * (_harmonic(ranks) - log(2.0))

    def in_other_precision(self) -> Compute:
        """Estimate of the other precision: work on elements scales with their size, calls do not."""
        if self.dtype == "float32":
            return self.scaled(2.0, calls=False).model_copy(update={"dtype": "float64"})
        return self.scaled(0.5, calls=False).model_copy(update={"dtype": "float32"})


@lru_cache
def _harmonic(count: int) -> float:
    return fsum(1.0 / number for number in range(1, count + 1))


def _named(costs: Mapping[str, ElementCost], name: str) -> ElementCost:
    """The cost of that name, or the most expensive."""
    return costs.get(name) or max(costs.values(), key=lambda cost: cost.number_seconds)


# -- machine ---------------------------------------------------------------------------------------------------------

MOST_ERROR, MOST_NOISE = 0.25, 0.30  # a measurement with larger values is doubtful


class Quality(Section):
    """Quality of a calibration."""

    # the worst mean relative error on held-out samples: of an operation over sizes of 64 KiB and more (over all if none
    # is so large), of computing over the kinds of pass, weighted by seconds
    held_out_error: AtLeastZero
    held_out_of: Text  # the operation or kind of computing with that error
    noise: AtLeastZero  # largest `Compute.noise`
    # load of the minute before, and ranks times threads of the job, on the node with most load in excess of the job's
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
    """Costs of a machine."""

    name: Text
    nodes: Count = 1
    ranks_per_node: Count  # usually the cores of a node
    memory_bytes_per_rank: Positive
    inside_node: NetworkLink  # messages between two ranks of a node
    between_nodes: NetworkLink | None = None  # and of two nodes; those that leave a node together share its bandwidth
    gamma_seconds_per_byte: AtLeastZero = 0.0  # additions of a reduction, for collectives that were not measured
    overlap: Overlap = Overlap()
    # measured ones; others cost what the best algorithm costs over the links
    collectives: Annotated[tuple[CollectiveCost, ...], BeforeValidator(list_as_tuple)] = ()
    # for each precision and number of busy ranks on a node
    compute: Annotated[tuple[Compute, ...], BeforeValidator(list_as_tuple), Field(min_length=1)]
    quality: Quality | None = None  # None if written by hand
    about: dict[str, str] = Field(default_factory=dict)  # origin of the coefficients

    @model_validator(mode="after")
    def _nodes_are_linked(self) -> Machine:
        if self.nodes > 1 and self.between_nodes is None:
            raise refused("between_nodes", None, f"is needed with nodes = {self.nodes}")
        return self

    __hash__ = object.__hash__  # for caches of its costs: hashing all coefficients would take longer than most of them

    @property
    def ranks(self) -> int:
        """Ranks of the whole machine."""
        return self.nodes * self.ranks_per_node

    @property
    def processor(self) -> str:
        """Model of the processor that was calibrated; empty in a file that was written by hand."""
        return self.about.get("processor", "")

    @property
    def calibrated_ranks(self) -> int | None:
        """Ranks of the calibration; None in a file that was written by hand."""
        text = self.about.get("ranks", "")
        return int(text) if text.isdigit() else None

    @property
    def doubt(self) -> str:
        """Sentence on a doubtful calibration; empty for a good one, and for a file that was written by hand."""
        problems = "; ".join(self.quality.problems) if self.quality is not None else ""
        return f"the machine file {self.name} is doubtful, and so are its predictions: {problems}" if problems else ""

    def node_ranks(self, ranks: int) -> int:
        """Ranks on a full node of a job; more ranks than the machine has are spread evenly over its nodes."""
        return max(self.ranks_per_node, ceil(ranks / self.nodes))

    def placed(self, ranks: int, nodes: int) -> Machine:
        """The machine for a job whose ranks are spread over `nodes` nodes.

        It is the machine itself where the job fills its nodes, or where nothing between nodes was measured.
        """
        per_node = ceil(ranks / nodes)
        if per_node >= self.ranks_per_node or nodes == 1 or self.between_nodes is None:
            return self
        return self.model_copy(update={"ranks_per_node": per_node, "nodes": max(self.nodes, nodes)})

    def link(self, *, spans_nodes: bool) -> NetworkLink:
        """Link inside a node or between nodes."""
        return (self.between_nodes if spans_nodes else None) or self.inside_node

    @property
    def overhead_between_nodes(self) -> MessageOverhead | None:
        """What messages between nodes take from their ranks while these compute; None if it is unknown."""
        return None if self.between_nodes is None else self.between_nodes.overhead

    def message_seconds(self, nbytes: float, *, spans_nodes: bool = False, flows: float = 1) -> float:
        """Seconds of a message; between nodes, `flows` messages share a node's bandwidth.

        No message between nodes takes less than its bytes at the speed of the largest: many networks let short messages
        pass at once and have their rate only in the long run (token buckets), and a pipeline sends one after another.
        """
        if not spans_nodes:
            return self.inside_node.seconds(nbytes)
        return max(self.link(spans_nodes=True).seconds(nbytes, flows), self.link_seconds(nbytes, flows))

    def link_seconds(self, nbytes: float, flows: float) -> float:
        """Seconds in which `flows` messages of a node occupy its link: their bytes at the speed of large messages."""
        return nbytes * self.link(spans_nodes=True).segments[-1].beta_seconds_per_byte * flows

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
