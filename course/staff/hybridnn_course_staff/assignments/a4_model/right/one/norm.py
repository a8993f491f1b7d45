"""Two sums, of which the replicated one does not travel."""

import math

import numpy as np


def global_norm(group, gradients, is_replicated):
    split = np.zeros(1)
    whole = 0.0
    for gradient, replicated in zip(gradients, is_replicated):
        square = float((gradient * gradient).sum())
        if replicated:
            whole += square
        else:
            split[0] += square
    group.allreduce(split)
    return math.sqrt(split[0] + whole)
