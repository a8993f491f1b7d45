"""Losses as sums over samples, and the gradient of their mean over the *global* minibatch.

Ranks exchange sums, which are divided once by the number of samples of the global minibatch, so the gradient does not
depend on the distribution of the samples.
"""

from __future__ import annotations

import numpy as np

from hybridnn.errors import SettingError
from hybridnn.nn.kernels import Array, Kernels
from hybridnn.nn.mlp import MLP


def resolve_loss(model: MLP, task: str) -> str:
    """The loss of `model` on data of `task`, which determines ``auto``; `SettingError` if it does not fit."""
    expected = "cross_entropy" if task == "classification" else "mse"
    if model.loss not in ("auto", expected):
        raise SettingError("model.loss", model.loss, f"{task} data takes {expected} (or auto)")
    return expected


def loss_gradient(
    kernels: Kernels,
    name: str,
    outputs: Array,
    targets: Array,
    columns: Array,
    samples: int,
    gradient: Array,
    loss: Array,
    weights: Array | None = None,
) -> None:
    """Loss of this rank's samples and its gradient.

    Parameters
    ----------
    name : {"mse", "cross_entropy"}
    outputs : ndarray, shape (outputs, n)
    targets : ndarray, shape (n, outputs), or of int and shape (n,)
    columns : ndarray of int, shape (n,)
        0 … n-1.
    samples : int
        Samples of the global minibatch.
    gradient : ndarray, shape (outputs, n)
        Receives the gradient of (sum of the losses) / `samples`.
    loss : ndarray, shape (1,)
        Receives the sum of the losses.
    weights : ndarray, shape (outputs,), optional
        Factors of the cross-entropy of samples by class; on the host only.
    """
    if weights is not None:
        _weighted_cross_entropy(outputs, targets, columns, weights, 1.0 / samples, gradient, loss)
    elif name == "cross_entropy":
        kernels.cross_entropy(outputs, targets, columns, 1.0 / samples, gradient, loss)
    else:
        kernels.mean_squared_error(outputs, targets.T, 1.0 / samples, gradient, loss)


def _weighted_cross_entropy(
    logits: Array, labels: Array, columns: Array, weights: Array, scale: float, gradient: Array, loss: Array
) -> None:
    """As `Kernels.cross_entropy`, with each sample's loss times the weight of its class."""
    loss[0] = 0
    if logits.shape[1]:
        np.subtract(logits, logits.max(axis=0), out=gradient)
        label_logits = gradient[labels, columns]
        np.exp(gradient, out=gradient)
        sums, of_samples = gradient.sum(axis=0), weights[labels]
        np.multiply(gradient, of_samples * scale / sums, out=gradient)
        gradient[labels, columns] -= of_samples * scale
        loss[0] = np.sum(of_samples * (np.log(sums) - label_logits))
