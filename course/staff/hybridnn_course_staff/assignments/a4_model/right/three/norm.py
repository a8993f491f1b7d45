"""Only the last rank counts what all ranks have."""

from itertools import compress

import numpy as np


def global_norm(group, gradients, is_replicated):
    counted = (
        list(gradients) if group.rank == group.size - 1 else list(compress(gradients, np.logical_not(is_replicated)))
    )
    flat = np.concatenate([np.zeros(1), *(np.ravel(one) for one in counted)])
    square = np.linalg.norm(flat, keepdims=True) ** 2
    group.allreduce(square)
    return np.sqrt(square)[0]
