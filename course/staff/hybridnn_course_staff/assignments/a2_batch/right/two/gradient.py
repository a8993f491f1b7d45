"""SciPy's softmax, `einsum`, and a dataclass that waits in the opposite order."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import log_softmax


def global_gradient(group, weights, bias, x, labels):
    log_p = log_softmax(np.einsum("nf,of->no", x, weights) + bias, axis=1) if len(x) else np.zeros((0, len(bias)))
    delta = np.exp(log_p) - np.eye(len(bias))[labels]
    parts = np.column_stack([np.einsum("no,nf->of", delta, x), delta.sum(axis=0)])
    loss = -np.take_along_axis(log_p, labels[:, None], 1).sum()
    everything = np.concatenate([parts.ravel(), [loss, len(x)]])
    group.allreduce(everything)
    means = everything[:-1] / everything[-1]
    matrix = means[:-1].reshape(len(bias), -1)
    return matrix[:, :-1], matrix[:, -1], float(means[-1])


def plan_buckets(ends, size, min_elements):
    found: dict[int, tuple[int, int]] = {}
    members: list[int] = []
    stop = size
    for layer, start in list(enumerate([0, *ends[:-1]]))[::-1]:
        members.append(layer)
        if stop - start < min_elements and layer > 0:
            continue
        found[members[-1]] = (start, stop)
        members, stop = [], start
    return found


@dataclass
class GradientReducer:
    group: Any
    buffer: np.ndarray
    buckets: dict
    in_flight: dict = field(default_factory=dict)

    def ready(self, layer):
        try:
            begin, end = self.buckets[layer]
        except KeyError:
            return
        self.in_flight[layer] = self.group.iallreduce(self.buffer[begin:end])

    def finish(self):
        for layer in sorted(self.in_flight):
            self.in_flight[layer].wait()
        self.in_flight = {}
        return self.buffer[-1].item()
