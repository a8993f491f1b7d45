"""A list of buffers, and beside it the age of what each of them holds."""

import numpy as np


class WeightVersions:
    def __init__(self, weights, versions):
        self.buffers = [weights] + [np.empty_like(weights) for _ in range(versions - 1)]
        self.ages = [0] + [None] * (versions - 1)

    def read(self, which):
        return self.buffers[self.ages.index(which)]

    def update(self, rule, kept=()):
        old = self.ages.index(0)
        older = [None if age is None else age + 1 for age in self.ages]
        self.ages = [age if age in kept else None for age in older]
        new = old if self.ages[old] is None else self.ages.index(None)
        rule(self.buffers[old], self.buffers[new])
        self.ages[new] = 0
