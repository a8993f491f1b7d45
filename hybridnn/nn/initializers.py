"""Initial weights as functions of the seed, the layer and the output row.

Each row of a weight matrix has its own counter-based generator (Philox; Salmon et al. 2011). A rank that owns rows
draws only those (a rank that owns columns draws full rows and keeps its block), and every process grid starts from the
same network. Weights are drawn in float64 and then rounded, so float32 and float64 runs start from the same weights.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.nn.mlp import DenseLayer


def initialize_rows(layer: DenseLayer, seed: int, rows: slice, columns: slice, out: NDArray[Any]) -> None:
    """Write a block of the initial weights of `layer` to `out`.

    he: normal with variance 2 / inputs (He et al. 2015, equation 10); lecun: normal with variance 1 / inputs (LeCun et
    al. 1998, equation 16); glorot: uniform on ±sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010, equation 16).

    Parameters
    ----------
    rows, columns : slice
        Block of the weight matrix, shape (outputs, inputs).
    """
    for target, row in zip(out, range(rows.start, rows.stop), strict=True):
        generator = np.random.Generator(np.random.Philox(key=[seed, layer.index], counter=[0, 0, 0, row]))
        if layer.initializer == "glorot":
            limit = sqrt(6.0 / (layer.inputs + layer.outputs))
            values = generator.uniform(-limit, limit, layer.inputs)
        else:
            variance = (2.0 if layer.initializer == "he" else 1.0) / layer.inputs
            values = generator.standard_normal(layer.inputs)
            values *= sqrt(variance)
        target[...] = values[columns]
