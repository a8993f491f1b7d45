"""A recursive function with a cache, and exact fractions."""

from fractions import Fraction
from functools import lru_cache


def best_cuts(seconds, boundaries, stages):
    layers = len(seconds)

    def part(start, stop):
        before = boundaries[start - 1] if start > 0 else 0
        after = boundaries[stop - 1] if stop < layers else 0
        return before + sum(seconds[start:stop]) + after

    @lru_cache(maxsize=None)
    def best(start, left):
        """The time of the slowest of so many stages from a layer on, and their counts."""
        if left == 1:
            return part(start, layers), (layers - start,)
        found = []
        for stop in range(start + 1, layers - left + 2):
            slowest, counts = best(stop, left - 1)
            found.append((max(slowest, part(start, stop)), (stop - start, *counts)))
        return min(found)

    return list(best(0, stages)[1])


def best_grid(widths, batch, ranks, alpha, beta):
    def one_way(elements, group):
        nbytes = 4 * elements
        return (group - 1).bit_length() * Fraction(alpha) + nbytes * Fraction(group - 1, group) * Fraction(beta)

    def seconds(batch_ranks):
        model_ranks = ranks // batch_ranks
        samples = Fraction(batch, batch_ranks)
        total = 0
        for number, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
            total += one_way(samples * outputs, model_ranks)
            if number > 0:
                total += 2 * one_way(samples * inputs, model_ranks)
            total += 3 * one_way(Fraction(inputs * outputs, model_ranks), batch_ranks)
        return total

    allowed = [
        batch_ranks
        for batch_ranks in range(ranks, 0, -1)
        if ranks % batch_ranks == 0 and batch_ranks <= batch and ranks // batch_ranks <= max(widths[1:])
    ]
    best = min(allowed, key=seconds)  # the first of equal ones, and the most batch ranks come first
    return (best, ranks // best), float(seconds(best))
