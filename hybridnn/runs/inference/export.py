"""Export of the network of a run as plain arrays, from which NumPy can compute its outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.datasets import Standardizer
from hybridnn.errors import SettingError
from hybridnn.nn.parameters import parameter_shapes
from hybridnn.runs.inference.trained_run import TrainedRun

Arrays = dict[str, NDArray[Any]]

EXPORTED_NAMES = {"x_mean": "input_mean", "x_scale": "input_scale", "y_mean": "target_mean", "y_scale": "target_scale"}


def export_arrays(run: TrainedRun, *, fold_standardization: bool = False) -> Arrays:
    """Weights, activations and standardization of the network.

    Parameters
    ----------
    fold_standardization : bool
        Fold shift and scale of the inputs into the first layer, and those of the targets into the last layer: inputs
        and outputs are then in their original units. All parameters become float64.

    Returns
    -------
    dict of str to ndarray
        ``layers.<i>.weight``, shape (outputs, inputs), and ``layers.<i>.bias``, shape (outputs,); ``activations``,
        names, and ``residual``, bool, both of shape (layers,): a layer computes ``activation(W x + b)``, plus ``x`` if
        it is residual. If the run standardized and nothing is folded, ``input_mean`` and ``input_scale``, shape
        (inputs,), and for regression ``target_mean`` and ``target_scale``, shape (outputs,): the input of the network
        is ``(x - input_mean) / input_scale``, its output ``(y - target_mean) / target_scale``.

    Raises
    ------
    SettingError
        If the standardization cannot be folded, because the first layer is residual.
    """
    arrays: Arrays = {name: run.weights[name] for name in parameter_shapes(run.model)}
    if run.standardizer is not None and fold_standardization:
        arrays = _folded(run, arrays, run.standardizer)
    elif run.standardizer is not None:
        arrays |= {EXPORTED_NAMES[name]: array for name, array in run.standardizer.to_arrays().items()}
    layers = run.model.layers
    arrays["activations"] = np.array([layer.activation for layer in layers])
    arrays["residual"] = np.array([layer.residual for layer in layers])
    return arrays


def _folded(run: TrainedRun, arrays: Arrays, standardizer: Standardizer) -> Arrays:
    if run.model.layers[0].residual:
        why = "the first layer is residual: it adds its standardized inputs to its outputs, which no weights can undo"
        raise SettingError("--fold-standardization", True, why)
    folded: Arrays = {name: array.astype(np.float64) for name, array in arrays.items()}
    first, last = "layers.0", f"layers.{len(run.model.layers) - 1}"
    # W (x - mean) / scale + b = (W / scale) x + (b - (W / scale) mean)
    folded[f"{first}.weight"] /= standardizer.x_scale
    folded[f"{first}.bias"] -= folded[f"{first}.weight"] @ standardizer.x_mean
    if standardizer.y_mean is not None and standardizer.y_scale is not None:
        folded[f"{last}.weight"] *= standardizer.y_scale[:, None]
        folded[f"{last}.bias"] *= standardizer.y_scale
        folded[f"{last}.bias"] += standardizer.y_mean
    return folded
