"""Losses as sums over samples, and the gradient of their mean over the *global* minibatch.

Ranks exchange sums, which are divided once by the number of samples of the global minibatch, so the gradient does not
depend on the distribution of the samples.
"""

from __future__ import annotations

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
        Factors of the cross-entropy of samples by class.
    """
    if name == "cross_entropy":
        more = {} if weights is None else {"weights": weights}  # other arithmetic need not know them
        kernels.cross_entropy(outputs, targets, columns, 1.0 / samples, gradient, loss, **more)
    else:
        kernels.mean_squared_error(outputs, targets.T, 1.0 / samples, gradient, loss)
