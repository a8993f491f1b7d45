"""What the network of a run says of samples without targets."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.agreement import agree
from hybridnn.datasets.user_file import load_samples
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.runs.inference.trained_run import TrainedRun, trainer_of
from hybridnn.utils.files import npz_bytes

NUMBERS_AT_ONCE = 2**22
"""Inputs that are sent to all ranks together, so that only rank 0 needs room for a large file."""


@dataclass(frozen=True)
class Predictions:
    """Predictions in the order of the samples.

    Attributes
    ----------
    columns : tuple of str
        Names of the columns of `values`.
    values : ndarray of float64, shape (samples, outputs)
        Probabilities of the classes, or targets in their original units.
    classes : ndarray of int64, shape (samples,), or None
        The most probable class; None for regression.
    ignored : tuple of str
        Columns of the file that are neither inputs nor targets of the run.
    """

    columns: tuple[str, ...]
    values: NDArray[np.float64]
    classes: NDArray[np.int64] | None
    ignored: tuple[str, ...] = ()

    def to_csv(self) -> bytes:
        """One line per sample after a header line; numbers with all their digits."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if self.classes is None:
            writer.writerow(self.columns)
            writer.writerows(self.values.tolist())
        else:
            writer.writerow(("class", *self.columns))
            rows = zip(self.classes.tolist(), self.values.tolist(), strict=True)
            writer.writerows((label, *values) for label, values in rows)
        return text.getvalue().encode()

    def to_npz(self) -> bytes:
        """Arrays ``classes`` and ``probabilities``, or ``predictions``."""
        if self.classes is None:
            return npz_bytes({"predictions": self.values})
        return npz_bytes({"classes": self.classes, "probabilities": self.values})


def predict_file(run: TrainedRun, grid: ProcessGrid, path: Path) -> Predictions | None:
    """Predict from the samples of a file, which rank 0 reads; collective over `grid`.

    Parameters
    ----------
    run : TrainedRun
    grid : ProcessGrid
    path : Path
        As for `load_samples`. Input columns of a ``.csv`` are found by the names that they had in the run's data, or
        where those are not known by position, without the run's targets.

    Returns
    -------
    Predictions or None
        None on ranks other than 0.

    Raises
    ------
    HybridnnError
        On every rank: the file cannot be used, or the network does not fit the grid.
    """
    data = run.settings.data
    samples = agree(
        grid.world, lambda: load_samples(path, run.features, data.targets, data.inputs) if grid.rank == 0 else None
    )
    outputs = _outputs(run, grid, None if samples is None else samples.x)
    return None if samples is None else replace(_predictions(run, outputs), ignored=samples.ignored)


def _outputs(run: TrainedRun, grid: ProcessGrid, x: NDArray[Any] | None) -> NDArray[Any]:
    """Outputs of the network for the samples of rank 0, shape (samples, outputs); empty on other ranks."""
    trainer = trainer_of(run, grid)
    total = np.array([0 if x is None else len(x)], np.int64)
    grid.world.broadcast(total)
    samples = int(total[0])
    outputs = np.empty((0 if x is None else samples, run.outputs), run.settings.training.dtype)
    at_once = max(1, NUMBERS_AT_ONCE // (run.features * trainer.batch_size)) * trainer.batch_size
    for first in range(0, samples, at_once):
        block = np.empty((min(at_once, samples - first), run.features), run.settings.training.dtype)
        if x is not None:
            block[...] = _standardized(run, x[first : first + at_once])
        grid.world.broadcast(block)
        predicted = trainer.predict(block)
        if x is not None:
            outputs[first : first + at_once] = predicted
    return outputs


def _standardized(run: TrainedRun, x: NDArray[Any]) -> NDArray[Any]:
    """Inputs as the network takes them, computed in float64 as in training."""
    return x if run.standardizer is None else run.standardizer.apply_x(x.astype(np.float64))


def _predictions(run: TrainedRun, outputs: NDArray[Any]) -> Predictions:
    exact = outputs.astype(np.float64)
    if run.task == "classification":
        columns = tuple(f"probability_{label}" for label in range(run.outputs))
        return Predictions(columns, _softmax(exact), outputs.argmax(axis=1))
    columns = run.settings.data.targets or tuple(f"target_{number}" for number in range(run.outputs))
    return Predictions(columns, exact if run.standardizer is None else run.standardizer.restore_y(exact), None)


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares
