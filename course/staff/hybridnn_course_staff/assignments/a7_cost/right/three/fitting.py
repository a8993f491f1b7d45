"""Sorted measurements, of which the first one of equal rows is the least."""

from itertools import groupby

import numpy as np
from scipy import optimize


def fit_costs(features, seconds):
    pairs = sorted(zip(map(tuple, features.tolist()), seconds.tolist()))
    firsts = [next(group) for _, group in groupby(pairs, key=lambda pair: pair[0])]
    matrix = np.array([[value / time for value in row] for row, time in firsts])
    scale = 1 / np.maximum(np.abs(matrix).max(axis=0), np.finfo(float).tiny)
    scale[~matrix.any(axis=0)] = 1
    return optimize.nnls(matrix * scale, np.ones(len(firsts)))[0] * scale
