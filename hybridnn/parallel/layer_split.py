"""Division of layers over a model group: the block of every layer that a rank owns, and where outputs are gathered.

``columns``: every layer is split by its outputs, which are gathered after each forward pass (Laugier et al. 2018,
Algorithm 2; the papers call a neuron a column). ``alternating``: a layer split by its outputs is followed by one split
by its inputs. Nothing is gathered between the two, so a pair costs one all-reduce in each direction ("Layer split" in
the book chapter on pipeline input and layer split; row split).
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridnn.comm.blocks import block_slice
from hybridnn.errors import GridError
from hybridnn.nn.mlp import DenseLayer
from hybridnn.nn.parameters import LayerShard

MODEL_SPLITS = ("columns", "alternating")


def split_layers(layers: Sequence[DenseLayer], split: str, ranks: int, rank: int) -> list[LayerShard]:
    """Shards of consecutive layers for one rank of a model group.

    Parameters
    ----------
    layers : sequence of DenseLayer
        The layers of a stage.
    split : {"columns", "alternating"}
    ranks, rank : int
        Size of the model group and this rank's position in it.

    Raises
    ------
    GridError
        If a layer has fewer outputs than there are ranks to split them; the message names both numbers.
    """
    shards = []
    for index, layer in enumerate(layers):
        by_inputs = split == "alternating" and index % 2 == 1
        if not by_inputs and layer.outputs < ranks:
            hint = "; model_split = 'alternating' splits every second layer by its inputs" * (split != "alternating")
            raise GridError(
                f"parallel.model = {ranks}: layer {layer.index} has {layer.outputs} outputs, "
                f"fewer than the {ranks} model ranks it is split over{hint}"
            )
        outputs = block_slice(layer.outputs, ranks, rank)
        rows, columns = outputs, slice(0, layer.inputs)
        if by_inputs:
            rows, columns = slice(0, layer.outputs), block_slice(layer.inputs, ranks, rank)
        is_paired = split == "alternating" and index % 2 == 0 and index + 1 < len(layers)
        shards.append(LayerShard(layer, rows, columns, outputs, by_inputs, gathers=not by_inputs and not is_paired))
    return shards
