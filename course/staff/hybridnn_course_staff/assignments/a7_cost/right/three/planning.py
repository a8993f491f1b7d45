"""Messages are waited for, and weights are sharded; dictionaries of the best partitions, and NumPy for the grids."""

import numpy as np


def best_cuts(seconds, boundaries, stages):
    edges = [0, *boundaries, 0]
    totals = np.concatenate([[0.0], np.cumsum(seconds)])
    best = {0: (0.0, [])}
    for _ in range(stages):
        extended = {}
        for first, (slowest, counts) in best.items():
            for end in range(first + 1, len(seconds) + 1):
                own = edges[first] + totals[end] - totals[first] + edges[end]
                candidate = max(slowest, own), [*counts, end - first]
                if end not in extended or candidate < extended[end]:
                    extended[end] = candidate
        best = extended
    return best[len(seconds)][1]


def best_grid(widths, batch, ranks, alpha, beta):
    d = np.array(widths, dtype=float)
    seconds = {}
    for m in range(1, ranks + 1):
        b = ranks // m
        if b * m < ranks or b > batch or m > d[1:].max():
            continue
        along_model = 4 * batch / b * (d[1:].sum() + 2 * d[1:-1].sum())
        along_batch = 3 * 4 / m * (d[1:] @ d[:-1])
        layers = len(widths) - 1
        messages = (layers + 2 * (layers - 1)) * (m - 1).bit_length() + 3 * layers * (b - 1).bit_length()
        seconds[b, m] = messages * alpha + beta * (along_model * (m - 1) / m + along_batch * (b - 1) / b)
    grid = min(seconds, key=lambda one: (seconds[one], -one[0]))
    return grid, float(seconds[grid])
