"""Partition of layers into stages: equal counts, or the counts for which the slowest part of the pipeline is fastest.

A pipeline is as fast as its slowest part (Harlap et al. 2018, PipeDream, arXiv:1806.03377, section 3.2). Its parts are
the stages and the boundaries between them, at which activations go forward and their gradients come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum, inf
from typing import TYPE_CHECKING, NamedTuple

from hybridnn.comm.blocks import block_sizes
from hybridnn.errors import SettingError
from hybridnn.utils.checks import require_number, require_whole

if TYPE_CHECKING:
    from hybridnn.pipeline.partition.layer_profile import LayerProfile


@dataclass(frozen=True)
class LinkCost:
    """Cost of messages between any two ranks: `alpha` seconds per message and `beta` seconds per byte.

    Raises
    ------
    SettingError
        If one is negative or not finite.
    """

    alpha: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("alpha", self.alpha), ("beta", self.beta)):
            require_number(name, value, at_least=0, allowed="a finite number of seconds, 0 or more")

    def message_seconds(self, nbytes: float) -> float:
        """Seconds of one message: alpha + beta n (Hockney's model)."""
        return self.alpha + self.beta * nbytes

    def reduction_seconds(self, nbytes: float, ranks: int) -> float:
        """Seconds of a ring all-reduce: 2 (r-1) alpha + 2 (r-1)/r beta n (Thakur, Rabenseifner and Gropp 2005)."""
        return 2 * (ranks - 1) * (self.alpha + self.beta * nbytes / ranks)


FREE_LINK = LinkCost()
TYPICAL_LINK = LinkCost(alpha=5e-6, beta=2e-10)  # order of magnitude inside a node; not measured


# -- counts of layers ------------------------------------------------------------------------------------------------


def check_stages(layers: int, stages: int, ranks: int | None = None) -> None:
    """Raise a SettingError for more stages than layers, or than ranks."""
    require_whole("parallel.pipeline", stages, 1)
    if stages > layers:
        raise SettingError("parallel.pipeline", stages, f"at most {layers}, the number of layers")
    if ranks is not None:
        require_whole("ranks", ranks, 1)
        if ranks < stages:
            raise SettingError("ranks", ranks, f"at least {stages}, one for each stage")


def check_partition(counts: Sequence[int], layers: int, stages: int) -> None:
    """Raise a SettingError for counts of layers that are not a partition of `layers` into `stages`."""
    check_stages(layers, stages)

    def error(allowed: str) -> SettingError:
        return SettingError("parallel.partition", list(counts), allowed)

    if len(counts) != stages:
        raise error(f"needs one count of layers for each of {stages} stage{'s' * (stages > 1)}")
    if any(isinstance(count, bool) or not isinstance(count, int) or count < 1 for count in counts):
        raise error("each stage needs a whole number of layers, 1 or more")
    if sum(counts) != layers:
        raise error(f"the counts add up to {sum(counts)}, the network has {layers} layers")


def uniform_partition(layers: int, stages: int) -> tuple[int, ...]:
    """Equal counts of layers; the first ``layers mod stages`` stages have one more.

    Eleven layers over three stages are 4, 4, 3 (Kang 2019, section 3.1). Errors are those of `check_stages`.
    """
    check_stages(layers, stages)
    return tuple(block_sizes(layers, stages))


def balanced_partition(profile: Sequence[LayerProfile], stages: int, link: LinkCost = FREE_LINK) -> tuple[int, ...]:
    """Counts of layers for which the slowest stage or boundary is as fast as possible: one rank for every stage."""
    return tuple(layers for layers, _ in replicated_partition(profile, stages, stages, link))


def replicated_partition(
    profile: Sequence[LayerProfile], ranks: int, stages: int | None = None, link: LinkCost = FREE_LINK
) -> tuple[tuple[int, int], ...]:
    """Layers and replicas of every stage for which the slowest stage or boundary is as fast as possible, exactly.

    PipeDream's dynamic programming with replication (Harlap et al. 2018, section 3.2) over all ways to use exactly
    `ranks` ranks: the best cost of the first j layers in m stages is the least, over the end i of the stage before the
    last, of the greatest of the best cost of i layers in m-1 stages, twice the message at that boundary, and the cost
    of a stage of layers i+1 to j. A stage on r ranks costs ``max(compute / r, all-reduce(parameter bytes, r))``, as
    there: a lower bound, because it assumes that the all-reduce overlaps with the computation. A boundary costs two
    messages of all outputs, as there: an upper bound where several ranks share it. Of equally fast partitions the one
    whose second slowest part is faster is taken, and so on; then the one with more layers in front.

    Without `stages`, their number is the fastest one, the smallest of equally fast ones. Errors are those of
    `check_stages`.
    """
    layers = len(profile)
    check_stages(layers, 1 if stages is None else stages, ranks)
    counts = range(1, min(layers, ranks) + 1) if stages is None else (stages,)
    replicas = range(1, ranks - counts[0] + 2)
    seconds = {
        (first, end): _stage_seconds(profile[first:end], replicas, link)
        for first in range(layers)
        for end in range(first + 1, layers + 1)
    }
    boundaries = [_boundary_seconds(layer, link) for layer in profile[:-1]]
    found = [_best_placement(seconds, boundaries, count, ranks) for count in counts]
    best = min(found, key=lambda placement: placement.costs[0])
    return tuple(zip(best.stages, best.replicas, strict=True))


# -- costs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartitionPlan:
    """A partition and its expected costs."""

    stages: tuple[int, ...]  # layers of every stage
    replicas: tuple[int, ...]  # ranks that share the samples of every stage
    # per minibatch: the passes on the rank with the most samples, or the all-reduce of the gradients if longer
    stage_seconds: tuple[float, ...]
    # activations forward and their gradient back, at every boundary: one fewer than the stages
    message_seconds: tuple[float, ...]

    @property
    def bottleneck(self) -> float:
        """Seconds of the slowest stage or boundary: between two minibatches of a full pipeline."""
        return max(*self.stage_seconds, *self.message_seconds, 0.0)

    @property
    def balance(self) -> float:
        """Mean over maximum of the stages' seconds: 1 if all are equal."""
        slowest = max(self.stage_seconds)
        return fsum(self.stage_seconds) / len(self.stage_seconds) / slowest if slowest else 1.0


def plan_partition(
    profile: Sequence[LayerProfile],
    stages: Sequence[int],
    replicas: Sequence[int] | None = None,
    link: LinkCost = FREE_LINK,
) -> PartitionPlan:
    """Expected costs of a partition with `stages` layers per stage, on `replicas` ranks each, by default one.

    Errors are those of `check_partition`.
    """
    check_partition(stages, len(profile), len(stages))
    replicas = (1,) * len(stages) if replicas is None else tuple(replicas)
    ends = list(accumulate(stages))
    counts = zip(stages, replicas, ends, strict=True)
    return PartitionPlan(
        tuple(stages),
        replicas,
        tuple(_stage_seconds(profile[end - count : end], (r,), link)[0] for count, r, end in counts),
        tuple(_boundary_seconds(profile[end - 1], link) for end in ends[:-1]),
    )


def _stage_seconds(layers: Sequence[LayerProfile], replicas: Iterable[int], link: LinkCost) -> list[float]:
    """Seconds of a stage for each number of replicas."""
    # fsum: the same layers cost the same to the last bit in any order, so that ties are ties.
    compute = fsum(seconds for layer in layers for seconds in (layer.forward_seconds, layer.backward_seconds))
    nbytes = fsum(layer.parameter_bytes for layer in layers)
    return [max(compute / r, link.reduction_seconds(nbytes, r) if r > 1 else 0.0) for r in replicas]


def _boundary_seconds(layer: LayerProfile, link: LinkCost) -> float:
    return 2 * link.message_seconds(layer.output_bytes)


# -- search ----------------------------------------------------------------------------------------------------------


class _Placement(NamedTuple):
    """The first layers of a network on the first ranks.

    The seconds of every stage and boundary, in descending order, and the layers and ranks of every stage.
    """

    costs: tuple[float, ...] = ()
    stages: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()


_StageSeconds = Mapping[tuple[int, int], Sequence[float]]
"""From the first layer of a stage and the one after its last to its seconds on 1, 2, … ranks."""


def _best_placement(seconds: _StageSeconds, boundaries: Sequence[float], stages: int, ranks: int) -> _Placement:
    """Place all layers in `stages` stages on exactly `ranks` ranks, so that the slowest part is as fast as possible.

    The recurrence is applied to complete lists of costs, in descending order, in place of the greatest alone. Two
    prefixes keep their order when the same stage is appended to both, which is all that the recurrence needs. Of equal
    partitions the one with more layers, then more ranks, in front is taken.
    """
    layers = len(boundaries) + 1
    best = {(0, 0): _Placement()}
    for stage in range(1, stages + 1):
        after = stages - stage
        # Every later stage needs a layer and a rank, and the last stage takes all that is left.
        ends = range(stage if after else layers, layers - after + 1)
        totals = range(stage if after else ranks, ranks - after + 1)
        best = {(end, total): _extended(best, end, total, seconds, boundaries) for end in ends for total in totals}
    return best[layers, ranks]


def _extended(
    best: dict[tuple[int, int], _Placement], end: int, total: int, seconds: _StageSeconds, boundaries: Sequence[float]
) -> _Placement:
    """The best of the prefixes with one more stage, so that `end` layers are on `total` ranks."""
    found: _Placement | None = None
    # From the longest prefix down, as that is taken of equal ones.
    for (first, before), prefix in reversed(best.items()):
        if first >= end or before >= total:
            continue
        cost = seconds[first, end][total - before - 1]
        if found is not None and (cost > found.costs[0] or prefix.costs[:1] > found.costs[:1]):
            continue  # without sorting, as for most prefixes
        boundary = boundaries[first - 1 : first]  # none before the first layer
        costs = tuple(sorted((*prefix.costs, cost, *boundary), reverse=True))
        if found is None or costs < found.costs:
            found = _Placement(costs, (*prefix.stages, end - first), (*prefix.replicas, total - before))
    assert found is not None, "there is a layer and a rank for every stage"
    return found


def balanced_counts(
    seconds: Callable[[int, int, int], float], boundaries: Sequence[float], stages: int
) -> tuple[int, ...]:
    """Counts of layers for unequal stages, for which the slowest stage or boundary is as fast as possible.

    The same recurrence for given ranks of every stage. Where a boundary is slowest, the slowest stage is as fast as it
    can be without a slower boundary. `seconds` takes a stage, its first layer and the one after its last, and more
    layers take no less time; `boundaries` has the seconds of the boundary after each layer but the last. There are at
    least as many layers as stages. Of several equally fast counts the same ones are always returned.
    """
    slowest, counts = _least_slowest(seconds, boundaries, stages)
    if slowest in boundaries:
        free = [0.0 if boundary <= slowest else inf for boundary in boundaries]
        _, counts = _least_slowest(seconds, free, stages)
    return counts


def _least_slowest(
    seconds: Callable[[int, int, int], float], boundaries: Sequence[float], stages: int
) -> tuple[float, tuple[int, ...]]:
    """Seconds of the slowest part, and the counts; of equally fast counts those with more layers in front."""
    layers = len(boundaries) + 1
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage in range(stages):
        after, shortest, longest = stages - stage - 1, min(best), max(best)
        found = {}
        for end in range(stage + 1 if after else layers, layers - after + 1):
            least = inf
            least_counts: tuple[int, ...] = ()
            # From the fewest layers in the last stage on; more of them take longer.
            for first in range(min(longest, end - 1), shortest - 1, -1):
                own, (cost, counts) = seconds(stage, first, end), best[first]
                if own > least:
                    break
                slowest = max(cost, own, boundaries[first - 1] if first else 0.0)
                # Negative counts, so that the least is that with more layers in front.
                if slowest < least or (slowest == least and (*counts, first - end) < least_counts):
                    least, least_counts = slowest, (*counts, first - end)
            found[end] = least, least_counts
        best = found
    slowest, counts = best[layers]
    return slowest, tuple(-count for count in counts)
