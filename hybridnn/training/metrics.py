"""Test metrics as sums that every sample enters exactly once, so that they are the same for every number of ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import Group


@dataclass(frozen=True)
class Metrics:
    """Quality on a set of samples.

    Attributes
    ----------
    loss : float
        Mean loss.
    accuracy : float or None
        Share of samples whose largest output is the label's; None for regression.
    r2 : float or None
        Coefficient of determination, 1 - SS_res / SS_tot, averaged over the outputs; None for classification.
    samples : int
        Samples counted.
    """

    loss: float
    accuracy: float | None
    r2: float | None
    samples: int

    def to_array(self) -> NDArray[np.float64]:
        """As numbers that can be sent, shape (4,); not a number stands for None."""
        return np.array([np.nan if value is None else value for value in asdict(self).values()])

    @classmethod
    def from_array(cls, numbers: NDArray[np.float64]) -> Metrics:
        """The reverse of `to_array`; the loss itself may be not a number."""
        loss, accuracy, r2, samples = (float(number) for number in numbers)
        return cls(loss, None if np.isnan(accuracy) else accuracy, None if np.isnan(r2) else r2, int(samples))


class MetricSums:
    """Sums over the samples a rank has seen.

    Parameters
    ----------
    outputs : int
        Outputs of the network.
    classification : bool
    """

    def __init__(self, outputs: int, classification: bool) -> None:
        self._classification = classification
        # samples, loss, correct
        self._counts = np.zeros(3)
        # Per output: sum of squared residuals, mean of the targets, sum of squared deviations from that mean.
        self._residual = np.zeros(outputs)
        self._mean = np.zeros(outputs)
        self._deviation = np.zeros(outputs)
        # Largest target, and largest negative of one: whether an output is constant must not depend on rounding.
        self._extremes = np.full((2, outputs), -np.inf)

    def add(self, outputs: NDArray[Any], targets: NDArray[Any], loss: float) -> None:
        """Count a block of samples.

        Parameters
        ----------
        outputs : ndarray, shape (outputs, n)
        targets : ndarray, shape (n, outputs), or of int and shape (n,)
        loss : float
            Sum of the losses of these samples.
        """
        n = outputs.shape[1]
        if n == 0:
            return
        seen = self._counts[0]
        self._counts += (n, loss, 0)
        if self._classification:
            self._counts[2] += np.count_nonzero(outputs.argmax(axis=0) == targets)
            return
        exact = targets.astype(np.float64)
        self._residual += np.square(exact - outputs.T).sum(axis=0)
        np.maximum(self._extremes, (exact.max(axis=0), -exact.min(axis=0)), out=self._extremes)
        mean = exact.mean(axis=0)
        shift = mean - self._mean
        # Chan, Golub and LeVeque 1983, equation 2.1: merging two sets without cancellation.
        self._deviation += np.square(exact - mean).sum(axis=0) + shift**2 * (seen * n / (seen + n))
        self._mean += shift * (n / (seen + n))

    def total(self, group: Group) -> Metrics:
        """Metrics over the samples of all ranks of `group`; collective over it."""
        mine = self._counts[0]
        counts = self._counts.copy()
        group.allreduce(counts)
        samples, loss = int(counts[0]), counts[1] / max(counts[0], 1)
        if self._classification:
            return Metrics(float(loss), float(counts[2] / max(counts[0], 1)), None, samples)
        mean = self._mean * mine / max(samples, 1)
        group.allreduce(mean)
        sums = np.stack([self._residual, self._deviation + mine * (self._mean - mean) ** 2])
        group.allreduce(sums)
        residual, total = sums
        group.allreduce(self._extremes, "max")
        # A constant output has no variance to explain: 1 if it is met exactly, else 0, as the field counts it.
        constant = self._extremes[0] == -self._extremes[1]
        r2 = np.where(constant, residual == 0, 1.0 - residual / np.where(constant, 1.0, total))
        return Metrics(float(loss), None, float(r2.mean()), samples)
