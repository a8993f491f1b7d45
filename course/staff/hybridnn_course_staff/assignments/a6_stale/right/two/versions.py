"""Numbers of buffers by age."""

import numpy as np


class WeightVersions:
    def __init__(self, weights, versions):
        self.buffers = [weights, *(np.empty_like(weights) for _ in range(versions - 1))]
        self.place = {0: 0}  # number of the buffer, by age

    def read(self, which):
        return self.buffers[self.place[which]]

    def update(self, rule, kept=()):
        old = self.place[0]
        self.place = {age + 1: number for age, number in self.place.items() if age + 1 in kept}
        taken = self.place.values()
        new = old if old not in taken else next(n for n in range(len(self.buffers)) if n not in taken)
        self.place[0] = new
        rule(self.buffers[old], self.buffers[new])
