"""One copy, which is moved and put back."""

import numpy as np


def numerical_gradient(function, point, step):
    work, result = np.array(point), np.zeros_like(point)

    def value(index, shift):
        before = work[index]
        work[index] = before + shift
        try:
            return function(work)
        finally:
            work[index] = before

    iterator = np.nditer(result, flags=["multi_index", "zerosize_ok"])
    while not iterator.finished:
        index = iterator.multi_index
        result[index] = (value(index, step) - value(index, -step)) / (step + step)
        iterator.iternext()
    return result
