"""Table of the activation functions: NumPy form, derivative and initializer of each.

The backward pass takes the derivative from the *output*, so that a layer stores one array and not two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

HostArray = NDArray[Any]


SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805  # Klambauer et al. 2017, equation 2 and the fixed point for mean 0 and variance 1.


@dataclass(frozen=True)
class Activation:
    """An activation function."""

    # ``apply(z, scratch)`` replaces `z` by its activation, in place. NaN stays NaN.
    apply: Callable[[HostArray, HostArray], None]
    # ``gradient(y, dy, out, scratch)`` writes the gradient with respect to the function's input to `out`, from its
    # output `y` and the gradient `dy` of that; `out` may be `dy`. `scratch` of both functions is an array of the same
    # shape and dtype, which they may overwrite.
    gradient: Callable[[HostArray, HostArray, HostArray, HostArray], None]
    initializer: str  # initial weights with ``initializer="auto"``


def _relu(z: HostArray, scratch: HostArray) -> None:
    np.maximum(z, 0, out=z)


def _relu_gradient(y: HostArray, dy: HostArray, out: HostArray, scratch: HostArray) -> None:
    np.greater(y, 0, out=scratch)
    np.multiply(dy, scratch, out=out)


def _identity(z: HostArray, scratch: HostArray) -> None:
    pass


def _identity_gradient(y: HostArray, dy: HostArray, out: HostArray, scratch: HostArray) -> None:
    if out is not dy:
        np.copyto(out, dy)


def _tanh(z: HostArray, scratch: HostArray) -> None:
    np.tanh(z, out=z)


def _tanh_gradient(y: HostArray, dy: HostArray, out: HostArray, scratch: HostArray) -> None:
    np.multiply(y, y, out=scratch)
    np.subtract(1, scratch, out=scratch)
    np.multiply(dy, scratch, out=out)


def _sigmoid(z: HostArray, scratch: HostArray) -> None:
    from scipy.special import expit  # only here: commands load this module, and SciPy takes long to load

    expit(z, out=z)


def _sigmoid_gradient(y: HostArray, dy: HostArray, out: HostArray, scratch: HostArray) -> None:
    np.subtract(1, y, out=scratch)
    np.multiply(scratch, y, out=scratch)
    np.multiply(dy, scratch, out=out)


def _selu(z: HostArray, scratch: HostArray) -> None:
    # scale * (max(z, 0) + alpha * expm1(min(z, 0))), with expm1(x) = 2 t / (1 - t) and t = tanh(x / 2): as exact near 0
    # as NumPy's expm1, and several times faster. For z >= 0, t is 0: one quotient for both signs.
    np.minimum(z, 0, out=scratch)
    np.multiply(scratch, 0.5, out=scratch)
    np.tanh(scratch, out=scratch)
    np.multiply(scratch, 2 * SELU_ALPHA, out=scratch)
    np.maximum(z, 0, out=z)
    np.add(z, scratch, out=z)
    np.multiply(scratch, -1 / (2 * SELU_ALPHA * SELU_SCALE), out=scratch)
    np.add(scratch, 1 / SELU_SCALE, out=scratch)
    np.divide(z, scratch, out=z)


def _selu_gradient(y: HostArray, dy: HostArray, out: HostArray, scratch: HostArray) -> None:
    # For z <= 0 the output is y = scale * alpha * (exp(z) - 1), whose derivative is y + scale * alpha.
    # For z > 0 the formula with y = 0 gives scale * alpha, but the derivative is scale: divide by alpha there.
    np.minimum(y, 0, out=scratch)
    np.add(scratch, SELU_SCALE * SELU_ALPHA, out=scratch)
    np.multiply(dy, scratch, out=out)
    np.greater(y, 0, out=scratch)
    np.multiply(scratch, 1.0 / SELU_ALPHA - 1.0, out=scratch)
    np.add(scratch, 1.0, out=scratch)
    np.multiply(out, scratch, out=out)


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(_relu, _relu_gradient, "he"),
    "identity": Activation(_identity, _identity_gradient, "glorot"),
    "tanh": Activation(_tanh, _tanh_gradient, "glorot"),
    "sigmoid": Activation(_sigmoid, _sigmoid_gradient, "glorot"),
    "selu": Activation(_selu, _selu_gradient, "lecun"),
}
"""The functions by the names that settings and `MLP` accept."""
