"""A count of updates in units of time, and a product of momenta."""

import numpy as np


def predicted_reads(stage, stages, minibatch, minibatches):
    # In units of a forward pass: a backward pass on each of the `stage` stages before takes 2, and this stage makes
    # an update every 1 + 2 meanwhile.
    later = 2 * stage // 3
    aim = min(minibatch + later, minibatches - 1)
    newest = max(minibatch + 1 + stage - stages, 0)
    return (newest, aim - newest), (minibatch, aim - minibatch)


def predict(self, weights, state, lr, steps, out):
    moved = 0.0  # by the learning rate, in units of the velocity
    factor = 1.0
    for _ in range(steps):
        factor *= self.momentum
        moved += factor
    np.multiply(state.slots["velocity"], -lr * moved, out=out)
    out += weights
