"""A copy of the point for every evaluation."""

import numpy as np


def numerical_gradient(function, point, step):
    def value(index, distance):
        moved = point.copy()
        moved[index] += distance
        return function(moved)

    result = np.empty_like(point)
    for index in np.ndindex(point.shape):
        result[index] = (value(index, step) - value(index, -step)) / (2 * step)
    return result
