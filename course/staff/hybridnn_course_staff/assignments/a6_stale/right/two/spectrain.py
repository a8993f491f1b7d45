"""Counts of the updates that have ended at a time of the picture."""

import numpy as np


def predicted_reads(stage, stages, minibatch, minibatches):
    behind = stages - 1 - stage
    end_of_backward = [stages + behind + 2 * number + 1 for number in range(minibatches)]
    end_of_round_trip = 2 * stages + 2 * minibatch
    updates_at_end = sum(end <= end_of_round_trip for end in end_of_backward)
    if minibatch <= behind:
        start = stage + minibatch
    else:
        start = end_of_backward[minibatch - behind - 1]
    updates_at_start = sum(end <= start for end in end_of_backward)
    aim = updates_at_end - 1  # without the own one
    return (updates_at_start, aim - updates_at_start), (minibatch, aim - minibatch)


def predict(self, weights, state, lr, steps, out):
    np.copyto(out, state.slots["velocity"])
    out *= lr * steps
    np.subtract(weights, out, out=out)
