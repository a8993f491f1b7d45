"""Versions by their absolute numbers, and a deque of spare buffers."""

from collections import deque

import numpy as np


class WeightVersions:
    def __init__(self, weights, versions):
        self.count, self.held = 0, {0: weights}
        self.spare = deque(np.zeros_like(weights) for _ in range(1, versions))

    def read(self, which):
        return self.held[self.count - which]

    def update(self, rule, kept=()):
        current = self.held[self.count]
        wanted = {self.count + 1 - age for age in kept}
        for number in [number for number in self.held if number not in wanted]:
            buffer = self.held.pop(number)
            if buffer is not current:
                self.spare.append(buffer)
        target = self.spare.popleft() if self.count in wanted else current
        rule(current, target)
        self.count += 1
        self.held[self.count] = target
