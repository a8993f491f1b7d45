"""Sorted by seconds, so that the first of equal rows is the least."""

import numpy as np
from scipy.optimize import nnls


def fit_costs(features, seconds):
    # the fastest of equal rows comes first, and np.unique finds the first ones
    order = np.argsort(seconds)
    features, seconds = features[order], seconds[order]
    _, first = np.unique(features, axis=0, return_index=True)
    relative = features[first] / seconds[first, None]
    lengths = np.sqrt((relative**2).sum(axis=0))
    has_length = lengths > 0
    result = np.zeros(features.shape[1])
    solution, _ = nnls(relative[:, has_length] / lengths[has_length], np.ones(len(first)))
    result[has_length] = solution / lengths[has_length]
    return result
