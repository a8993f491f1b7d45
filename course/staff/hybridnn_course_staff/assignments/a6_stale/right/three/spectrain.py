"""The times of all passes, as in the picture with long backward passes."""

from functools import lru_cache

import numpy as np


@lru_cache(maxsize=None)
def ends(stages, minibatches):
    """Ends of all passes, by kind, stage and minibatch."""
    orders = []
    for k in range(stages):
        warm_up = min(stages - 1 - k, minibatches)
        order = [("F", t) for t in range(warm_up)]
        for t in range(minibatches):
            order += [("F", warm_up + t)] * (warm_up + t < minibatches) + [("B", t)]
        orders.append(order)
    found, free, place = {}, [0] * stages, [0] * stages
    while any(place[k] < len(orders[k]) for k in range(stages)):
        for k in range(stages):
            if place[k] == len(orders[k]):
                continue
            kind, t = orders[k][place[k]]
            other = k - 1 if kind == "F" else k + 1
            if 0 <= other < stages and (kind, other, t) not in found:
                continue
            start = max(free[k], found.get((kind, other, t), 0))
            free[k] = found[kind, k, t] = start + (1 if kind == "F" else 2)
            place[k] += 1
    return found


def predicted_reads(stage, stages, minibatch, minibatches):
    time = ends(stages, minibatches)

    def updates(moment):
        return sum(time["B", stage, t] <= moment for t in range(minibatches))

    forward = updates(time["F", stage, minibatch] - 1)
    aim = updates(time["B", 0, minibatch]) - 1
    return (forward, aim - forward), (minibatch, aim - minibatch)


def predict(self, weights, state, lr, steps, out):
    m = self.momentum
    factor = steps if m == 1 else m * (1 - m**steps) / (1 - m)
    np.multiply(state.slots["velocity"], -lr * factor, out=out)
    out += weights
