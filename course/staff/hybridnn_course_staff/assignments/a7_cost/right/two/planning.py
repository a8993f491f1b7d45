"""Recursion with a memory, and a generator of the items of a step."""

from functools import lru_cache
from itertools import accumulate


def best_cuts(seconds, boundaries, stages):
    until = [0, *accumulate(seconds)]

    @lru_cache(maxsize=None)
    def best(first, left):
        """Slowest part and counts of the layers from `first` on, in so many stages."""
        if left == 1:
            return until[-1] - until[first], (len(seconds) - first,)
        choices = []
        for end in range(first + 1, len(seconds) - left + 2):
            slowest, counts = best(end, left - 1)
            choices.append((max(until[end] - until[first], boundaries[end - 1], slowest), (end - first, *counts)))
        return min(choices)

    return list(best(0, stages)[1])


def items(widths, batch, b, m):
    """Bytes, ranks and one-way passes of everything that is sent in a step."""
    for number, width in enumerate(widths):
        if number > 0:
            yield 4 * batch * width / b, m, 1
            yield 4 * width * widths[number - 1] / m, b, 2
        if 0 < number < len(widths) - 1:
            yield 4 * batch * width / b, m, 2


def best_grid(widths, batch, ranks, alpha, beta):
    def cost(grid):
        found = list(items(widths, batch, *grid))
        messages = sum(times * (p - 1).bit_length() for _, p, times in found)
        return alpha * messages + beta * sum(times * n * (p - 1) / p for n, p, times in found)

    grids = [(b, ranks // b) for b in range(1, ranks + 1) if ranks % b == 0]
    allowed = [(b, m) for b, m in grids if b <= batch and m <= max(widths[1:])]
    least = min(map(cost, allowed))
    best = max(grid for grid in allowed if cost(grid) == least)
    return best, least
