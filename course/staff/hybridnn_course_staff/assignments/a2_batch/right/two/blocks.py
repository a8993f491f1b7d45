"""A list of sizes, and np.split."""

import numpy as np


def block_bounds(items, parts, part):
    # 10 items, 4 parts: (10, 11, 12, 13) // 4 are the sizes 2, 2, 3, 3
    sizes = [(items + number) // parts for number in range(parts)]
    start = sum(sizes[:part])
    return start, start + sizes[part]


def minibatches(order, batch_size):
    short = len(order) % batch_size
    if short:
        yield order[:short]
    full = order[short:]
    if full.size:
        yield from np.split(full, len(full) // batch_size)
