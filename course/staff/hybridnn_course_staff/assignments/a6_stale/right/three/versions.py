"""A list of pairs of a number and a buffer; free buffers have the number -1, and the largest number is the current."""

import numpy as np


class WeightVersions:
    def __init__(self, weights, versions):
        self.slots = [[0, weights], *([-1, np.empty(weights.shape, weights.dtype)] for _ in range(versions - 1))]

    def read(self, which):
        newest = max(number for number, _ in self.slots)
        (buffer,) = [buffer for number, buffer in self.slots if number == newest - which]
        return buffer

    def update(self, rule, kept=()):
        current = max(self.slots, key=lambda slot: slot[0])
        number = current[0] + 1
        for slot in self.slots:
            if number - slot[0] not in kept:
                slot[0] = -1
        target = current if current[0] < 0 else next(slot for slot in self.slots if slot[0] < 0)
        rule(current[1], target[1])
        target[0] = number
