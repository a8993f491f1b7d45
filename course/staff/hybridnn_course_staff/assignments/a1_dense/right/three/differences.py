"""A generator over all indices, and a function of the distance from the point."""

from itertools import product

import numpy as np


def numerical_gradient(function, point, step):
    def at(index, distance):
        moved = point.copy()
        moved[index] += distance
        return function(moved)

    indices = list(product(*map(range, point.shape)))
    values = [(at(index, step) - at(index, -step)) / (2 * step) for index in indices]
    return np.array(values, dtype=point.dtype).reshape(point.shape)
