"""Known wrong solutions of A7: partitions and grids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from hybridnn_course.assignment import Function, Variant
from hybridnn_course.exercises.a7_cost.calls import slowest_part, stage_cost
from hybridnn_course_staff.assignment import Mistake
from hybridnn_course_staff.assignments.a7_cost.solution import (
    ONE_WAYS,
    Costs,
    block,
    cuts_solution,
    fastest,
    fitting_grids,
    least_slowest,
    one_way,
    step_counts,
)

# -- cuts -------------------------------------------------------------------------------------------------------------

Cuts = list[int]


def _greedy(_: Variant) -> Function:
    def best_cuts(seconds: Sequence[float], boundaries: Sequence[float], stages: int) -> Cuts:
        share, counts, own = sum(seconds) / stages, [0], 0.0
        for layer, taken in enumerate(seconds):
            left = len(seconds) - layer
            is_full = (counts[-1] > 0 and own + taken > share) or left == stages - len(counts)
            if is_full and len(counts) < stages:
                counts, own = [*counts, 0], 0.0
            counts[-1] += 1
            own += taken
        return counts

    return best_cuts


def without_boundaries(variant: Variant) -> Function:
    """The best cuts if messages took no time."""
    right = cuts_solution(variant)

    def best_cuts(seconds: Sequence[float], boundaries: Sequence[float], stages: int) -> Cuts:
        result: Cuts = right(seconds, [0.0] * len(boundaries), stages)
        return result

    return best_cuts


def shifted_boundaries(variant: Variant) -> Function:
    """The best cuts if every boundary had the time of the next one."""
    right = cuts_solution(variant)

    def best_cuts(seconds: Sequence[float], boundaries: Sequence[float], stages: int) -> Cuts:
        result: Cuts = right(seconds, [*boundaries[1:], *boundaries[:1]], stages)
        return result

    return best_cuts


def _empty_stage(variant: Variant) -> Function:
    """Stages may be empty: the best of at most so many stages."""
    right = cuts_solution(variant)

    def best_cuts(seconds: Sequence[float], boundaries: Sequence[float], stages: int) -> Cuts:
        found = [right(seconds, boundaries, count) for count in range(1, stages + 1)]
        best = min(found, key=lambda counts: slowest_part(variant, seconds, boundaries, counts))
        return [*best, *[0] * (stages - len(best))]

    return best_cuts


def _equal_counts(_: Variant) -> Function:
    def best_cuts(seconds: Sequence[float], boundaries: Sequence[float], stages: int) -> Cuts:
        return [block(len(seconds), stages, stage) for stage in range(stages)]

    return best_cuts


def _positions(variant: Variant) -> Function:
    right = cuts_solution(variant)

    def best_cuts(seconds: Sequence[float], boundaries: Sequence[float], stages: int) -> Cuts:
        return list(accumulate(right(seconds, boundaries, stages)))

    return best_cuts


def one_after_another(variant: Variant) -> Function:
    """The first stage is cut off as well as possible for itself, then the second, and so on."""

    def best_cuts(seconds: Sequence[float], boundaries: Sequence[float], stages: int) -> Cuts:
        counts: Cuts = []
        first, waits = 0, variant["messages"] == "waited for"
        for stage in range(stages, 1, -1):
            ends = range(first + 1, len(seconds) - stage + 2)
            share = sum(seconds[first:]) / stage
            end = min(ends, key=lambda end: abs(stage_cost(seconds, boundaries, first, end, waits=waits) - share))
            counts.append(end - first)
            first = end
        return [*counts, len(seconds) - first]

    return best_cuts


def _least_messages(_: Variant) -> Function:
    def best_cuts(seconds: Sequence[float], boundaries: Sequence[float], stages: int) -> Cuts:
        cheapest = sorted(range(len(boundaries)), key=lambda index: boundaries[index])[: stages - 1]
        ends = [0, *sorted(index + 1 for index in cheapest), len(seconds)]
        return [end - first for first, end in pairwise(ends)]

    return best_cuts


def _least_total(variant: Variant) -> Function:
    def best_cuts(seconds: Sequence[float], boundaries: Sequence[float], stages: int) -> Cuts:
        def cost(first: int, end: int) -> float:
            waits = variant["messages"] == "waited for"
            return stage_cost(seconds, boundaries, first, end, waits=waits)

        return _least_sum(len(seconds), stages, cost)

    return best_cuts


def _least_sum(layers: int, stages: int, cost: Callable[[int, int], float]) -> Cuts:
    """Counts of layers with the least sum of costs."""
    best: dict[int, tuple[float, Cuts]] = {0: (0.0, [])}
    for stage in range(1, stages + 1):
        best = {
            end: min(
                (total + cost(first, end), [*counts, end - first])
                for first, (total, counts) in best.items()
                if first < end
            )
            for end in range(stage, layers - (stages - stage) + 1)
        }
    return best[layers][1]


def _largest_layer(variant: Variant) -> Function:
    """The cost of a stage is that of its slowest layer."""

    def best_cuts(seconds: Sequence[float], boundaries: Sequence[float], stages: int) -> Cuts:
        def cost(first: int, end: int) -> float:
            return max(seconds[first:end])

        return least_slowest(len(seconds), stages, cost)

    return best_cuts


CUTS = (
    Mistake(
        "greedy-cuts",
        _greedy,
        "Every stage took layers until it had its share, and the last one took the rest. What happens to the last "
        "stage if all others stop a little too early?",
    ),
    Mistake(
        "boundary-ignored",
        without_boundaries,
        "The partition is the best one without messages. What does a cut after a wide layer cost?",
    ),
    Mistake(
        "boundary-shifted",
        shifted_boundaries,
        "The costs of the boundaries are those of the layer after. Between which layers is `boundaries[0]`?",
    ),
    Mistake(
        "empty-stage",
        _empty_stage,
        "A stage has no layer. How many layers does the docstring require of every stage?",
    ),
    Mistake(
        "equal-counts",
        _equal_counts,
        "The stages have equal numbers of layers. Do all layers take equally long?",
    ),
    Mistake(
        "positions-not-counts",
        _positions,
        "These are the ends of the stages. What are the counts of layers between them?",
    ),
    Mistake(
        "one-stage-at-a-time",
        one_after_another,
        "The first stage was chosen before the others were looked at. Can a worse first stage allow a better whole?",
    ),
    Mistake(
        "cheapest-boundaries",
        _least_messages,
        "The network was cut where messages are cheapest. What do the stages between these cuts take?",
    ),
    Mistake(
        "sum-not-maximum",
        _least_total,
        "The sum over the stages was made small. Which stage decides how fast a full pipeline is?",
        {"messages": ["overlapped"]},
    ),
    Mistake(
        "slowest-layer",
        _largest_layer,
        "A stage was counted as fast as its slowest layer. What does a stage do with the others?",
    ),
)


# -- grid -------------------------------------------------------------------------------------------------------------


def _grid(costs: Callable[[Variant], Costs]) -> Callable[[Variant], Function]:
    """A wrong solution with other costs."""

    def function(variant: Variant) -> Function:
        own = costs(variant)

        def best_grid(
            widths: Sequence[int], batch: int, ranks: int, alpha: float, beta: float
        ) -> tuple[tuple[int, int], float]:
            return fastest(own, widths, batch, ranks, alpha, beta)

        return best_grid

    return function


def _with_way(way: Callable[[float, int], tuple[float, float]]) -> Callable[[Variant], Function]:
    return _grid(lambda variant: partial(step_counts, weight_passes=ONE_WAYS[variant["weights"]], way=way))


def _printed_way(nbytes: float, ranks: int) -> tuple[float, float]:
    return (ranks - 1).bit_length(), nbytes * ranks / (ranks - 1) if ranks > 1 else 0.0


def _one_rank_way(nbytes: float, ranks: int) -> tuple[float, float]:
    return max(one_way(nbytes, ranks)[0], 1), one_way(nbytes, ranks)[1]


def _with_passes(passes: Callable[[Sequence[int], int, int, int], list[tuple[float, int, int]]]) -> Any:
    """A wrong solution with other passes along the model axis, each of bytes, ranks and times."""

    def costs(variant: Variant) -> Costs:
        def own(widths: Sequence[int], batch: int, grid: tuple[int, int]) -> tuple[float, float]:
            batch_ranks, model_ranks = grid
            found = passes(widths, batch, batch_ranks, model_ranks)
            for inputs, outputs in pairwise(widths):
                found.append((inputs * outputs / model_ranks * 4, batch_ranks, ONE_WAYS[variant["weights"]]))
            ways = [(times, *one_way(nbytes, ranks)) for nbytes, ranks, times in found]
            return sum(t * messages for t, messages, _ in ways), sum(t * sent for t, _, sent in ways)

        return own

    return _grid(costs)


def _gather_forgotten(widths: Sequence[int], batch: int, p_b: int, p_m: int) -> list[tuple[float, int, int]]:
    return [(batch / p_b * width * 4, p_m, 2) for width in widths[1:-1]]


def _input_layer_reduced(widths: Sequence[int], batch: int, p_b: int, p_m: int) -> list[tuple[float, int, int]]:
    gathered = [(batch / p_b * width * 4, p_m, 1) for width in widths[1:]]
    return gathered + [(batch / p_b * width * 4, p_m, 2) for width in widths[:-1]]


def _reduced_once(widths: Sequence[int], batch: int, p_b: int, p_m: int) -> list[tuple[float, int, int]]:
    gathered = [(batch / p_b * width * 4, p_m, 1) for width in widths[1:]]
    return gathered + [(batch / p_b * width * 4, p_m, 1) for width in widths[1:-1]]


def _whole_batch(widths: Sequence[int], batch: int, p_b: int, p_m: int) -> list[tuple[float, int, int]]:
    gathered = [(batch * width * 4.0, p_m, 1) for width in widths[1:]]
    return gathered + [(batch * width * 4.0, p_m, 2) for width in widths[1:-1]]


def _whole_weights(variant: Variant) -> Costs:
    def own(widths: Sequence[int], batch: int, grid: tuple[int, int]) -> tuple[float, float]:
        right = step_counts(widths, batch, grid, ONE_WAYS[variant["weights"]])
        part = sum(inputs * outputs for inputs, outputs in pairwise(widths)) * 4 * (1 - 1 / grid[1])
        return right[0], right[1] + ONE_WAYS[variant["weights"]] * one_way(part, grid[0])[1]

    return own


def _idle_ranks(variant: Variant) -> Function:
    def best_grid(
        widths: Sequence[int], batch: int, ranks: int, alpha: float, beta: float
    ) -> tuple[tuple[int, int], float]:
        found = {}
        for model in range(1, ranks + 1):
            if ranks % model == 0:
                grid = ranks // model, model
                messages, sent = step_counts(widths, batch, grid, ONE_WAYS[variant["weights"]])
                found[grid] = messages * alpha + sent * beta
        best = min(found, key=lambda grid: found[grid])
        return best, found[best]

    return best_grid


def _pure_grids(variant: Variant) -> Function:
    def best_grid(
        widths: Sequence[int], batch: int, ranks: int, alpha: float, beta: float
    ) -> tuple[tuple[int, int], float]:
        pure = [grid for grid in fitting_grids(widths, batch, ranks) if 1 in grid] or fitting_grids(
            widths, batch, ranks
        )
        found = {}
        for grid in pure:
            messages, sent = step_counts(widths, batch, grid, ONE_WAYS[variant["weights"]])
            found[grid] = messages * alpha + sent * beta
        best = min(found, key=lambda grid: found[grid])
        return best, found[best]

    return best_grid


def _swapped(variant: Variant) -> Function:
    def best_grid(
        widths: Sequence[int], batch: int, ranks: int, alpha: float, beta: float
    ) -> tuple[tuple[int, int], float]:
        costs = partial(step_counts, weight_passes=ONE_WAYS[variant["weights"]])
        (batch_ranks, model_ranks), seconds = fastest(costs, widths, batch, ranks, alpha, beta)
        return (model_ranks, batch_ranks), seconds

    return best_grid


GRID = (
    Mistake(
        "p-over-p-minus-1",
        _with_way(_printed_way),
        "The bytes have the factor p/(p-1), as Laugier et al. 2018 print it (see the errata in the library's "
        "documentation of the papers). How much of an array does a rank lack if it holds one of p parts?",
    ),
    Mistake(
        "p-minus-1-alphas",
        _with_way(lambda nbytes, ranks: (ranks - 1, one_way(nbytes, ranks)[1])),
        "There are p - 1 messages one way, as round a ring. How many does the model of the handout count?",
    ),
    Mistake(
        "bits",
        _with_way(lambda nbytes, ranks: (one_way(nbytes, ranks)[0], 8 * one_way(nbytes, ranks)[1])),
        "The bytes are eight times too many. What is beta the seconds of?",
    ),
    Mistake(
        "elements-not-bytes",
        _with_way(lambda nbytes, ranks: (one_way(nbytes, ranks)[0], one_way(nbytes, ranks)[1] / 4)),
        "The bytes are a fourth of the right ones. How many bytes has an element?",
    ),
    Mistake(
        "one-rank-costs",
        _with_way(_one_rank_way),
        "An axis of one rank has messages. To whom would it send?",
    ),
    Mistake(
        "gather-forgotten",
        _with_passes(_gather_forgotten),
        "The outputs of the layers are not gathered. What does the next layer need as its input?",
    ),
    Mistake(
        "first-layer-reduced",
        _with_passes(_input_layer_reduced),
        "The gradient at the inputs of the first layer was summed, too. Who reads it?",
    ),
    Mistake(
        "reduced-one-way",
        _with_passes(_reduced_once),
        "The sums of gradients at the inputs cost as much as an all-gather. Of which two parts is an all-reduce?",
    ),
    Mistake(
        "whole-minibatch",
        _with_passes(_whole_batch),
        "Activations were counted for the whole minibatch. How many samples does one of the batch ranks have?",
    ),
    Mistake(
        "whole-weights",
        _grid(_whole_weights),
        "The weight gradients of whole layers were summed. Which part of a layer has one of the model ranks?",
    ),
    Mistake(
        "idle-ranks",
        _idle_ranks,
        "The grid has batch ranks without a sample, or model ranks without an output. Which grids does the docstring "
        "allow?",
    ),
    Mistake(
        "pure-grids-only",
        _pure_grids,
        "Only grids with one batch rank or one model rank were compared. Which other pairs have the product `ranks`?",
    ),
    Mistake(
        "axes-swapped",
        _swapped,
        "The seconds are right, and the grid is the other way round. Which number comes first?",
    ),
)
