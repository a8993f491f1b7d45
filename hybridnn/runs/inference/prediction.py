"""Predictions of the network of a run for samples without targets."""

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

BLOCK_ELEMENTS = 2**22
"""Elements of the inputs that are broadcast at a time, so that only rank 0 needs memory for a large file."""


@dataclass(frozen=True)
class Predictions:
    """Predictions in the order of the samples.

    Attributes
    ----------
    columns : tuple of str
        Of `values`.
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
        """A header line and a line per sample, with all digits of the numbers."""
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
    path : Path
        As for `load_samples`. Input columns of a ``.csv`` file are found by the names of the run's columns, or if these
        have no names by position, without the run's targets.

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
    """Outputs of the network for `x` of rank 0, shape (samples, outputs); without rows on other ranks."""
    trainer = trainer_of(run, grid)
    total = np.array([0 if x is None else len(x)], np.int64)
    grid.world.broadcast(total)
    samples = int(total[0])
    outputs = np.empty((0 if x is None else samples, run.outputs), run.settings.training.dtype)
    block_size = max(1, BLOCK_ELEMENTS // (run.features * trainer.batch_size)) * trainer.batch_size
    for first in range(0, samples, block_size):
        block = np.empty((min(block_size, samples - first), run.features), run.settings.training.dtype)
        if x is not None:
            block[...] = _standardized(run, x[first : first + block_size])
        grid.world.broadcast(block)
        predicted = trainer.predict(block)
        if x is not None:
            outputs[first : first + block_size] = predicted
    return outputs


def _standardized(run: TrainedRun, x: NDArray[Any]) -> NDArray[Any]:
    """Standardized inputs, computed in float64 as in training."""
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
    probabilities: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return probabilities
