"""Metrics of evaluations, which count every sample once for every number of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.nn.kernels import Array, Kernels

if TYPE_CHECKING:
    from hybridnn.parallel.workspace import StageArrays
    from hybridnn.pipeline.execution.executor import Minibatch
    from hybridnn.training.data_split import DataSplit
    from hybridnn.training.engine import Engine


@dataclass(frozen=True)
class Metrics:
    """Loss and accuracy or R² on a set of samples.

    Attributes
    ----------
    loss : float
        Mean loss.
    accuracy : float or None
        Fraction of samples whose largest output is that of the label; None for regression.
    r2 : float or None
        Coefficient of determination, 1 - SS_res / SS_tot, averaged over the outputs; None for classification, and for
        a single sample.
    samples : int
        Samples counted.
    roc_auc, average_precision : float or None
        Area under the ROC curve, and average precision, of the second of two classes, as `ranking_scores` has them;
        None for other tasks, and where the samples are all of one class.
    """

    loss: float
    accuracy: float | None
    r2: float | None
    samples: int
    roc_auc: float | None = None
    average_precision: float | None = None


def ranking_scores(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> tuple[float, float] | tuple[None, None]:
    """Area under the ROC curve and average precision of scores, shape (samples,), that should be high for `positive`.

    Equal scores are one threshold; the precision is not interpolated (both as in scikit-learn). None if all samples are
    positive, or none is.
    """
    if not positive.any() or positive.all():
        return None, None
    order = np.argsort(-scores)
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # of samples with equal scores
    hits = np.cumsum(positive[order])[ends]
    misses = ends + 1 - hits
    found, before = np.diff(hits, prepend=0), np.append(0, hits[:-1])
    area = (np.diff(misses, prepend=0) * (hits + before)).sum() / (2 * hits[-1] * misses[-1])
    return float(area), float((found * (hits / (ends + 1))).sum() / hits[-1])


class ClassificationSums:
    """Sums of the losses and of the samples that are classified correctly, over the samples of a rank.

    `add`, called at most `blocks` times, is asynchronous on a device; `total` copies all sums to the host at once. Of
    two classes it keeps the outputs of at most `ranked` samples, for `ranking_scores`.
    """

    def __init__(self, kernels: Kernels, blocks: int, ranked: int = 0) -> None:
        self._kernels, self._samples, self._blocks = kernels, 0, 0
        self._sums = kernels.zeros((2, blocks), np.float64)
        self._outputs, self._labels = kernels.empty((2, ranked), np.float64), kernels.empty((ranked,), np.int64)

    def add(self, outputs: Array, targets: Array, loss: Array) -> None:
        """Add n samples: outputs, shape (outputs, n); labels, shape (n,); and the sum of their losses, shape (1,)."""
        if outputs.shape[1]:
            block = slice(self._blocks, self._blocks + 1)
            self._kernels.copy(loss, self._sums[0, block])
            self._kernels.count_correct(outputs, targets, self._sums[1, block])
            if self._labels.size:
                part = slice(self._samples, self._samples + outputs.shape[1])
                self._kernels.copy(outputs, self._outputs[:, part])
                self._kernels.copy(targets, self._labels[part])
            self._samples += outputs.shape[1]
            self._blocks += 1

    def total(self, group: Group) -> Metrics:
        """Metrics over the samples of all ranks of `group`; collective over it."""
        sums = self._kernels.to_host(self._sums)
        counts = np.zeros(3)
        counts[0] = self._samples
        for block in sums.T:  # one after the other, so that the sum does not depend on how NumPy adds
            counts[1:] += block
        group.allreduce(counts)
        samples, loss, correct = counts.tolist()
        ranking = self._ranking(group, int(samples)) if self._labels.size else (None, None)
        return Metrics(loss / max(samples, 1), correct / max(samples, 1), None, int(samples), *ranking)

    def _ranking(self, group: Group, samples: int) -> tuple[float, float] | tuple[None, None]:
        """`ranking_scores` of the samples of all ranks: each adds its own, in its own place."""
        counts = np.zeros(group.size, np.int64)
        counts[group.rank] = self._samples
        group.allreduce(counts)
        start = counts[: group.rank].sum()
        outputs, labels = (
            self._kernels.to_host(array)[..., : self._samples] for array in (self._outputs, self._labels)
        )
        everything = np.zeros((2, samples))
        everything[:, start : start + self._samples] = outputs[1] - outputs[0], labels
        group.allreduce(everything)
        return ranking_scores(everything[0], everything[1] > 0)


class RegressionSums:
    """Sums of the losses and of the squares in R², over the samples of a rank; the methods as `ClassificationSums`."""

    def __init__(self, kernels: Kernels, outputs: int) -> None:
        self._to_host = kernels.to_host
        self._counts = np.zeros(2)  # samples, loss
        # Per output: sum of squared residuals, mean of the targets, sum of squared deviations from that mean.
        self._residual = np.zeros(outputs)
        self._mean = np.zeros(outputs)
        self._deviation = np.zeros(outputs)
        # Maxima of the targets and of their negatives: the test for a constant output must not depend on rounding.
        self._extremes = np.full((2, outputs), -np.inf)

    def add(self, outputs: Array, targets: Array, loss: Array) -> None:
        """As `ClassificationSums.add`, with targets of shape (n, outputs)."""
        n = outputs.shape[1]
        if n == 0:
            return
        count = self._counts[0]
        self._counts += (n, float(self._to_host(loss)[0]))
        exact = self._to_host(targets).astype(np.float64)
        self._residual += np.square(exact - self._to_host(outputs).T).sum(axis=0)
        np.maximum(self._extremes, (exact.max(axis=0), -exact.min(axis=0)), out=self._extremes)
        mean = exact.mean(axis=0)
        shift = mean - self._mean
        # Chan, Golub and LeVeque 1983, equation 2.1: merging two sets without cancellation.
        self._deviation += np.square(exact - mean).sum(axis=0) + shift**2 * (count * n / (count + n))
        self._mean += shift * (n / (count + n))

    def total(self, group: Group) -> Metrics:
        """As `ClassificationSums.total`."""
        own_samples = self._counts[0]
        counts = self._counts.copy()
        group.allreduce(counts)
        samples, loss = int(counts[0]), counts[1] / max(counts[0], 1)
        mean = self._mean * own_samples / max(samples, 1)
        group.allreduce(mean)
        sums = np.stack([self._residual, self._deviation + own_samples * (self._mean - mean) ** 2])
        group.allreduce(sums)
        residual, total = sums
        group.allreduce(self._extremes, "max")
        # A constant target has no variance: by convention R² is 1 for exact outputs, else 0 (as in scikit-learn).
        constant = self._extremes[0] == -self._extremes[1]
        r2 = np.where(constant, residual == 0, 1.0 - residual / np.where(constant, 1.0, total))
        return Metrics(float(loss), None, float(r2.mean()) if samples > 1 else None, samples)


def evaluate(engine: Engine, split: DataSplit) -> Metrics:
    """Metrics on all samples of `split`; collective over the grid."""
    grid, kernels, outputs = engine.grid, engine.kernels, engine.config.model.sizes[-1]
    loss, compute_loss = kernels.zeros((1,), engine.dtype), engine.loss(split.task, weighted=False)
    sums: ClassificationSums | RegressionSums = RegressionSums(kernels, outputs)
    if split.task == "classification":
        blocks = ceil(split.samples / engine.forward_size(split.samples))
        most = ceil(split.samples / grid.batch) + blocks  # on a rank, whose block of each pass is rounded up
        sums = ClassificationSums(kernels, blocks, most if outputs == 2 else 0)

    def add(minibatch: Minibatch, arrays: StageArrays) -> None:
        if grid.model_rank == 0:  # all ranks of a model group have the same outputs
            compute_loss(arrays, minibatch.size, loss)
            sums.add(arrays.outputs, arrays.targets, loss)

    engine.run_forward(split, add)
    if split.task != "classification":  # whose sums come from the device when they are added over the ranks
        kernels.to_host(loss)  # a rank that adds nothing must not wait in MPI while its passes wait for NCCL
    return sums.total(grid.world)
