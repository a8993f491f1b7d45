"""Layers of a multi-layer perceptron, and invalid settings."""

from __future__ import annotations

import pytest

from hybridnn import MLP


def test_layers_and_parameters() -> None:
    model = MLP([5, 8, 8, 3, 3], "selu", residual=True)
    assert [(layer.index, layer.inputs, layer.outputs) for layer in model.layers] == [
        (0, 5, 8),
        (1, 8, 8),
        (2, 8, 3),
        (3, 3, 3),
    ]
    assert [layer.activation for layer in model.layers] == ["selu", "selu", "selu", "identity"]
    # The output layer is never residual, even where its widths agree.
    assert [layer.residual for layer in model.layers] == [False, True, False, False]
    assert [layer.initializer for layer in model.layers] == ["lecun", "lecun", "lecun", "glorot"]
    assert model.parameters == 5 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3 + 3 * 3 + 3


def test_no_hidden_layer_is_a_linear_model() -> None:
    (only,) = MLP([4, 2]).layers
    assert only.activation == "identity"


def test_models_are_comparable_and_immutable() -> None:
    model = MLP([4, 2])
    assert model == MLP((4, 2))
    assert model != MLP([4, 3])
    with pytest.raises(AttributeError):
        model.sizes = (1, 2)  # type: ignore[misc]
