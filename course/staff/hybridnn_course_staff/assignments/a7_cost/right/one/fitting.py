"""Repetitions in a dictionary, and `nnls` on scaled columns."""

from statistics import median

import numpy as np
from scipy.optimize import nnls


def fit_costs(features, seconds):
    groups = {}
    for row, value in zip(features, seconds):
        groups.setdefault(tuple(row), []).append(value)
    measured = np.array([median(values) for values in groups.values()])
    matrix = np.array(list(groups)) / measured[:, None]
    lengths = np.sqrt((matrix**2).sum(axis=0))
    lengths = np.where(lengths > 0, lengths, 1)
    coefficients, _ = nnls(matrix / lengths, np.ones(len(measured)))
    return coefficients / lengths
