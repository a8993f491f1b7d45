"""Norms of the arrays, of which each rank has its share of the whole ones."""

import numpy as np


def global_norm(group, gradients, is_replicated):
    squares = np.zeros(2)  # of blocks, of whole arrays
    for array, whole in zip(gradients, is_replicated):
        squares[int(whole)] += np.linalg.norm(array) ** 2
    # every rank brings its share of what all ranks have
    message = np.array([squares[0] + squares[1] / group.size])
    group.allreduce(message)
    return float(message[0] ** 0.5)
