"""How the layers are split over a model group: which block of every layer a rank owns, and where ranks must talk.

``columns``: every layer by its outputs; the outputs are gathered after each forward (Laugier et al. 2018, Algorithm 2;
"column" is the papers' word for a neuron). ``alternating``: a layer by its outputs, the next by its inputs; between the
two nothing is gathered, so a pair costs one all-reduce in each direction ("Layer split" in the book chapter on pipeline
input and layer split; row split).
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridnn.comm.partition import block_slice
from hybridnn.errors import GridError
from hybridnn.nn.mlp import DenseLayer
from hybridnn.nn.parameters import LayerShard

MODEL_SPLITS = ("columns", "alternating")


def split_layers(layers: Sequence[DenseLayer], split: str, ranks: int, rank: int) -> list[LayerShard]:
    """Split consecutive layers over a model group.

    Parameters
    ----------
    layers : sequence of DenseLayer
        The layers of a stage.
    split : {"columns", "alternating"}
    ranks, rank : int
        Size of the model group and this rank's place in it.

    Raises
    ------
    GridError
        If a layer has fewer outputs than there are ranks to split them; the message names both numbers.
    """
    shards = []
    for place, layer in enumerate(layers):
        by_inputs = split == "alternating" and place % 2 == 1
        if not by_inputs and layer.outputs < ranks:
            hint = (
                ""
                if split == "alternating"
                else "; model_split = 'alternating' splits every second layer by its inputs"
            )
            raise GridError(
                f"parallel.model = {ranks}: layer {layer.index} has {layer.outputs} outputs, "
                f"fewer than the {ranks} model ranks it is split over{hint}"
            )
        outputs = block_slice(layer.outputs, ranks, rank)
        rows, columns = outputs, slice(0, layer.inputs)
        if by_inputs:
            rows, columns = slice(0, layer.outputs), block_slice(layer.inputs, ranks, rank)
        paired = split == "alternating" and place % 2 == 0 and place + 1 < len(layers)
        shards.append(LayerShard(layer, rows, columns, outputs, by_inputs, gathers=not by_inputs and not paired))
    return shards
