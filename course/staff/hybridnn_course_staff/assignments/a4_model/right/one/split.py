"""A loop with a flag for the layer that comes next."""

from hybridnn.comm.blocks import block_slice
from hybridnn.nn.parameters import LayerShard


def split_layers(layers, split, ranks, rank):
    result = []
    for i, layer in enumerate(layers):
        own_outputs = block_slice(layer.outputs, ranks, rank)
        own_inputs = block_slice(layer.inputs, ranks, rank)
        if split == "alternating" and i % 2 == 1:
            result.append(LayerShard(layer, slice(0, layer.outputs), own_inputs, own_outputs, True, False))
        else:
            pair = split == "alternating" and i + 1 < len(layers)
            result.append(LayerShard(layer, own_outputs, slice(0, layer.inputs), own_outputs, False, not pair))
    return result
