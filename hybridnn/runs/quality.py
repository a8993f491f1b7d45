"""How good the predictions of a run are: by class for classification, and by target for regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def _ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> Floats:
    """Elementwise quotient, 0 where the denominator is 0, as scikit-learn's reports have it."""
    quotients: Floats = np.divide(numerator, denominator, out=np.zeros(len(numerator)), where=denominator > 0)
    return quotients


@dataclass(frozen=True, eq=False)
class ClassReport:
    """Counts of predictions by class.

    Attributes
    ----------
    names : tuple of str
        Of the classes.
    confusion : ndarray of int64, shape (classes, classes)
        Samples by true class (row) and predicted class (column).
    """

    names: tuple[str, ...]
    confusion: NDArray[np.int64]

    @classmethod
    def of(cls, names: Sequence[str], true: NDArray[np.int64], predicted: NDArray[np.int64]) -> ClassReport:
        """Count predictions."""
        classes = len(names)
        counts = np.bincount(true * classes + predicted, minlength=classes * classes)
        return cls(tuple(names), counts.reshape(classes, classes))

    @property
    def support(self) -> NDArray[np.int64]:
        """Samples of every class."""
        total: NDArray[np.int64] = self.confusion.sum(axis=1)
        return total

    @property
    def precision(self) -> Floats:
        """Share of the samples predicted as a class that are of it; 0 where none was predicted."""
        return _ratio(self.confusion.diagonal(), self.confusion.sum(axis=0))

    @property
    def recall(self) -> Floats:
        """Share of the samples of a class that were predicted as it; 0 where there are none."""
        return _ratio(self.confusion.diagonal(), self.support)

    @property
    def f1(self) -> Floats:
        """Harmonic mean of precision and recall; 0 where both are."""
        return _ratio(2 * self.precision * self.recall, self.precision + self.recall)

    def means(self) -> dict[str, tuple[float, float, float]]:
        """Precision, recall and F1, as means over the classes and as means over the samples."""
        scores = np.stack([self.precision, self.recall, self.f1])
        weights = self.support / max(self.support.sum(), 1)
        macro, weighted = scores.mean(axis=1).tolist(), (scores * weights).sum(axis=1).tolist()
        return {"macro mean": tuple(macro), "weighted mean": tuple(weighted)}

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        by_class = zip(
            self.names,
            self.precision.tolist(),
            self.recall.tolist(),
            self.f1.tolist(),
            self.support.tolist(),
            strict=True,
        )
        names = ("precision", "recall", "f1", "samples")
        return {
            "classes": [dict(zip(("name", *names), values, strict=True)) for values in by_class],
            **{name.replace(" ", "_"): dict(zip(names, values, strict=False)) for name, values in self.means().items()},
            "confusion": self.confusion.tolist(),
        }


@dataclass(frozen=True, eq=False)
class RegressionReport:
    """Errors of predictions, in the units of the targets.

    Attributes
    ----------
    names : tuple of str
        Of the targets.
    true, predicted : ndarray, shape (samples, targets)
    """

    names: tuple[str, ...]
    true: Floats
    predicted: Floats

    @property
    def rmse(self) -> Floats:
        """Root of the mean squared error of every target."""
        errors: Floats = np.sqrt(np.mean((self.predicted - self.true) ** 2, axis=0))
        return errors

    @property
    def mae(self) -> Floats:
        """Mean absolute error of every target."""
        errors: Floats = np.mean(np.abs(self.predicted - self.true), axis=0)
        return errors

    @property
    def r2(self) -> Floats:
        """Coefficient of determination of every target; NaN where the target is constant."""
        residual = np.sum((self.predicted - self.true) ** 2, axis=0)
        total = np.sum((self.true - self.true.mean(axis=0)) ** 2, axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(total > 0, 1 - residual / total, np.nan)

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for JSON; null for what is not defined."""
        rows = zip(self.names, self.r2.tolist(), self.rmse.tolist(), self.mae.tolist(), strict=True)
        return {
            "targets": [
                {"target": name, "r2": None if np.isnan(r2) else r2, "rmse": rmse, "mae": mae}
                for name, r2, rmse, mae in rows
            ]
        }


Report = ClassReport | RegressionReport
