"""The equations of the paper, with the ends of the training."""

import numpy as np


def predicted_reads(stage, stages, minibatch, minibatches):
    newest = max(0, minibatch - stages + stage + 1)
    target = min(minibatch + stage // 2, minibatches - 1)
    return (newest, target - newest), (minibatch, target - minibatch)


def predict(self, weights, state, lr, steps, out):
    np.multiply(state.slots["velocity"], -lr * steps, out=out)
    np.add(out, weights, out=out)
