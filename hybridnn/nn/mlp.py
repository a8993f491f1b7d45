"""Multi-layer perceptron: widths, activations, loss and initializer, without weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Annotated, Any

from hybridnn.errors import SettingError
from hybridnn.nn.activations import ACTIVATIONS
from hybridnn.utils.checks import Checked, Count, OneOf, require_fields, require_type, with_advice
from hybridnn.utils.text import html_table

INITIALIZERS = ("he", "glorot", "lecun")
LOSSES = ("mse", "cross_entropy")

Activation = Annotated[str, OneOf(ACTIVATIONS)]
Loss = Annotated[str, OneOf(("auto", *LOSSES))]
Initializer = Annotated[str, OneOf(("auto", *INITIALIZERS))]


@dataclass(frozen=True)
class DenseLayer:
    """One fully connected layer, ``y = activation(W x + b)``, plus ``x`` where it is residual."""

    index: int  # position in the network, from 0; names the parameters ``layers.<index>.weight`` and ``.bias``
    inputs: int
    outputs: int
    activation: str  # a key of ``ACTIVATIONS``
    residual: bool  # whether the input is added to the output, which has the same width
    initializer: str  # one of ``INITIALIZERS``

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.outputs * (self.inputs + 1)


def _sizes(value: Any) -> Any:
    try:
        sizes = require_type("model.sizes", value, tuple[Count, ...])
    except SettingError:
        return None
    return sizes if len(sizes) > 1 else None


ALLOWED_SIZES = "a list of at least an input and an output width, each a whole number, at least 1, as in [10, 16, 2]"
IN_SIZES = "the widths of all layers are one list, as in MLP([10, 16, 2])"


MISSING = {
    "dropout": "there is no dropout; weight_decay of the optimizer and EarlyStopping limit overfitting",
    **dict.fromkeys(("batch_norm", "layer_norm"), "there is no normalization; standardize the inputs, or take selu"),
}
"""What to use in place of parts of networks that there are not."""


@with_advice({**dict.fromkeys(("hidden", "layers", "*"), IN_SIZES), **MISSING})
@dataclass(frozen=True)
class MLP:
    """A multi-layer perceptron.

    Parameters
    ----------
    sizes : sequence of int
        Width of the input, of every hidden layer, and of the output.
    activation : {"relu", "identity", "tanh", "sigmoid", "selu"}
        Of the hidden layers; the output layer is linear.
    residual : bool
        Whether hidden layers of equal input and output width compute ``h + f(h)``, so that deep networks train.
    loss : {"auto", "mse", "cross_entropy"}
        ``auto``: cross-entropy for integer labels, mean squared error for real targets.
    initializer : {"auto", "he", "glorot", "lecun"}
        ``auto``: he for relu, lecun for selu, glorot for the others.

    Raises
    ------
    SettingError
        If a width is not positive, or a name is unknown.

    Examples
    --------
    >>> MLP([64, 128, 10]).parameters
    9610
    """

    sizes: Annotated[Sequence[int], Checked(_sizes, ALLOWED_SIZES)]
    activation: Activation = "relu"
    _: KW_ONLY
    residual: bool = False
    loss: Loss = "auto"
    initializer: Initializer = "auto"

    def __post_init__(self) -> None:
        require_fields("model", self)

    @cached_property
    def layers(self) -> tuple[DenseLayer, ...]:
        """The layers, from input to output."""
        last = len(self.sizes) - 2
        layers = []
        for index, (inputs, outputs) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            activation = self.activation if index < last else "identity"
            initializer = ACTIVATIONS[activation].initializer if self.initializer == "auto" else self.initializer
            residual = self.residual and index < last and inputs == outputs
            layers.append(DenseLayer(index, inputs, outputs, activation, residual, initializer))
        return tuple(layers)

    @property
    def parameters(self) -> int:
        """Weights and biases of all layers."""
        return sum(layer.parameters for layer in self.layers)

    def _repr_html_(self) -> str:
        """A table of the layers, for notebooks."""
        heads = ("layer", "inputs", "outputs", "activation", "parameters")
        rows: list[tuple[object, ...]] = [
            (
                layer.index,
                layer.inputs,
                layer.outputs,
                layer.activation + (", residual" if layer.residual else ""),
                f"{layer.parameters:,}",
            )
            for layer in self.layers
        ]
        rows.append(("all", self.sizes[0], self.sizes[-1], "", f"{self.parameters:,}"))
        return html_table(heads, rows)


def resolve_loss(model: MLP, task: str) -> str:
    """The loss of `model` on data of `task`, which determines ``auto``; `SettingError` if it does not fit."""
    expected = "cross_entropy" if task == "classification" else "mse"
    if model.loss not in ("auto", expected):
        raise SettingError("model.loss", model.loss, f"{task} data takes {expected} (or auto)")
    return expected
