"""Two copies of the point for each element."""

import numpy as np


def numerical_gradient(function, point, step):
    flat = point.ravel()
    result = np.zeros(flat.size, point.dtype)
    for number in range(flat.size):
        up, down = flat.copy(), flat.copy()
        up[number] += step
        down[number] -= step
        result[number] = (function(up.reshape(point.shape)) - function(down.reshape(point.shape))) / (2 * step)
    return result.reshape(point.shape)
