"""The losses of an epoch's minibatches: noted where they are computed, fetched when somebody wants to know them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.checkpoints.manifest import Progress
from hybridnn.kernels.backend import Array, Kernels


class MinibatchLosses:
    """Mean losses of minibatches, in their order.

    A device goes on with the next steps while it notes them; `fetch` waits for it.

    Parameters
    ----------
    kernels : Kernels
        Of the device that computes them.
    sizes : sequence of int
        Samples of every minibatch, over all ranks.
    share : callable
        Gives an array of sums of losses, of float64, to the ranks that do not know them; collective over the grid.
    require_finite : callable
        Told the number and the mean loss of every minibatch; may raise.

    Attributes
    ----------
    means : list of float
        As far as they were fetched.
    """

    def __init__(
        self,
        kernels: Kernels,
        sizes: Sequence[int],
        share: Callable[[NDArray[Any]], None],
        require_finite: Callable[[int, float], None],
    ) -> None:
        self._kernels, self._sizes = kernels, sizes
        self._share, self._require_finite = share, require_finite
        self._totals = kernels.zeros((len(sizes),), np.float64)
        self.means: list[float] = []

    def note(self, number: int, total: Array) -> None:
        """Keep the sum of the losses of minibatch `number`, shape (1,); nobody waits for it."""
        self._kernels.copy(total, self._totals[number : number + 1])

    def fetch(self, count: int) -> None:
        """Know the first `count`; collective over the grid where ranks have to be told.

        Raises
        ------
        NonFiniteLossError
            On every rank alike.
        """
        known = len(self.means)
        if count <= known:
            return
        totals = self._kernels.to_host(self._totals[known:count])
        self._share(totals)
        for number, total in enumerate(totals.tolist(), known):
            mean = total / self._sizes[number]
            self._require_finite(number, mean)
            self.means.append(mean)

    def progress(self, before: Progress, count: int) -> Progress:
        """How far the training is `count` minibatches after `before`; collective as `fetch` is, and may raise as it."""
        self.fetch(count)
        loss_sum = before.loss_sum
        for mean, size in zip(self.means[:count], self._sizes, strict=False):
            loss_sum += mean * size
        return Progress(
            step=before.step + count,
            epoch=before.epoch,
            minibatches=before.minibatches + count,
            loss_sum=loss_sum,
            samples=before.samples + sum(self._sizes[:count]),
        )
