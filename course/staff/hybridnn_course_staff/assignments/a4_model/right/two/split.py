"""A list of which layers are split by inputs, before the shards are made."""

from hybridnn.comm.blocks import block_slice
from hybridnn.nn.parameters import LayerShard


def split_layers(layers, split, ranks, rank):
    nothing = slice(0, 0)
    is_by_inputs = [split == "alternating" and number % 2 == 0 for number in range(len(layers))]
    shards = []
    for number, layer in enumerate(layers):
        all_rows, all_columns = slice(0, layer.outputs), slice(0, layer.inputs)
        if is_by_inputs[number]:
            own = block_slice(layer.inputs, ranks, rank)
            biases = all_rows if rank == ranks - 1 else nothing
            shards.append(LayerShard(layer, all_rows, own, biases, True, False))
        else:
            own = block_slice(layer.outputs, ranks, rank)
            gathers = not any(is_by_inputs[number + 1 : number + 2])
            shards.append(LayerShard(layer, own, all_columns, own, False, gathers))
    return shards
