"""A table of the best first layers, and two loops over the grids."""

from math import inf


def best_cuts(seconds, boundaries, stages):
    n = len(seconds)
    best = [[inf] * (n + 1) for _ in range(stages + 1)]
    cut = [[0] * (n + 1) for _ in range(stages + 1)]
    best[0][0] = 0
    for m in range(1, stages + 1):
        for j in range(m, n + 1):
            for i in range(m - 1, j):
                slowest = max(best[m - 1][i], sum(seconds[i:j]), boundaries[i - 1] if i > 0 else 0)
                if slowest < best[m][j]:
                    best[m][j], cut[m][j] = slowest, i
    counts, j = [], n
    for m in range(stages, 0, -1):
        counts.append(j - cut[m][j])
        j = cut[m][j]
    return counts[::-1]


def best_grid(widths, batch, ranks, alpha, beta):
    best = None
    for batch_ranks in range(ranks, 0, -1):
        model_ranks = ranks // batch_ranks
        if batch_ranks * model_ranks != ranks or batch_ranks > batch or model_ranks > max(widths[1:]):
            continue
        seconds = 0.0
        for k in range(1, len(widths)):
            seconds += one_way(batch / batch_ranks * widths[k] * 4, model_ranks, alpha, beta)
            if k > 1:
                seconds += 2 * one_way(batch / batch_ranks * widths[k - 1] * 4, model_ranks, alpha, beta)
            seconds += 2 * one_way(widths[k] * widths[k - 1] / model_ranks * 4, batch_ranks, alpha, beta)
        if best is None or seconds < best[1]:
            best = (batch_ranks, model_ranks), seconds
    return best


def one_way(nbytes, ranks, alpha, beta):
    return (ranks - 1).bit_length() * alpha + nbytes * (ranks - 1) / ranks * beta
