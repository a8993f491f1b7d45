"""Stability of stale gradients: the largest rate with which training goes to a minimum, on a quadratic and in a study.

The loss λ w² / 2 of one weight has the gradient λ w. The first of K stages computes it at the weights that its forward
pass reads, up to K-1 updates old or predicted, and whether w goes to 0 depends on the rate times λ alone. With momentum
m and a gradient of d updates before, w(t+1) = (1+m) w(t) - m w(t-1) - rate λ w(t-d).
"""

from __future__ import annotations

import numpy as np

from hybridnn.nn.kernels import NUMPY, HostArray
from hybridnn.nn.optimizers import Optimizer, new_state
from hybridnn.pipeline.schedules.methods import Method

UPDATES = 4096
TINY = 1e-300  # below which rounding may keep a weight from going to 0
CURVATURES = np.geomspace(1e-3, 8.0, 2000)
"""Products of rate and λ that are tried at once, 0.45 % apart."""


def largest_rate(method: Method, optimizer: Optimizer, stages: int) -> float:
    """Largest of `CURVATURES` up to which the first of some stages goes to the minimum.

    The weights and the optimizer are those of the library: `policy.forward` of the method, `predict` and `update`.
    """
    weights = np.ones_like(CURVATURES)
    state, peaks = new_state(optimizer, weights, NUMPY), np.zeros((4, len(weights)))  # of every quarter of the updates
    read, begun = dict[int, tuple[HostArray, int]](), 0
    with np.errstate(over="ignore", invalid="ignore"):  # most of them diverge
        for update in range(UPDATES):
            while (weight := method.policy.forward(0, stages, begun)).version <= update:
                values = weights.copy()  # the newest: older ones were read before
                if weight.ahead:
                    optimizer.predict(weights, state, 1.0, weight.ahead, values)
                read[begun], begun = (values, weight.version), begun + 1
            values, version = read.pop(update)
            state.delay = update - version
            optimizer.update(weights, CURVATURES * values, state, 1.0)
            np.maximum(peak := peaks[4 * update // UPDATES], np.abs(weights), out=peak)
        shrinks = np.append((peaks[3] < peaks[2]) | (peaks[3] < TINY), False)
    first = int(np.argmin(shrinks))
    return float(CURVATURES[first - 1]) if first else np.nan


def closed_form(delay: int, momentum: float) -> float:
    """Rate times λ up to which all roots of z^(d+1) - (1+m) z^d + m z^(d-1) + rate λ are in the unit circle.

    Without momentum it is 2 sin(π / (4d+2)).
    """
    low, high = 0.0, 4.0
    for _ in range(50):
        middle = (low + high) / 2
        equation = np.zeros(delay + 3)  # times z, for a delay of 0
        equation[:3] = 1.0, -1.0 - momentum, momentum
        equation[delay + 1] += middle
        low, high = (middle, high) if max(abs(np.roots(equation))) < 1 else (low, middle)
    return low
