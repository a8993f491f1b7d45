"""From the last layer to the first, so that the next layer is known."""

from hybridnn.comm.blocks import block_slice
from hybridnn.nn.parameters import LayerShard


def split_layers(layers, split, ranks, rank):
    shards = []
    for number in range(len(layers) - 1, -1, -1):
        layer = layers[number]
        rows, columns = slice(0, layer.outputs), slice(0, layer.inputs)
        if split == "alternating" and number % 2 == 0:
            bias = rows if rank == ranks - 1 else slice(0, 0)
            shards.append(LayerShard(layer, rows, block_slice(layer.inputs, ranks, rank), bias, True, False))
        else:
            rows = block_slice(layer.outputs, ranks, rank)
            gathers = not shards or not shards[-1].by_inputs
            shards.append(LayerShard(layer, rows, columns, rows, False, gathers))
    return shards[::-1]
