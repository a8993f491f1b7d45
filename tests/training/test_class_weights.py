"""Balanced classes: gradient and loss of weighted samples, on every grid, and what cannot have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.errors import SettingError
from reference import network as net
from reference.cases import assert_arrays_close
from reference.network import Network

NETWORK = Network((3, 5, 4, 4, 3), "tanh", loss="cross_entropy")
RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((23, 3))
Y = np.repeat([0, 1, 2], [16, 5, 2])[RANDOM.permutation(23)]
BALANCED = {0: 23 / (3 * 16), 1: 23 / (3 * 5), 2: 23 / (3 * 2)}


def trained(x: Any = X, y: Any = Y, **settings: Any) -> Trainer:
    """After one update on all samples."""
    settings = {"batch_size": len(X), "dtype": "float64", "class_weight": "balanced", **settings}
    trainer = Trainer(MLP(NETWORK.sizes, "tanh"), SGD(lr=0.1), **settings)
    trainer.fit(x, y, epochs=1, validation=(X, Y))
    return trainer


GRIDS: dict[str, dict[str, Any]] = {
    "batch": {},
    "scattered": {"distribution": "scatter"},
    "model": {"axes": {"model": 2}},
    "gpipe": {"axes": {"pipeline": 2}, "method": "gpipe", "microbatches": 3},
    "zb-h1": {"axes": {"pipeline": 2}, "method": "zb-h1", "microbatches": 4},
}


@pytest.mark.in_process(ranks=[2, 4])
@pytest.mark.parametrize("name", GRIDS)
def test_the_gradient_is_that_of_the_mean_of_weighted_losses(comm: MPI.Intracomm, name: str) -> None:
    weights = net.initial_weights(NETWORK, 7)
    settings = dict(GRIDS[name])
    grid = ProcessGrid(comm, **settings.pop("axes", {}))
    first = comm.rank == 0 or "distribution" not in settings
    it = trained(X if first else None, Y if first else None, grid=grid, initial_weights=weights, **settings)
    parts = {label: net.gradients(NETWORK, weights, X[label == Y], Y[label == Y]) for label in BALANCED}
    shares = {label: weight * np.mean(label == Y) for label, weight in BALANCED.items()}  # of the mean of a class
    gradient = {key: sum(shares[label] * part[1][key] for label, part in parts.items()) for key in weights}
    assert_arrays_close(it.gradients(), gradient, name, tolerance=1e-12)
    record = it.history.epochs[0]
    assert record.train_loss == pytest.approx(sum(shares[label] * part[0] for label, part in parts.items()), rel=1e-12)
    outputs = it.predict(X)
    assert record.validation_loss == pytest.approx(net.loss(NETWORK, outputs, Y), rel=1e-12)  # counts every sample once


def test_float32_and_a_class_that_does_not_occur() -> None:
    labels = np.where(Y == 2, 1, Y)
    found = trained(y=labels, dtype="float32").history.epochs[0]
    assert found.train_loss == pytest.approx(trained(y=labels).history.epochs[0].train_loss, rel=1e-6)


def test_what_has_no_classes_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"^training.class_weight = 'balanced': needs classes, and this is a regression$"
    ):
        Trainer(MLP(NETWORK.sizes), class_weight="balanced").fit(X, 2.0 * np.eye(3)[Y], epochs=1)
