"""Closed forms, and `numpy.array_split`."""

import numpy as np


def block_bounds(items, parts, part):
    indices = np.array_split(np.arange(items), parts)
    start = sum(map(len, indices[:part]))
    return start, start + len(indices[part])


def minibatches(order, batch_size):
    count = -(-len(order) // batch_size)
    return (order[batch_size * number : batch_size * (number + 1)] for number in range(count))
