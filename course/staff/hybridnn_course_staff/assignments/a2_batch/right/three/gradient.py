"""An all-reduce for each gradient, buckets by recursion, and a class with slots."""

import numpy as np


def softmax(z):
    e = np.exp(z - np.max(z, axis=-1, keepdims=True, initial=-np.inf))
    return e / np.sum(e, axis=-1, keepdims=True)


def global_gradient(group, weights, bias, x, labels):
    z = x @ weights.T + bias
    p = softmax(z)
    top = z.max(axis=1, initial=-np.inf)
    own = np.log(np.exp(z - top[:, None]).sum(axis=1)) + top - z[range(len(z)), labels]
    target = np.zeros_like(p)
    target[range(len(labels)), labels] = 1
    first = np.ascontiguousarray((p - target).T @ x)
    second = np.hstack([(p - target).sum(0), own.sum(), len(labels)])
    group.allreduce(first)
    group.allreduce(second)
    *rest, count = second
    return first / count, np.array(rest[:-1]) / count, rest[-1] / count


def plan_buckets(ends, size, min_elements):
    starts = [0, *ends[:-1]]

    def plan(top, stop):
        if top < 0:
            return {}
        low = top
        while low > 0 and stop - starts[low - 1] <= min_elements:
            low -= 1
        return {low: (starts[low], stop), **plan(low - 1, starts[low])}

    return plan(len(ends) - 1, size)


class GradientReducer:
    __slots__ = ("_begin", "_buckets", "_buffer", "_requests")

    def __init__(self, group, buffer, buckets):
        self._begin, self._buffer, self._buckets, self._requests = group.iallreduce, buffer, dict(buckets), []

    def ready(self, layer):
        bounds = self._buckets.get(layer)
        if bounds is not None:
            self._requests += [self._begin(self._buffer[slice(*bounds)])]

    def finish(self):
        [request.wait() for request in self._requests]
        self._requests.clear()
        loss, *_ = self._buffer
        return loss
